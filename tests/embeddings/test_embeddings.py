"""One bad item among good ones, in real gather and merge code of every release with the fault."""

from __future__ import annotations

from typing import Any

from tests.releases.isolated import INSTALLED
from tests.scheduler.matrix import RELEASES

RAISED = "Attempted to assign"
SILENT_ONE_ROW = RELEASES[RELEASES.index("0.20.0") :]


def scenes(result: Any) -> list[dict[str, Any]]:
    """Each scene on each runner in each dtype that the release can do at all."""
    return [
        {"place": place} | found
        for place, results in result["gather"]["results"].items()
        for found in results
        if "unsupported" not in found
    ]


def test_guarded_every_other_item_is_as_if_nothing_had_happened(result: Any) -> None:
    """And the bad one is padded or zeros, and counted once, whatever the size of the chunks."""
    guard = result["gather"]["guard"]
    assert (guard["state"], guard["internal_errors"]) == ("applied", [])
    wrong = [scene for scene in scenes(result) if scene["found"]]
    assert wrong == []


def test_without_guard_the_whole_batch_fails_as_reported(result: Any) -> None:
    """In the step in which the rows run out; long items are cut by vLLM itself."""
    for scene in scenes(result):
        if scene["scene"] in ("long", "healthy"):
            assert (scene["error"], scene["silent"]) == ("", False)
        elif scene["chunk"] == 1000 and scene["scene"] != "alone":
            assert RAISED in scene["error"], scene


def test_without_guard_a_single_row_is_spread_in_silence_from_020_on(
    release: str, result: Any
) -> None:
    """Over all placeholders of the step, without an error."""
    is_silent = release == INSTALLED or release in SILENT_ONE_ROW
    found = [s for s in scenes(result) if s["scene"] == "alone" and s["chunk"] == 1000]
    assert found
    for scene in found:
        assert (scene["silent"], RAISED in scene["error"]) == (is_silent, not is_silent)


def test_random_batches(result: Any) -> None:
    """Any requests, any shortages, any chunks."""
    assert result["gather"]["random"] == {
        runner: [] for runner in dict.fromkeys(s["place"].split()[0] for s in scenes(result))
    }


def test_where_vllm_raises_all_is_put_back(result: Any) -> None:
    """Its own exception passes through, and no private identifier is left."""
    for found in result["gather"]["failing"].values():
        assert found["unguarded"]
        assert found["guarded"] == found["unguarded"]
        assert found["changed"] == []
