"""What the guards cost a step of the real scheduler, all requests decoding.

``python -m benchmarks.overhead`` prints a table for the vLLM that is first on the path.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import vllm

from benchmarks.gates import Gate
from benchmarks.paired import ARMS, Undo, lines
from benchmarks.within import STEPS as STEPS_WITHIN
from benchmarks.within import Function
from benchmarks.within import lines as lines_within
from tests.scheduler.adapter import BLOCK_SIZE, Setup, make_request, make_scheduler
from tests.scheduler.oracle import RequestPlan
from tests.scheduler.outputs import make_output

STEPS = 4 * BLOCK_SIZE
"""Steps in each half of a pair: few, so that both halves see the same state of the machine."""
WARM_UP = 4 * STEPS
SETTLING = 2 * BLOCK_SIZE
"""Steps before those: frames that were in flight while patching are unknown to the guards."""
LIMITS = {"schedule": 1.01, "update_from_output": 1.02}
"""Largest ratios, by part."""
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
        self.plans = [
            RequestPlan(index, f"request-{index}", prompt, max_tokens=1000)
            for index in range(requests)
        ]
        self.setup = setup
        self.drafts = drafts
        self.times: dict[str, list[float]] = {}
        self._start_over()

    def _start_over(self) -> None:
        self.scheduler = make_scheduler(self.setup)
        for plan in self.plans:
            self.scheduler.add_request(make_request(plan, self.setup))
        self.in_flight = [self.scheduler.schedule()]
        self.steps_left = LIFE // (2 if self.drafts else 1)
        self._forget_times()
        for _ in range(WARM_UP):
            self.step()

    def _forget_times(self) -> None:
        self.times = {"schedule": [], "update_from_output": []}

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
        assert len(self.scheduler.running) == len(self.plans), "requests ended meanwhile"

    def watched(self) -> dict[str, list[Function]]:
        """Return the scheduler's methods that a step calls."""
        return {
            name: [(next(cls for cls in type(self.scheduler).__mro__ if name in vars(cls)), name)]
            for name in LIMITS
        }

    def _answer(self, frame: Any) -> Any:
        drafts = frame.scheduled_spec_decode_tokens
        ids = list(frame.num_scheduled_tokens)
        return make_output(ids, [[5, 5] if drafts.get(i) else [5] for i in ids], {})

    def timed_steps(self) -> dict[str, float]:
        """Run steps and return the seconds that a median step spends in each method."""
        if self.steps_left < SETTLING + STEPS:
            self._start_over()
            gc.collect()
        for _ in range(SETTLING):
            self.step()
        self._forget_times()
        for _ in range(STEPS):
            self.step()
        return {name: statistics.median(times) for name, times in self.times.items()}


def patch_naively() -> Undo:
    """For comparison: a wrapt wrapper around the method that runs once a request."""
    import wrapt
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    def check(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        if len(args[1]) > max(args[0].num_output_placeholders, 0):
            raise AssertionError("healthy traffic has no surplus")
        return wrapped(*args, **kwargs)

    method = "_update_request_with_output"
    original = getattr(AsyncScheduler, method)
    setattr(AsyncScheduler, method, wrapt.FunctionWrapper(original, check))
    return lambda: setattr(AsyncScheduler, method, original)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of blocks a row")
    gate = Gate(parser)
    options = parser.parse_args()
    print(
        f"vLLM {vllm.__version__}, median ratio (quartiles): of {STEPS_WITHIN} steps within the"
        f" same call, then of {options.pairs} pairs of {STEPS} steps"
    )
    loads = {
        f"{requests:>5} requests {drafts} drafts": partial(DecodingEngine, requests, drafts)
        for requests, drafts in ((256, 0), (1024, 0), (256, 3))
    }
    for line, load, part, ratio in lines_within(loads):
        print(line, flush=True)
        gate.judge(f"vLLM {vllm.__version__}, {load}, {part}", ratio, LIMITS[part])
    for line, *_ in lines(loads, ARMS | {"naive": patch_naively}, options.pairs):
        print(line, flush=True)
    gate.end(options)


if __name__ == "__main__":
    main()
