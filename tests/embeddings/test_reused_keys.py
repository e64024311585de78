"""A cache key that stands for two media, on real schedulers of every release with the guard."""

from __future__ import annotations

from typing import Any

from tests.scheduler.experiment import Arm
from tests.scheduler.matrix import RELEASES

REFUSED_BY_VLLM = RELEASES[RELEASES.index("0.31.0") :]


def scenes(result: Any, arm: Arm) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each scene and what came of it in an arm."""
    return [(scene, scene["arms"][arm.value]) for scene in result["reused_keys"].values()]


def test_without_guard_a_foreign_entry_is_used_and_nobody_is_told(
    release: str, result: Any
) -> None:
    for scene, got in scenes(result, Arm.UNGUARDED):
        assert got["error"] is None
        if release in REFUSED_BY_VLLM:
            assert got["foreign_uses"] == []
        elif scene["wrong"]:
            # The worker answers as if nothing had happened; the merge is what it would die of.
            assert (scene["name"], got["foreign_uses"]) == (scene["name"], scene["wrong"])
            assert got["wrong"] == []


def test_guarded_the_second_request_ends_with_an_error_and_no_other_notices(
    release: str, result: Any
) -> None:
    for scene, got in scenes(result, Arm.GUARDED):
        names = [plan["name"] for plan in scene["plans"]]
        assert got["error"] is None
        assert (scene["name"], got["foreign_uses"]) == (scene["name"], [])
        assert got["wrong"] == scene["wrong"]
        assert got["finished"] == {
            name: "error" if name in scene["wrong"] else "length" for name in names
        }
        assert [got["given"][name] for name in scene["wrong"]] == [0] * len(scene["wrong"])
        assert (got["leaked"], got["left"]) == (0, 0)
        assert got["client"] == scene["client"]


def test_each_refusal_is_counted_once(release: str, result: Any) -> None:
    for scene, got in scenes(result, Arm.GUARDED):
        guard = got["guard"]
        assert guard["internal_errors"] == []
        if release in REFUSED_BY_VLLM:
            assert guard["faults"]["reused-key"]["verdict"] == "fixed"
            assert guard["triggers"] == {}
        else:
            expected = {"reused-key": {"refused": 1}} if scene["wrong"] else {}
            assert (scene["name"], guard["triggers"]) == (scene["name"], expected)


def test_healthy_schedules_are_those_of_unguarded_vllm(result: Any) -> None:
    healthy = [scene for scene, _ in scenes(result, Arm.GUARDED) if not scene["wrong"]]
    assert healthy
    for scene in healthy:
        unguarded = scene["arms"][Arm.UNGUARDED.value]
        for arm in (Arm.GUARDED, Arm.OBSERVED):
            guarded = dict(scene["arms"][arm.value])
            assert guarded.pop("guard")["triggers"] == {}
            assert guarded == unguarded


def test_observing_counts_and_changes_nothing(release: str, result: Any) -> None:
    for scene, got in scenes(result, Arm.OBSERVED):
        assert got == scene["arms"][Arm.UNGUARDED.value] | {"guard": got["guard"]}
        if scene["wrong"] and release not in REFUSED_BY_VLLM:
            assert got["guard"]["triggers"] == {"reused-key": {"observed": 1}}
