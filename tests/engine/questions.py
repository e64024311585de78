"""Rounds of questions about images, with images that yield too few embeddings among them.

Every image has a content of its own: encoder outputs and prompts are cached by it.
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import numpy
from PIL import Image

from tests.engine.image_sizes import Case, Size

GOOD = 4
FIFTH = "fifth"
# All four decode by then, prompts and images of theirs are done with.
FIFTH_STEP = 12
CROWDS = (12, 16, 24)
FURTHER = 200
# An image as high as it is wide has as many embeddings as placeholders, whichever is taken for
# which.
GOOD_SIZES = ((224, 224), (448, 448), (300, 300))
_SQUARES = 12


@dataclass(frozen=True)
class Picture:
    """An image of coloured squares.

    Args:
        size: Width and height in pixels.
        name: The same name gives the same colours.
    """

    size: Size
    name: str

    def url(self) -> str:
        """Return the image as a `data:` URL."""
        colours = numpy.random.default_rng(list(self.name.encode())).integers(
            256, size=(_SQUARES, _SQUARES, 3), dtype=numpy.uint8
        )
        file = io.BytesIO()
        Image.fromarray(colours).resize(self.size, Image.Resampling.NEAREST).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@dataclass(frozen=True)
class Question:
    """A text, with an image in front or without, that is answered with log-probabilities."""

    name: str
    text: str
    max_tokens: int
    picture: Picture | None = None
    step: int = 0
    stream: bool = False
    path: str = "/v1/chat/completions"

    def body(self) -> dict[str, Any]:
        """Return the message."""
        content: list[dict[str, Any]] = [{"type": "text", "text": self.text}]
        if self.picture is not None:
            content.append({"type": "image_url", "image_url": {"url": self.picture.url()}})
        return {"messages": [{"role": "user", "content": content}], "logprobs": True}


def four(prefix: str = "four") -> list[Question]:
    """Return four good questions, three of them about an image.

    Args:
        prefix: Of their names; they are the same whatever it is.
    """
    return [
        _question(
            f"{prefix}.good-{index + 1}",
            (f"good-{index + 1}", 40),
            Picture(GOOD_SIZES[index], f"good-{index + 1}") if index < len(GOOD_SIZES) else None,
        )
        for index in range(GOOD)
    ]


def five(size: Size) -> list[Question]:
    """Return the four good questions, and one about an image that arrives while they are answered.

    Args:
        size: Of the fifth one's image.
    """
    fifth = _question(f"five.{FIFTH}", (FIFTH, 16), Picture(size, FIFTH), FIFTH_STEP)
    return [*four("five"), fifth]


def crowds(cases: Sequence[Case], healthy: bool) -> list[list[Question]]:
    """Return rounds of many questions about images, with some texts and each case among them.

    Args:
        cases: Images that yield too few embeddings.
        healthy: Whether they are replaced by healthy ones of as many placeholders.
    """
    sizes = [case.healthy if healthy else case.bad for case in cases]
    return [crowd_of(images, sizes) for images in CROWDS]


def crowd_of(images: int, others: Sequence[Size] = ()) -> list[Question]:
    """Return questions about images and a quarter as many texts; each gets in a step after another.

    Args:
        images: How many.
        others: Sizes of some of them; they are neither the first ones nor the last.
    """
    sizes: list[Size | None] = [
        GOOD_SIZES[index % len(GOOD_SIZES)] for index in range(images - len(others))
    ]
    sizes += [None] * (images // 4)
    random.Random(images).shuffle(sizes)
    names = [f"crowd-{images}.{index + 1}" for index in range(len(sizes))]
    for index, size in enumerate(others, start=1):
        place = index * len(sizes) // (len(others) + 1)
        sizes.insert(place, size)
        names.insert(place, f"crowd-{images}.bad-{index}")
    return [
        _question(name, (name, 24), size and Picture(size, name), step)
        for step, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]


def further() -> list[Question]:
    """Return many short questions, each tenth of them about an image."""
    names = [f"further-{index + 1}" for index in range(FURTHER)]
    return [
        _question(name, (name, 6), Picture(GOOD_SIZES[0], name) if index % 10 == 0 else None)
        for index, name in enumerate(names)
    ]


def _question(
    name: str, content: tuple[str, int], picture: Picture | None = None, step: int = 0
) -> Question:
    """Return a question.

    Args:
        name: Of the question.
        content: What its text is made from, and how many tokens are answered.
        picture: What it is about.
        step: At which it is admitted.
    """
    seed, max_tokens = content
    generator = random.Random(seed)
    text = "".join(generator.choices(ascii_lowercase, k=generator.randint(8, 40)))
    return Question(name, text, max_tokens, picture, step)
