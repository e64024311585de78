"""Random traffic, as hypothesis chooses it, on real schedulers with the guards on.

`python -m tests.scheduler.machine --examples 200 [--seed 1]` runs on the vLLM that is first on the
path and prints one JSON; with `--releases all` (or a list with commas) on each of them in a
subprocess of its own, a line for each, and exits with 1 if an example failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.releases.isolated import SubprocessFailed, print_result, run_isolated
from tests.scheduler.guarding import GUARDS, guarded
from tests.scheduler.matrix import RELEASES, TIMEOUT_SECONDS
from tests.scheduler.simulate import make_importable

BATCH = 10
"""Examples of one seed. Of more, hypothesis makes most by changing a few, and seldom the setup."""

EVENTS = 30
"""At most so many in an example, before everybody is let to his end."""

Result = dict[str, Any]


def run_arm(guards: str, examples: int, number: int) -> Result:
    """Run `examples` examples with these guards on, each batch with a seed of its own.

    Returns a mapping: what happened, and `failure`, none or a text: with both guards on the fewest
    events that fail, in other arms, where failures are no news, the first ones found.
    """
    from tests.scheduler.campaign import triggers
    from tests.scheduler.traffic import Tally, Traffic

    tally = Tally()
    failure = None
    started = time.monotonic()
    chosen = settings(
        phases=[Phase.generate, *([Phase.shrink] if guards == "both" else [])],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        stateful_step_count=EVENTS,
        deadline=None,
        database=None,
    )
    with guarded(guards):
        for first in range(0, examples, BATCH):
            traffic = seed(f"{number}/{first}")(lambda: Traffic(tally, first))  # noqa: B023
            size = min(BATCH, examples - first)
            try:
                run_state_machine_as_test(traffic, settings=settings(chosen, max_examples=size))
            except Exception as error:
                failure = "\n".join([f"{type(error).__name__}: {error}", *_notes(error)])
                break
        return {
            **vars(tally),
            "triggers": triggers(),
            "seconds": round(time.monotonic() - started, 1),
            "failure": failure,
        }


def _notes(error: Exception) -> list[str]:
    """Hypothesis's account of the example."""
    return getattr(error, "__notes__", [])


def run_here(options: argparse.Namespace) -> Result:
    """Run what the command line asks for on the vLLM that is imported."""
    make_importable()
    import vllm

    arms = options.guards or ["both"]
    return {
        "vllm_file": vllm.__file__,
        "vllm_version": vllm.__version__,
        "arms": {guards: run_arm(guards, options.examples, options.seed) for guards in arms},
    }


def run_releases(options: argparse.Namespace) -> Iterator[str]:
    """Run on each release, print a line for each arm, and yield what fails."""
    releases = RELEASES if options.releases == "all" else options.releases.split(",")
    arguments = ["-m", "tests.scheduler.machine"]
    arguments += ["--examples", str(options.examples), "--seed", str(options.seed)]
    arguments += [word for guards in options.guards or () for word in ("--guards", guards)]
    for release in releases:
        try:
            result = run_isolated(release, arguments, timeout=TIMEOUT_SECONDS)
        except SubprocessFailed as error:
            yield str(error)
            continue
        for guards, arm in result["arms"].items():
            print(line(release, guards, arm), flush=True)
            if arm["failure"]:
                yield f"vLLM {release}, guards {guards}: {arm['failure']}"


def line(release: str, guards: str, arm: Result) -> str:
    """One line of the table."""
    events = Counter(arm["events"])
    return (
        f"{release:9}{guards:6} {'FAILS' if arm['failure'] else 'holds'}"
        f" {arm['examples']} examples in {arm['seconds']:.0f} s,"
        f" {events['preemption']} preemptions, {events['bogus-row']} bogus rows,"
        f" {sum(arm['triggers'].values())} triggers,"
        f" {arm['only_lost_logprobs']} lost prompt logprobs"
    )


def main() -> None:
    """Run here, or on the releases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same examples")
    parser.add_argument("--guards", action="append", choices=GUARDS, help="default: both")
    parser.add_argument("--releases", help="default: the vLLM that is first on the path")
    options = parser.parse_args()
    if options.releases is None:
        print_result(run_here(options))
        return
    problems = list(run_releases(options))
    print("\n".join(problems) or "every example holds")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
