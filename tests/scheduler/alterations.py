"""Changing code at run time, to see whether the simulator notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tests.scheduler.adapter import pipeline_stages, supports_sessions
from tests.scheduler.families import make_workload
from tests.scheduler.simulator import simulate
from tests.scheduler.verdicts import Verdict, judge


@dataclass(frozen=True)
class Alteration:
    """A change, and where it should show.

    `target` is `module:Class.method` or `module:function`; `make` gets the original function and
    returns the altered one. `family`, `depth` and `view` are a workload in which it shows;
    `seeds` are as many seeds as it may need.
    """

    name: str
    target: str
    make: Callable[[Any], Any]
    family: str
    depth: int = 2
    view: str = "v1"
    seeds: int = 60

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the change in place inside the `with` block."""
        module, _, path = self.target.partition(":")
        *owners, name = path.split(".")
        owner: Any = import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        original = vars(owner)[name]
        setattr(owner, name, self.make(original))
        try:
            yield
        finally:
            setattr(owner, name, original)

    def first_failure(self) -> tuple[int, Verdict] | None:
        """The first seed that fails with the change in place, and how."""
        v2 = self.view == "v2"
        with self.applied():
            for seed in range(self.seeds):
                run = simulate(
                    make_workload(self.family, seed, supports_sessions()),
                    seed,
                    frames_in_flight=self.depth,
                    model_runner_v2=v2,
                    pipeline_stages=pipeline_stages(self.depth, v2),
                )
                verdict = judge(run)
                if verdict.kinds:
                    return seed, verdict
        return None


def failures(alterations: Mapping[str, Alteration]) -> dict[str, Any]:
    """For each of `alterations` the first failing seed and its kinds of failure, or none."""
    found: dict[str, Any] = {}
    for name, alteration in alterations.items():
        failure = alteration.first_failure()
        found[name] = failure and {"seed": failure[0], "kinds": failure[1].kinds}
    return found


def by_name(*alterations: Alteration) -> dict[str, Alteration]:
    """The table of `alterations`."""
    return {alteration.name: alteration for alteration in alterations}
