"""Programs that use vLLM without a server, in each way of starting its processes.

The metrics are those of the program's own process, in prometheus_client's global registry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.engine.offline import Program

pytestmark = pytest.mark.engine

Run = Callable[[str], "Program"]
LAYOUTS = ["SEVERAL_PROCESSES", "IN_PROCESS"]


@pytest.fixture(scope="session")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of a layout, by its name in `tests.engine.offline`; each once."""
    # Not at the top: a Python without vLLM lacks what it imports.
    from tests.engine import offline

    def once(layout: str) -> Any:
        return offline.run(model, getattr(offline, layout), tmp_path_factory.mktemp("offline"))

    return cache(once)


def test_every_request_is_answered_and_by_all_engines_alike(run: Run) -> None:
    from tests.engine.load import mixed_rounds

    engines = [*run("SEVERAL_PROCESSES").answers, *run("IN_PROCESS").answers]
    assert len(engines) == 3
    assert list(map(len, engines[0])) == [request.max_tokens for request in mixed_rounds()[0]]
    assert engines[1:] == engines[:1] * 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_injected_token_is_on_the_metrics(run: Run, layout: str) -> None:
    program = run(layout)
    assert program.injected > 0
    counted = program.serving[-1].triggers
    assert counted.total() == program.injected
    # Where the frame of a prompt's end was in flight already, it is the other fault.
    assert {trigger[0] for trigger in counted} == {"clamp"}
    assert program.serving[-1].internal_errors.total() == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_outlive_their_processes(run: Run, layout: str) -> None:
    """Those of a killed engine too; a second engine's are added."""
    program = run(layout)
    assert [scrape.triggers for scrape in program.ended] == [s.triggers for s in program.serving]
    totals = [scrape.triggers.total() for scrape in program.serving]
    assert totals == sorted(set(totals))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_guards_are_in_force_where_the_scheduler_is(run: Run, layout: str) -> None:
    where = "LLM" if layout == "IN_PROCESS" else "EngineCore"
    for scrape in run(layout).serving:
        assert scrape.states[where]["clamp"] == "applied"
        assert scrape.effective[where, "clamp"]
        assert all(scrape.effective.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_that_has_ended_leaves_nothing(run: Run, layout: str) -> None:
    assert run(layout).left == []
