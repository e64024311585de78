"""A real server's ``/metrics`` rises in step with the faults that are injected into it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.engine.watched import Watched

pytestmark = pytest.mark.engine

Run = Callable[[str], "Watched"]
WRITING = ["ONE_OF_EACH", "SEVERAL"]


@pytest.fixture(scope="session")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a server of a layout, by its name in `tests.engine.watched`; each once."""
    # Not at the top: a Python without vLLM lacks what it imports.
    from tests.engine import watched

    def once(layout: str) -> Any:
        return watched.watch(model, getattr(watched, layout), tmp_path_factory.mktemp("watched"))

    return cache(once)


@pytest.mark.parametrize("layout", WRITING)
def test_counters_rise_in_step_with_the_faults(run: Run, layout: str) -> None:
    watched = run(layout)
    (before,), *after = watched.scrapes
    assert before.triggers.total() == 0
    assert 0 < watched.counted[0].total() < watched.counted[1].total()
    for scrapes, counted in zip(after, watched.counted, strict=True):
        assert [scrape.triggers for scrape in scrapes] == [counted] * len(scrapes)


@pytest.mark.parametrize("layout", [*WRITING, "NOT_WRITABLE"])
def test_every_request_is_answered(run: Run, layout: str) -> None:
    assert [answer.error for answer in run(layout).answers if answer.error] == []


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("ONE_OF_EACH", {"APIServer", "EngineCore", "Worker_0"}),
        (
            "SEVERAL",
            {"APIServer", "APIServer_0", "APIServer_1", "EngineCore", "Worker_0", "Worker_1"},
        ),
    ],
)
def test_every_process_shows_its_guards(run: Run, layout: str, names: set[str]) -> None:
    watched = run(layout)
    last = watched.scrapes[-1][-1]
    assert set(last.states) == names
    assert last.states["EngineCore"] == dict.fromkeys(("clamp", "stale", "mm_merge"), "applied")
    assert last.states["Worker_0"]["mm_merge"] == "applied"
    assert last.effective["EngineCore", "clamp"]
    assert all(last.effective.values())
    assert last.internal_errors.total() == 0
    shown = {line.split()[2] for line in watched.shown if line.startswith("  pid ")}
    assert shown == names


@pytest.mark.parametrize("layout", WRITING)
def test_the_command_shows_what_was_counted(run: Run, layout: str) -> None:
    watched = run(layout)
    for (_, reason, action), count in watched.counted[-1].items():
        assert any(f"{reason}: {action} {count}, last " in line for line in watched.shown)


@pytest.mark.parametrize("layout", WRITING)
def test_a_server_that_has_stopped_leaves_nothing(run: Run, layout: str) -> None:
    assert [path.name for path in run(layout).left] == []


def test_a_folder_that_cannot_be_written_to_is_reported_and_no_more(run: Run) -> None:
    watched = run("NOT_WRITABLE")
    lines = [line for line in watched.log.splitlines() if "cannot be shown on /metrics" in line]
    assert len(lines) == 3  # API server, EngineCore, worker
    assert watched.counted[-1].total() > 0
    last = watched.scrapes[-1][-1]
    assert set(last.states) == {"APIServer"}
    assert last.triggers.total() == 0
