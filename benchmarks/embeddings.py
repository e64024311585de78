"""What the guard of media costs a step that gathers and merges embeddings, all of them healthy.

``python -m benchmarks.embeddings`` prints a table for the vLLM that is first on the path.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import torch
import vllm

from benchmarks.gates import Gate
from benchmarks.paired import ARMS, lines
from benchmarks.within import STEPS as STEPS_WITHIN
from benchmarks.within import Function
from benchmarks.within import lines as lines_within
from tests.embeddings.step import Item, Placed, Prompt, RunnerV1, RunnerV2, load_modules

ITEMS = (1, 16, 64)
LIMIT = 1.02
"""Largest ratio, for more than one item: a step with one takes next to no time."""
STEPS = 40
"""Steps in each half of a pair."""
SETTLING = 5
"""Steps before those: what has just been patched is not in the processor's caches."""
ROWS = 64
"""Embeddings of an item: a slice of an image in MiniCPM-V."""
HIDDEN = 1024
PART = "gather + merge"
DTYPE = torch.bfloat16


class Prefill:
    """A step in which each of ``items`` requests computes its whole prompt, one item in each.

    Args:
        runner: ``v1`` or ``v2``.
        items: How many.
    """

    def __init__(self, runner: str, items: int) -> None:
        torch.set_num_threads(1)
        v1, v2, self.merge_module = load_modules()
        names = [f"item-{number}" for number in range(items)]
        self.placed = [Placed(Prompt(name, (Item(name, ROWS, ROWS),))) for name in names]
        cache = {name: torch.rand(ROWS, HIDDEN).to(DTYPE) for name in names}
        runners = {"v1": (RunnerV1, v1), "v2": (RunnerV2, v2)}
        make, module = runners[runner]
        self.gather_function: Function = (
            (v1.GPUModelRunner, "_gather_mm_embeddings")
            if runner == "v1"
            else (v2.EncoderRunner, "gather_mm_embeddings")
        )
        self.gather = make(module, self.placed, cache)
        self.scheduled = [p.length for p in self.placed]
        self.batch = torch.zeros((sum(self.scheduled), HIDDEN), dtype=DTYPE)
        self.timed_steps()

    def step(self) -> None:
        """Gather, and merge."""
        embeddings, mask = self.gather(self.placed, 0, self.scheduled)
        self.merge_module._merge_multimodal_embeddings(
            inputs_embeds=self.batch, multimodal_embeddings=embeddings, is_multimodal=mask
        )

    def watched(self) -> dict[str, list[Function]]:
        """Return what a step calls of vLLM."""
        return {PART: [self.gather_function, (self.merge_module, "_merge_multimodal_embeddings")]}

    def timed_steps(self) -> dict[str, float]:
        """Run steps and return the seconds that a median step takes."""
        times = []
        for _ in range(SETTLING + STEPS):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return {PART: statistics.median(times[SETTLING:])}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of blocks a row")
    gate = Gate(parser)
    options = parser.parse_args()
    print(
        f"vLLM {vllm.__version__}, items of {ROWS} rows of {HIDDEN} {DTYPE}, median ratio"
        f" (quartiles): of {STEPS_WITHIN} steps within the same call, then of {options.pairs} pairs"
        f" of {STEPS} steps"
    )
    runners = ["v1"] if load_modules()[1] is None else ["v1", "v2"]
    loads = {
        f"{runner} {items:>2} items": partial(Prefill, runner, items)
        for runner in runners
        for items in ITEMS
    }
    for line, load, _, ratio in lines_within(loads):
        print(line, flush=True)
        if not load.endswith(" 1 items"):
            gate.judge(f"vLLM {vllm.__version__}, {load}", ratio, LIMIT)
    for line, *_ in lines(loads, ARMS, options.pairs):
        print(line, flush=True)
    gate.end(options)


if __name__ == "__main__":
    main()
