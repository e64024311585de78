"""Guarded against unguarded, in processes that take turns.

Each arm has a process of its own, in which nothing is patched while it is measured; they take
turns, a few steps each, so that both see the same state of the machine. A pair's ratio is that of
the median steps, and the figure is the median of the ratios. ``nothing`` against itself is the
noise.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import vllm_guard

PAIRS_A_PROCESS = 6
"""A process may be a few per cent slower than its twin for as long as it lives."""


class Load(Protocol):
    """What an arm measures again and again."""

    def timed_steps(self) -> dict[str, float]:
        """Run a few steps and return the seconds that a median step spends in each part."""


MakeLoad = Callable[[], Load]
Patch = Callable[[], None]


def patch_nothing() -> None:
    """Leave vLLM as it is."""


ARMS: dict[str, Patch] = {"nothing": patch_nothing, "vllm-guard": vllm_guard.register}


class Arm:
    """A process with a load in it, measured a block of steps at a time.

    Args:
        patch: Called in the process before the load is made.
        make_load: Makes the load.
    """

    def __init__(self, patch: Patch, make_load: MakeLoad) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, patch, make_load), daemon=True)
        self._process.start()

    def measure(self) -> dict[str, float]:
        """Return the seconds that a median step spends in each part."""
        self._connection.send("measure")
        times: dict[str, float] = self._connection.recv()
        return times

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _serve(connection: Any, patch: Patch, make_load: MakeLoad) -> None:
    gc.disable()
    patch()
    load = make_load()
    while connection.recv():
        connection.send(load.timed_steps())


def ratios(patch: Patch, make_load: MakeLoad, pairs: int) -> dict[str, list[float]]:
    """Measure pairs of blocks; return by part the ratio of each pair.

    Args:
        patch: What is compared with `patch_nothing`.
        make_load: Makes the load in each process.
        pairs: How many.
    """
    found: dict[str, list[float]] = {}
    for start in range(0, pairs, PAIRS_A_PROCESS):
        plain, patched = (Arm(arm, make_load) for arm in (patch_nothing, patch))
        for pair in range(start, min(start + PAIRS_A_PROCESS, pairs)):
            order = (plain, patched) if pair % 2 else (patched, plain)
            times = {arm: arm.measure() for arm in order}
            for part, seconds in times[plain].items():
                found.setdefault(part, []).append(times[patched][part] / seconds)
        plain.close()
        patched.close()
    return found


def lines(
    loads: dict[str, MakeLoad], arms: dict[str, Patch], pairs: int
) -> Iterator[tuple[str, str, str, float]]:
    """Yield a line for each load, arm and part as soon as it is known.

    Args:
        loads: What is measured, by name.
        arms: What is compared with nothing, by name.
        pairs: How many pairs of blocks a line.

    Yields:
        Line to print, name of the load, of the arm, and the median ratio.
    """
    for load, make_load in loads.items():
        for arm, patch in arms.items():
            for part, values in ratios(patch, make_load, pairs).items():
                low, middle, high = statistics.quantiles(values, n=4)
                line = f"{load:<24} {arm:<10} {part:<20} {middle:.3f} ({low:.3f} to {high:.3f})"
                yield line, load, arm, middle
