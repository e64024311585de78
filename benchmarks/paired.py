"""Guarded against unguarded, in one process, taking turns.

A few steps are run as they are, then as many patched, then patched first, and so on, so that both
see the same state of the machine. A pair's ratio is that of the median steps, and the figure is the
median of the ratios. ``nothing`` against itself is the noise.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import vllm_guard

PAIRS_A_PROCESS = 10
"""Where a process has its memory may favour one of both for as long as it lives."""


class Load(Protocol):
    """What an arm measures again and again."""

    def timed_steps(self) -> dict[str, float]:
        """Run a few steps and return the seconds that a median step spends in each part."""


MakeLoad = Callable[[], Load]
Undo = Callable[[], None]
Patch = Callable[[], Undo]


def patch_nothing() -> Undo:
    """Leave vLLM as it is."""
    return lambda: None


def register_guards() -> Undo:
    """Have all guards on."""
    vllm_guard.register()
    return vllm_guard.unpatch


ARMS: dict[str, Patch] = {"nothing": patch_nothing, "vllm-guard": register_guards}


def _measure(patch: Patch, load: Load) -> dict[str, float]:
    undo = patch()
    times = load.timed_steps()
    undo()
    return times


def _pairs(patch: Patch, make_load: MakeLoad, count: int, results: Any) -> None:
    gc.disable()
    load = make_load()
    for pair in range(count):
        order = (patch_nothing, patch) if pair % 2 else (patch, patch_nothing)
        first, second = (_measure(arm, load) for arm in order)
        plain, patched = (first, second) if pair % 2 else (second, first)
        results.put({part: patched[part] / plain[part] for part in plain})
        gc.collect()


def ratios(patch: Patch, make_load: MakeLoad, pairs: int) -> dict[str, list[float]]:
    """Measure pairs of blocks; return by part the ratio of each pair.

    Args:
        patch: What is compared with `patch_nothing`.
        make_load: Makes the load.
        pairs: How many.
    """
    context = multiprocessing.get_context("fork")
    found: dict[str, list[float]] = {}
    for start in range(0, pairs, PAIRS_A_PROCESS):
        count = min(PAIRS_A_PROCESS, pairs - start)
        results = context.SimpleQueue()
        process = context.Process(target=_pairs, args=(patch, make_load, count, results))
        process.start()
        for _ in range(count):
            for part, ratio in results.get().items():
                found.setdefault(part, []).append(ratio)
        process.join()
    return found


def table_row(load: str, arm: str, part: str, values: list[float]) -> tuple[str, float]:
    """Return the line of a table that shows median and quartiles of ``values``, and the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{load:<24} {arm:<10} {part:<20} {middle:.3f} ({low:.3f} to {high:.3f})", middle


def lines(
    loads: dict[str, MakeLoad], arms: dict[str, Patch], pairs: int
) -> Iterator[tuple[str, str, str, str, float]]:
    """Yield a line for each load, arm and part as soon as it is known.

    Args:
        loads: What is measured, by name.
        arms: What is compared with nothing, by name.
        pairs: How many pairs of blocks a line.

    Yields:
        Line to print, name of the load, of the arm and of the part, and the median ratio.
    """
    for load, make_load in loads.items():
        for arm, patch in arms.items():
            for part, values in ratios(patch, make_load, pairs).items():
                line, middle = table_row(load, arm, part, values)
                yield line, load, arm, part, middle
