"""What loading the plugin adds to a process that vLLM is loaded in.

``python -m benchmarks.registering`` prints processor time, with bytecode cached: what wrapt takes
to be imported, and all else together (import, settings, probes and patches). Each run is a new
process that has vLLM and its scheduler loaded, and nothing of ours: a fork would pay for the memory
that it shares.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from benchmarks.gates import Gate

LIMIT_MILLISECONDS = 20.0
ONCE = "--once"


def _register() -> None:
    """Load vLLM, then the plugin; print how long the latter took."""
    import vllm
    import vllm.v1.core.sched.scheduler

    assert not {"vllm_guard", "wrapt"} & set(sys.modules)
    before = set(sys.modules)
    begin = time.process_time()
    import wrapt

    middle = time.process_time()
    import vllm_guard

    vllm_guard.register()
    end = time.process_time()
    added = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not added & {"vllm", "torch"}, added
    assert vllm_guard.status()["guards"]["clamp"]["state"] == "applied"
    print(f"{vllm.__version__} {wrapt.__version__} {middle - begin} {end - begin}")


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="processes, after a first one")
    parser.add_argument(ONCE, action="store_true", help=argparse.SUPPRESS)
    gate = Gate(parser)
    options = parser.parse_args()
    if options.once:
        _register()
        return
    command = [sys.executable, "-m", "benchmarks.registering", ONCE]
    times: list[list[float]] = []
    for _ in range(options.runs + 1):
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        vllm, wrapt, *seconds = ended.stdout.splitlines()[-1].split()
        times.append([1000 * float(text) for text in seconds])
    of_wrapt, of_all = zip(*times[1:], strict=True)
    low, middle, high = statistics.quantiles(of_all, n=4)
    print(
        f"vLLM {vllm}, {options.runs} processes: register() takes {middle:.1f} ms"
        f" ({low:.1f} to {high:.1f}), of which {statistics.median(of_wrapt):.1f} ms are the import"
        f" of wrapt {wrapt}"
    )
    gate.judge(f"register() on vLLM {vllm}, ms", middle, LIMIT_MILLISECONDS)
    gate.end(options)


if __name__ == "__main__":
    main()
