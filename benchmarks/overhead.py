"""What the guards cost a step: guarded against unguarded, on the real scheduler, paired.

``python -m benchmarks.overhead`` prints a table for the vLLM that is first on the path. Each arm
has a process of its own, in which nothing is patched while it is measured; they take turns, a few
steps each, so that both see the same state of the machine. A pair's ratio is that of the median
steps, and the figure is the median of the ratios. ``nothing`` against itself is the noise.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import vllm

import vllm_guard
from tests.scheduler.adapter import BLOCK_SIZE, Setup, make_output, make_request, make_scheduler
from tests.scheduler.oracle import RequestPlan

STEPS = 4 * BLOCK_SIZE
"""Steps in each half of a pair: few, so that both halves see the same state of the machine."""
WARM_UP = 4 * STEPS
PAIRS_A_PROCESS = 6
"""A process may be a few per cent slower than its twin for as long as it lives."""
LIFE = 800
"""Tokens that a request is good for."""


class DecodingEngine:
    """An AsyncScheduler with all requests decoding, one frame in flight while one is scheduled.

    Args:
        requests: How many.
        drafts: Draft tokens a request, of which one is accepted; 0 for none.
    """

    def __init__(self, requests: int, drafts: int) -> None:
        prompt = 16
        setup = Setup(
            token_budget=max(requests * prompt, requests * (1 + drafts)),
            max_requests=requests,
            kv_blocks=requests * 256 + 1,
            draft_tokens=drafts,
        )
        self.drafts = drafts
        self.scheduler = make_scheduler(setup)
        for index in range(requests):
            plan = RequestPlan(index, f"request-{index}", prompt, max_tokens=1000)
            self.scheduler.add_request(make_request(plan, setup))
        self.in_flight = [self.scheduler.schedule()]
        self.times: dict[str, list[float]] = {"schedule": [], "update_from_output": []}
        self.steps_left = LIFE // (2 if drafts else 1)
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> None:
        """Schedule a frame, then return the one before it; note how long each call took."""
        self.steps_left -= 1
        start = time.perf_counter()
        self.in_flight.append(self.scheduler.schedule())
        self.times["schedule"].append(time.perf_counter() - start)
        frame = self.in_flight.pop(0)
        output = self._answer(frame)
        start = time.perf_counter()
        self.scheduler.update_from_output(frame, output)
        self.times["update_from_output"].append(time.perf_counter() - start)

    def _answer(self, frame: Any) -> Any:
        drafts = frame.scheduled_spec_decode_tokens
        ids = list(frame.num_scheduled_tokens)
        return make_output(ids, [[5, 5] if drafts.get(i) else [5] for i in ids], {})

    def timed_steps(self) -> dict[str, float]:
        """Run steps and return the seconds that a median step spends in each method."""
        self.times = {name: [] for name in self.times}
        for _ in range(STEPS):
            self.step()
        return {name: statistics.median(times) for name, times in self.times.items()}


def patch_nothing() -> None:
    """Leave vLLM as it is."""


def patch_naively() -> None:
    """For comparison: a wrapt wrapper around the method that runs once a request."""
    import wrapt
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    def check(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        if len(args[1]) > max(args[0].num_output_placeholders, 0):
            raise AssertionError("healthy traffic has no surplus")
        return wrapped(*args, **kwargs)

    method = "_update_request_with_output"
    setattr(AsyncScheduler, method, wrapt.FunctionWrapper(getattr(AsyncScheduler, method), check))


ARMS = {"nothing": patch_nothing, "vllm-guard": vllm_guard.register, "naive": patch_naively}


class Arm:
    """A process with an engine in it, measured a block of steps at a time.

    Args:
        patch: Called in the process before the engine is made.
        requests: Requests decoding.
        drafts: Draft tokens a request.
    """

    def __init__(self, patch: Callable[[], None], requests: int, drafts: int) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, patch, requests, drafts), daemon=True
        )
        self._process.start()

    def measure(self) -> dict[str, float]:
        """Return the seconds that a median step spends in each method."""
        self._connection.send("measure")
        times: dict[str, float] = self._connection.recv()
        return times

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _serve(connection: Any, patch: Callable[[], None], requests: int, drafts: int) -> None:
    gc.disable()
    patch()
    engine = DecodingEngine(requests, drafts)
    while connection.recv():
        if engine.steps_left < STEPS:
            engine = DecodingEngine(requests, drafts)
            gc.collect()
        connection.send(engine.timed_steps())
        assert len(engine.scheduler.running) == requests, "requests ended while being measured"


def ratios(name: str, requests: int, drafts: int, pairs: int) -> dict[str, list[float]]:
    """Measure pairs of blocks; return by method the ratio of each pair.

    Args:
        name: The arm that is compared with ``nothing``.
        requests: Requests decoding.
        drafts: Draft tokens a request.
        pairs: How many.
    """
    found: dict[str, list[float]] = {"schedule": [], "update_from_output": []}
    for start in range(0, pairs, PAIRS_A_PROCESS):
        plain, patched = (Arm(ARMS[arm], requests, drafts) for arm in ("nothing", name))
        for pair in range(start, min(start + PAIRS_A_PROCESS, pairs)):
            order = (plain, patched) if pair % 2 else (patched, plain)
            times = {arm: arm.measure() for arm in order}
            for method, values in found.items():
                values.append(times[patched][method] / times[plain][method])
        plain.close()
        patched.close()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of blocks a row")
    options = parser.parse_args()
    print(
        f"vLLM {vllm.__version__}, {options.pairs} pairs of {STEPS} steps, median ratio (quartiles)"
    )
    for requests, drafts in ((256, 0), (1024, 0), (256, 3)):
        for name in ARMS:
            for method, values in ratios(name, requests, drafts, options.pairs).items():
                low, middle, high = statistics.quantiles(values, n=4)
                print(
                    f"{requests:>5} requests {drafts} drafts  {name:<10} {method:<20}"
                    f" {middle:.3f} ({low:.3f} to {high:.3f})"
                )


if __name__ == "__main__":
    main()
