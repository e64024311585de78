"""Errors of our own, at each line of ours that a workload runs: vLLM must not notice one of them.

``python -m tests.scheduler.self_faults`` makes each line raise once, in a run of its own. Where
vLLM copes with the traffic by itself, every token has to be right all the same; where it does not,
it may fail in its own way, but not with our error.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.releases.isolated import print_result
from tests.runtime.raising_lines import Injected, Line, OwnLines, name_of, swallowing_problem
from tests.scheduler.adapter import pipeline_stages, supports_sessions
from tests.scheduler.campaign import applies
from tests.scheduler.families import make_workload
from tests.scheduler.guarding import guarded
from tests.scheduler.record import Run
from tests.scheduler.simulator import simulate
from tests.scheduler.verdicts import judge

# What runs while vLLM does: rules, ledger, rows, net. Not what registers, reports or logs.
MODULES = (
    *("ledger", "booking", "holding", "pipeline", "placeholder_net", "rows"),
    *("guards/clamp", "guards/stale"),
)
CANNOT_FAIL = re.compile(
    # vLLM's own function, whose errors have to pass, and what ours are caught by.
    r"wrapped\(|failing_open|"
    # What a wrapper does outside of that: it asks whether there is anything to do, and returns.
    r"self\._(ledger|held)\(scheduler(, ledger\) if ledger\.preempted else \(\))?\)?$|"
    r"if (ledger is (not )?None|held|around is None|not finished|ledger\.continued):|"
    r"around = None$|with (around|HeldBack\(.*\)|ExitStack\(\) as stack):|"
    r"for queue, requests, known in self\._taken:|"
    # Asking the rules: what each answers is caught, one by one.
    r"for rules in self\._(rules|answering\[question\]):|if (rules\.)?guard\.active:|try:$|"
    r"self\._ask\(\"hold\", |return \[request for answer in answers|"
    r"guard = rules\.guard$|answers = \[\]$|return answers$|return next\(\(one\.guard|"
    # Constructors that keep what they are given.
    r"self\.\w+(: .*)? = (\w+|\[\])$|"
    r"return (output|result|finished)$"
)
OWN_LINES = OwnLines(MODULES, CANNOT_FAIL)


class Traffic(NamedTuple):
    """A workload.

    Args:
        family: Of workloads.
        seed: Which one.
        depth: As many frames are in flight when one is returned.
        copes: Whether vLLM gets through it without the guards, in whichever release.
    """

    family: str
    seed: int
    depth: int = 2
    copes: bool = True


TRAFFIC = (
    Traffic("quiet", 1),
    Traffic("chunked", 2),
    Traffic("spec-decode", 1),
    Traffic("kv-pressure", 3),
    Traffic("kv-pressure", 3, depth=3, copes=False),
    Traffic("priority", 3, depth=3, copes=False),
    Traffic("reset", 3, copes=False),
    Traffic("aborts", 3, copes=False),
    Traffic("prompt-logprobs", 3, copes=False),
    Traffic("sessions", 3, copes=False),
    Traffic("session-pressure", 3, copes=False),
)


def run(traffic: Traffic) -> Run:
    """Run a workload, with the guards on."""
    return simulate(
        make_workload(traffic.family, traffic.seed, supports_sessions()),
        traffic.seed,
        frames_in_flight=traffic.depth,
        model_runner_v2=False,
        pipeline_stages=pipeline_stages(traffic.depth, False),
    )


def lines_of(traffic: Traffic) -> list[Line]:
    """The lines of ours that a workload runs and that can fail."""
    with guarded("both"), OWN_LINES.noted() as found:
        run(traffic)
    return list(found)


def outcome(traffic: Traffic, line: Line) -> str:
    """Make a line raise the first time; return what went wrong then, empty if nothing."""
    with guarded("both"), OWN_LINES.raising(line) as raised:
        verdict = judge(run(traffic))
    if Injected.__name__ in str(verdict.crash) or (verdict.kinds and traffic.copes):
        return f"{verdict.kinds}: {verdict}"
    return swallowing_problem(raised)


def main() -> None:
    """Try all lines on the vLLM that is imported."""
    import vllm

    found: dict[str, str] = {}
    lines: set[Line] = set()
    for traffic in filter(lambda traffic: applies(traffic.family), TRAFFIC):
        for line in lines_of(traffic):
            if line in lines:
                continue
            lines.add(line)
            problem = outcome(traffic, line)
            if problem:
                found[f"{name_of(line)} ({traffic.family})"] = problem
    print_result({"vllm_file": vllm.__file__, "lines": len(lines), "failures": found})


if __name__ == "__main__":
    main()
