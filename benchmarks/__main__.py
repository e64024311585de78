"""All benchmarks, one after the other; ``--gate`` makes them a gate.

``make bench`` prints every table: what a step of the scheduler costs on four releases, a step that
gathers and merges embeddings, a real engine, and loading the plugin. Nothing else should run on the
machine meanwhile. A retired guard and one that is switched off are not timed: nothing is wrapped
then, which the tests check.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

from tests.releases.isolated import INSTALLED, REPOSITORY, besides_installed, clean_environment

RELEASES = ("0.20.0", "0.26.0", "0.29.0", "0.33.0")
ELSEWHERE = besides_installed(RELEASES)
BENCHMARKS = {
    "registering": [INSTALLED],
    "overhead": [INSTALLED, *ELSEWHERE],
    "embeddings": [INSTALLED],
    "engine": [INSTALLED],
}
"""The releases that each is run on."""


def run(benchmark: str, release: str, options: list[str]) -> int:
    """Run a benchmark and show what it prints; what vLLM logs is shown where it fails.

    Returns:
        Its exit code.
    """
    print(f"-- {benchmark}", flush=True)
    with tempfile.TemporaryFile("w+") as logged:
        ended = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{benchmark}", *options],
            cwd=REPOSITORY,
            env=clean_environment(release),
            stderr=logged,
            check=False,
        )
        # 1 is a gate's.
        if ended.returncode not in (0, 1):
            logged.seek(0)
            print(logged.read(), file=sys.stderr)
    return ended.returncode


def main() -> int:
    """Run all; return 1 if a gate was missed, 2 if a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--gate", action="store_true", help="exit code 1 if a limit is missed")
    parser.add_argument("--only", choices=list(BENCHMARKS), help="run this one")
    chosen = parser.parse_args()
    options = ["--gate"] if chosen.gate else []
    codes = [
        run(benchmark, release, options)
        for benchmark, releases in BENCHMARKS.items()
        if chosen.only in (None, benchmark)
        for release in releases
    ]
    return 2 if any(code not in (0, 1) for code in codes) else max(codes)


if __name__ == "__main__":
    sys.exit(main())
