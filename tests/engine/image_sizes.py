"""Image sizes and their numbers, as the real vLLM and the real processor of an environment count.

Run by that environment's Python on sizes that yield too few embeddings; it prints a JSON list of
`Case`s, one for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
# Width and height in pixels.
Size = tuple[int, int]
# So coarse that all of them are looked at in seconds.
_SEARCHED = range(60, 1300, 6)


class Case(NamedTuple):
    """An image that yields too few embeddings, and a healthy one that reads the same.

    Args:
        bad: Its size.
        placeholders: Of both images.
        embeddings: Of the bad one; the healthy one has as many as placeholders.
        healthy: Size of an image whose prompt is the same, token by token.
    """

    bad: Size
    placeholders: int
    embeddings: int
    healthy: Size


def count(python: Path, sizes: Sequence[Size]) -> list[Case]:
    """Return what an environment's vLLM and processor make of image sizes.

    Args:
        python: Interpreter of the environment.
        sizes: Of images that yield too few embeddings.
    """
    finished = subprocess.run(
        [str(python), "-m", "tests.engine.image_sizes", json.dumps(sizes)],
        cwd=CHECKOUT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [
        Case(tuple(bad), placeholders, embeddings, tuple(healthy))
        for bad, placeholders, embeddings, healthy in json.loads(finished.stdout.splitlines()[-1])
    ]


class _Counter:
    """Counts without a model; what it counts with is the environment's own code."""

    def __init__(self) -> None:
        from transformers.models.minicpmv4_6.image_processing_minicpmv4_6 import (
            MiniCPMV4_6ImageProcessor,
        )
        from vllm.model_executor.models.minicpmv4_6 import MiniCPMV4_6ProcessingInfo

        self._processor = processor = MiniCPMV4_6ImageProcessor()

        class Info(MiniCPMV4_6ProcessingInfo):
            def __init__(self) -> None:
                """Without the context that a model's configuration comes from."""

            def get_image_processor(self, **kwargs: object) -> Any:
                return processor

            def get_tokenizer(self) -> object:
                # Its special tokens have names of their own only where a tokenizer renames them.
                return object()

        self._info = Info()

    def prompt(self, size: Size) -> str:
        """Return what vLLM puts into the prompt for an image."""
        from vllm.multimodal.parse import ImageSize

        text: str = self._info.get_slice_image_placeholder(ImageSize(*size))
        return text

    def embeddings(self, size: Size) -> int:
        """Return how many embeddings the encoder makes of what the processor yields."""
        from PIL import Image

        patches = self._processor([Image.new("RGB", size)])["target_sizes"].prod(-1)
        return int((patches // 16).sum())

    def case(self, bad: Size) -> Case:
        """Return the numbers of an image size, and a healthy size to put in its place."""
        prompt = self.prompt(bad)
        placeholders = prompt.count("<|image_pad|>")
        healthy = next(
            size
            for size in sorted(product(_SEARCHED, repeat=2), key=lambda size: _distance(size, bad))
            if self.prompt(size) == prompt and self.embeddings(size) == placeholders
        )
        return Case(bad, placeholders, self.embeddings(bad), healthy)


def _distance(one: Size, other: Size) -> int:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    counter = _Counter()
    print(json.dumps([counter.case(tuple(size)) for size in json.loads(sys.argv[1])]))
