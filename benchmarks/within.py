"""What the guards add to a call, measured within the same call.

A guarded function is timed from outside, and vLLM's own function from inside the wrapper, so that
a machine on which the same step takes a fifth longer from one moment to the next adds nothing: the
figure is whole / vLLM's own, step by step. What it cannot show is a guard that makes vLLM's own
code slower; `benchmarks.paired` would, as far as its noise lets it.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

import wrapt

import vllm_guard
from benchmarks.paired import table_row

STEPS = 400
"""Of each row: the figure is their median."""
SETTLING = 8
"""Steps before those: frames that were in flight while patching are unknown to the guards."""

Function = tuple[type | ModuleType, str]
"""A function that guards wrap, and the class or module that it is in."""


class Load(Protocol):
    """What is run."""

    def watched(self) -> dict[str, list[Function]]:
        """Return the functions whose times count together, by the name of that part."""

    def step(self) -> None:
        """Run one step."""


class CallTimes:
    """Seconds in the functions of one part: ``whole``, with the guards, and vLLM's ``own``.

    Args:
        functions: All of them; they are wrapped by now.
    """

    def __init__(self, functions: list[Function]) -> None:
        self.whole: list[float] = []
        self.own: list[float] = []
        for owner, name in functions:
            wrapper = vars(owner)[name]
            innermost = wrapper
            while isinstance(innermost.__wrapped__, wrapt.FunctionWrapper):
                innermost = innermost.__wrapped__
            innermost.__wrapped__ = _timed(innermost.__wrapped__, self.own)
            if isinstance(owner, type):
                setattr(owner, name, _timed(_called_on_instance(wrapper), self.whole))
            else:
                setattr(owner, name, _timed(wrapper, self.whole))

    def take_ratio(self) -> float:
        """Return whole / own of the calls since the last time."""
        ratio = sum(self.whole) / sum(self.own)
        self.whole.clear()
        self.own.clear()
        return ratio


def _called_on_instance(wrapper: Any) -> Callable[..., Any]:
    @functools.wraps(wrapper)
    def call(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper.__get__(instance, type(instance))(*args, **kwargs)

    return call


def _timed(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        times.append(time.perf_counter() - start)
        return result

    return call


def _measure(make_load: Callable[[], Load], results: Any) -> None:
    load = make_load()
    vllm_guard.register()
    times = {part: CallTimes(functions) for part, functions in load.watched().items()}
    gc.collect()
    gc.disable()
    ratios: dict[str, list[float]] = {part: [] for part in times}
    for _ in range(SETTLING + STEPS):
        load.step()
        for part, of_part in times.items():
            ratios[part].append(of_part.take_ratio())
    results.put({part: of_part[SETTLING:] for part, of_part in ratios.items()})


def lines(loads: dict[str, Callable[[], Load]]) -> Iterator[tuple[str, str, str, float]]:
    """Yield a line for each load and part: median and quartiles of the steps' ratios.

    Args:
        loads: What is measured, by name.

    Yields:
        Line to print, name of the load and of the part, and the median ratio.
    """
    context = multiprocessing.get_context("fork")
    for load, make_load in loads.items():
        results = context.SimpleQueue()
        # What is registered, and what memory looks like, ends with the process.
        process = context.Process(target=_measure, args=(make_load, results))
        process.start()
        for part, ratios in results.get().items():
            line, middle = table_row(load, "same call", part, ratios)
            yield line, load, part, middle
        process.join()
