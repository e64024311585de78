"""One bad item among good ones, in real gather and merge code of every release with the fault."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.releases.isolated import INSTALLED, run_isolated
from tests.scheduler.matrix import RELEASES

RAISED = "Attempted to assign"
GUARDED = RELEASES[RELEASES.index("0.13.0") :]
SILENT_ONE_ROW = RELEASES[RELEASES.index("0.20.0") :]
TIMEOUT_SECONDS = 300

EACH_RELEASE = pytest.mark.parametrize(
    "release",
    [
        INSTALLED,
        *(pytest.param(release, marks=pytest.mark.releases) for release in GUARDED),
    ],
)


@cache
def outcome(release: str) -> Any:
    """What all scenes gave on a release."""
    return run_isolated(release, ["-m", "tests.embeddings.cases"], timeout=TIMEOUT_SECONDS)


def scenes(release: str) -> list[dict[str, Any]]:
    """Each scene on each runner in each dtype that the release can do at all."""
    return [
        {"place": place} | found
        for place, results in outcome(release)["results"].items()
        for found in results
        if "unsupported" not in found
    ]


@EACH_RELEASE
def test_guarded_every_other_item_is_as_if_nothing_had_happened(release: str) -> None:
    """And the bad one is padded or zeros, and counted once, whatever the size of the chunks."""
    result = outcome(release)
    assert result["state"] == "applied"
    assert result["internal_errors"] == []
    wrong = [scene for scene in scenes(release) if scene["found"]]
    assert wrong == []


@EACH_RELEASE
def test_without_guard_the_whole_batch_fails_as_reported(release: str) -> None:
    """In the step in which the rows run out; long items are cut by vLLM itself."""
    for scene in scenes(release):
        if scene["scene"] in ("long", "healthy"):
            assert (scene["error"], scene["silent"]) == ("", False)
        elif scene["chunk"] == 1000 and scene["scene"] != "alone":
            assert RAISED in scene["error"], scene


@EACH_RELEASE
def test_without_guard_a_single_row_is_spread_in_silence_from_020_on(release: str) -> None:
    """Over all placeholders of the step, without an error."""
    is_silent = release == INSTALLED or release in SILENT_ONE_ROW
    found = [s for s in scenes(release) if s["scene"] == "alone" and s["chunk"] == 1000]
    assert found
    for scene in found:
        assert (scene["silent"], RAISED in scene["error"]) == (is_silent, not is_silent)


@EACH_RELEASE
def test_random_batches(release: str) -> None:
    """Any requests, any shortages, any chunks."""
    assert outcome(release)["random"] == {
        runner: [] for runner in dict.fromkeys(s["place"].split()[0] for s in scenes(release))
    }
