"""Many seeds of many families on the vLLM that is imported, with chosen guards: counts only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import vllm_guard
from tests.scheduler.adapter import (
    can_guard_preemption,
    pipeline_stages,
    recovers_preempted,
    supports_sessions,
)
from tests.scheduler.families import (
    PREEMPTING_WITH_DRAFTS,
    WITH_SESSIONS,
    WITHOUT_PREEMPTION,
    make_workload,
)
from tests.scheduler.guarding import guarded
from tests.scheduler.record import Run
from tests.scheduler.simulator import simulate
from tests.scheduler.verdicts import LOST_LOGPROBS, Verdict, judge
from vllm_guard import runtime

EXAMPLES = 3
"""So many failing seeds of each kind are named."""


@dataclass(frozen=True)
class PipelineShape:
    """How frames are kept in flight.

    `depth` is the size of the engine's batch queue: one more than the frames in flight while the
    next is scheduled. `view` is `v1` or `v2`, the model runner.
    """

    depth: int
    view: str

    def __str__(self) -> str:
        return f"{self.view}-depth{self.depth}"


@dataclass
class Tally:
    """What a family did on one pipeline in one arm, over all seeds."""

    runs: int = 0
    failed: int = 0
    only_lost_logprobs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    preemptions: dict[int, int] = field(default_factory=dict)
    """By seed, for runs that did not fail."""
    triggers: Counter[str] = field(default_factory=Counter)
    bogus_rows: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)
    traces: dict[int, int] = field(default_factory=dict)
    """By seed, a hash of the schedule and of what was delivered."""

    def add(self, seed: int, run: Run, verdict: Verdict) -> None:
        """Count one run."""
        self.runs += 1
        self.failed += bool(verdict.kinds)
        self.only_lost_logprobs += verdict.kinds == [LOST_LOGPROBS]
        self.bogus_rows += run.bogus_rows
        self.kinds.update(verdict.kinds)
        if verdict.crash:
            self.crashes[verdict.crash] += 1
        if not verdict.kinds:
            self.preemptions[seed] = run.preemptions
        delivered = [(talk.answers, talk.tokens) for talk in run.conversations]
        self.traces[seed] = hash(repr((run.trace, delivered)))
        for kind in verdict.kinds:
            examples = self.examples.setdefault(kind, [])
            if len(examples) < EXAMPLES:
                examples.append(f"seed {seed}: {_details(verdict, kind)}")

    def to_json(self) -> dict[str, Any]:
        """The counts as plain mappings."""
        return {name: value for name, value in vars(self).items() if value}


def _details(verdict: Verdict, kind: str) -> str:
    details = {
        "crash": verdict.crash,
        "wrong": verdict.wrong,
        LOST_LOGPROBS: verdict.lost_logprobs,
        "stall": "",
        "leak": f"{verdict.leaked} blocks",
        "wrong KV": verdict.wrong_reads,
        "invariant": verdict.problems,
    }
    return f"{details[kind]}"


def run_family(family: str, pipeline: PipelineShape, seeds: Sequence[int]) -> Tally:
    """Run `seeds` of `family` on `pipeline` with whatever guards are on now."""
    tally = Tally()
    v2 = pipeline.view == "v2"
    for seed in seeds:
        workload = make_workload(family, seed, supports_sessions())
        run = simulate(
            workload,
            seed,
            frames_in_flight=pipeline.depth,
            model_runner_v2=v2,
            pipeline_stages=pipeline_stages(pipeline.depth, v2),
        )
        tally.add(seed, run, judge(run))
    return tally


def applies(family: str) -> bool:
    """Whether the imported release can run `family` at all."""
    if family in WITH_SESSIONS and not supports_sessions():
        return False
    if family in PREEMPTING_WITH_DRAFTS and not can_guard_preemption():
        return False
    return family in WITHOUT_PREEMPTION or recovers_preempted()


def run_arm(
    guards: str, families: Sequence[str], pipelines: Sequence[PipelineShape], seeds: Sequence[int]
) -> dict[str, Any]:
    """Run everything in one arm.

    Returns a mapping: `families` (tallies by family and pipeline), `states` of the guards,
    `internal_errors`.
    """
    result: dict[str, Any] = {"families": {}}
    with guarded(guards):
        for family in filter(applies, families):
            tallies = result["families"][family] = {}
            for pipeline in pipelines:
                before = triggers()
                tally = run_family(family, pipeline, seeds)
                tally.triggers = triggers() - before
                tallies[str(pipeline)] = tally.to_json()
        result["states"] = {
            name: guard["state"] for name, guard in vllm_guard.status()["guards"].items()
        }
        result["internal_errors"] = [
            f"{error.guard}: {error.error!r}" for error in runtime.internal_errors
        ]
    return result


def triggers() -> Counter[str]:
    """How often each guard has acted since it was registered, by reason and action."""
    return Counter(
        {
            f"{name}:{reason}:{action}": count
            for name, guard in vllm_guard.status()["guards"].items()
            for reason, actions in guard["triggers"].items()
            for action, count in actions.items()
        }
    )
