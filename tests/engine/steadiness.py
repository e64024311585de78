"""Whether a process keeps growing: its memory, its open descriptors, its threads.

Imports nothing but Python's own, so that its unit tests run where there is no vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import NamedTuple

COUNT_GROWTH = 3
"""How many more descriptors or threads there may be at the end than at first.

Connections come and go, and a median of many moments moves by one or two of them; what is lost with
each trigger, request or scrape are hundreds.
"""


class Sample(NamedTuple):
    """One process at one moment.

    Args:
        seconds: Since when, is the same for all samples of a process.
        rss: Resident memory in KiB.
        pss: The same, with shared pages divided among those who share them.
        anonymous: The part of it that is no file's: heaps and stacks.
        descriptors: Open ones.
        threads: Running or not.
    """

    seconds: float
    rss: int
    pss: int
    anonymous: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Course:
    """One process over time.

    Args:
        name: For people.
        samples: In the order of time, those of the warm-up left out; at least two.
    """

    name: str
    samples: Sequence[Sample]

    @property
    def memory_slope(self) -> float:
        """By how much its resident memory grows, in KiB a minute.

        Not the proportional memory: that of one process changes when another writes to a page that
        they have shared since a fork.
        """
        return 60 * slope([(sample.seconds, sample.rss) for sample in self.samples])

    def growth(self, count: Callable[[Sample], int]) -> float:
        """Return how much more of something there is in the last quarter than in the first.

        Args:
            count: Of a sample.
        """
        counts = [count(sample) for sample in self.samples]
        quarter = max(1, len(counts) // 4)
        return median(counts[-quarter:]) - median(counts[:quarter])

    def complaints(self, memory_limit: float) -> Iterator[str]:
        """Say what of it grows.

        Args:
            memory_limit: Largest slope of its memory that is none, in KiB a minute.
        """
        if self.memory_slope > memory_limit:
            yield (
                f"{self.name}: memory grows by {self.memory_slope:.0f} KiB a minute,"
                f" more than {memory_limit:.0f}"
            )
        counts: dict[str, Callable[[Sample], int]] = {
            "descriptors": lambda sample: sample.descriptors,
            "threads": lambda sample: sample.threads,
        }
        for what, count in counts.items():
            if self.growth(count) > COUNT_GROWTH:
                yield f"{self.name}: {self.growth(count):.0f} more {what} at the end than at first"


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between any two points (Theil and Sen).

    Up to a quarter of the points may be anything without moving it far, which a peak of a second
    would do to a line of least squares.

    Args:
        points: At least two, in the order of their first coordinates, which differ.
    """
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2))
