"""The net in the merge, names that other modules bound, and a merge that is not wrapped."""

from __future__ import annotations

from typing import Any

from tests.embeddings.places import PLACES, TEXT
from tests.releases.isolated import INSTALLED
from tests.scheduler.matrix import RELEASES

RAISED = "Attempted to assign"
SILENT_ONE_ROW = RELEASES[RELEASES.index("0.20.0") :]
WITH_SOUND_IN_VIDEO = RELEASES[RELEASES.index("0.16.0") :]


def placed(rows: list[float]) -> list[float]:
    """The batch with these rows at its placeholders."""
    batch = [TEXT] * 8
    for place, row in zip(PLACES, rows, strict=True):
        batch[place] = row
    return batch


def test_healthy_items_are_merged_as_without_the_guard(result: Any) -> None:
    unguarded, guarded = result["merges"]["unguarded"], result["merges"]["guarded"]
    for name in (name for name in unguarded if name.startswith("healthy")):
        assert unguarded[name]["error"] == ""
        assert guarded[name] == unguarded[name]


def test_without_guard_a_single_item_fails_the_merge_or_is_spread(
    release: str, result: Any
) -> None:
    unguarded = result["merges"]["unguarded"]
    assert RAISED in unguarded["short"]["error"]
    assert unguarded["wrong-hidden-size"].get("error") or release not in SILENT_ONE_ROW
    if release == INSTALLED or release in SILENT_ONE_ROW:
        assert unguarded["one-row"]["rows"] == placed([1.0] * 6)
    else:
        assert RAISED in unguarded["one-row"]["error"]


def test_guarded_a_single_item_is_made_to_fit(result: Any) -> None:
    guarded = result["merges"]["guarded"]
    for name, rows in {
        "short": [1.0, 2.0, 3.0, 4.0, 0.0, 0.0],
        "long": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "one-row": [0.0] * 6,
        "wrong-hidden-size": [0.0] * 6,
    }.items():
        assert guarded[name] == {"error": "", "rows": placed(rows), "triggers": 1}


def test_of_several_items_none_is_blamed_and_vllm_raises(result: Any) -> None:
    unguarded, guarded = result["merges"]["unguarded"], result["merges"]["guarded"]
    for name in ("two-short", "two-long"):
        assert guarded[name] == unguarded[name]
        assert guarded[name]["triggers"] == 0


def test_names_bound_by_import_reach_the_guard_and_get_their_original_back(result: Any) -> None:
    aliases = result["merges"]["aliases"]
    assert aliases["wrapped"]
    for module in ("before", "after"):
        assert aliases[module]["rows"] == placed([1.0, 2.0, 3.0, 4.0, 5.0, 0.0])
        assert aliases[module]["triggers"] == 1
    assert aliases["restored"] == [True, True, True]


def test_the_gather_repair_covers_a_merge_that_is_not_wrapped(release: str, result: Any) -> None:
    """Qwen2.5-Omni's, where sound and video take turns; not in every release."""
    found = result["merges"]["interleaved"]
    assert bool(found) == (release == INSTALLED or release in WITH_SOUND_IN_VIDEO)
    if found:
        assert found["healthy"] == ""
        assert found["unguarded"]
        assert (found["guarded"], found["triggers"]) == ([], 1)


def test_no_error_of_our_own(result: Any) -> None:
    assert result["merges"]["guard"]["internal_errors"] == []
