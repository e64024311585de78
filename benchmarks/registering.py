"""What loading the plugin adds to a process that vLLM is loaded in.

``python -m benchmarks.registering`` prints processor time: import, settings, probes and patches
together, with bytecode cached. Each run is a fork of one process that has vLLM and its scheduler
loaded, and nothing of ours.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from typing import Any

import vllm
import vllm.v1.core.sched.scheduler

OURS = {"vllm_guard", "wrapt"}


def _register(results: Any) -> None:
    begin = time.process_time()
    import vllm_guard

    vllm_guard.register()
    seconds = time.process_time() - begin
    state = vllm_guard.status()["guards"]["clamp"]["state"]
    results.put((1000 * seconds, state))


def milliseconds() -> float:
    """Register in a fork of this process; return the processor time that it took there."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_register, args=(results,))
    child.start()
    took, state = results.get()
    child.join()
    assert state == "applied"
    return float(took)


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="forks, after a first one")
    options = parser.parse_args()
    assert not OURS & set(sys.modules)
    milliseconds()
    low, middle, high = statistics.quantiles((milliseconds() for _ in range(options.runs)), n=4)
    print(
        f"vLLM {vllm.__version__}, {options.runs} runs: register() takes {middle:.1f} ms"
        f" (quartiles {low:.1f} to {high:.1f})"
    )


if __name__ == "__main__":
    main()
