"""What the tiny models with a vision tower have in common: tokenizer, template, random weights.

Nothing is trained and nothing is fetched: transformers makes the model from its configuration, as
shapes without content, and each of them is filled with numbers that are the same every time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file

BYTES = 256
END = "</s>"
# One message after the other; the server puts an image's placeholder in front of the text.
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def token_numbers(special: Mapping[str, str]) -> dict[str, int]:
    """Return the number of each special token: they follow those of the bytes.

    Args:
        special: The tokens by the name that the processor asks for them by.
    """
    return {token: BYTES + place for place, token in enumerate((END, *special.values()))}


def make_checkpoint(
    folder: Path,
    config: dict[str, Any],
    special: Mapping[str, str],
    processors: Mapping[str, dict[str, Any]],
    published: tuple[str, str] = ("", ""),
) -> Path:
    """Write a model as a hub would serve it.

    Args:
        folder: Where to; made if it does not exist.
        config: What `config.json` is to hold.
        special: The tokenizer's special tokens by the name that the processor asks for them by.
        processors: Further files with their content.
        published: Beginning of weights' names in transformers, and in checkpoints on the hub.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config,
        "tokenizer.json": _tokenizer(token_numbers(special)),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END,
            "extra_special_tokens": special,
        },
        **processors,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    old, new = published
    weights = {
        new + name.removeprefix(old) if name.startswith(old) else name: weight
        for name, weight in _weights(folder).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tokenizer(special: Mapping[str, int]) -> dict[str, Any]:
    """A byte-level BPE tokenizer without a single merge: each byte of a text is a token."""
    from tokenizers.pre_tokenizers import ByteLevel

    numbers = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token, number in special.items()
        ],
        "pre_tokenizer": {**byte_level, "trim_offsets": False},
        "decoder": {**byte_level, "trim_offsets": False},
        "model": {"type": "BPE", "vocab": {**numbers, **special}, "merges": []},
    }


def _weights(folder: Path) -> dict[str, numpy.ndarray]:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    generator = numpy.random.default_rng(0)
    return {
        name: _filled(name, tuple(parameter.shape), generator)
        for name, parameter in model.named_parameters()
    }


def _filled(name: str, shape: tuple[int, ...], generator: numpy.random.Generator) -> numpy.ndarray:
    if len(shape) == 1:
        # The weights of a norm; the rest are biases, and an embedding beside those of patches.
        value = 1.0 if name.endswith("weight") else 0.0
        return numpy.full(shape, value, numpy.float32)
    # So large that the next token hangs on all of the prompt, not on its last token alone.
    scale = 2.0 / math.sqrt(math.prod(shape[1:]))
    return (scale * generator.standard_normal(shape)).astype(numpy.float32)
