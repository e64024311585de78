"""`VLLMGUARD_STRICT=1`: what is not guarded does not start, and `register()` never raises."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.process import Miniature

STRICT = {"VLLMGUARD_STRICT": "1"}
BUILD = """
        from vllm.v1.core.sched.scheduler import Scheduler
        try:
            Scheduler()
            built = "built"
        except vllm_guard.runtime.NotGuardedError as error:
            built = str(error)
"""


def test_strict_lets_a_guarded_scheduler_start(miniature: Miniature) -> None:
    """Nothing is missing, so nothing is raised."""
    outcome = miniature.run(f"        vllm_guard.register(){BUILD}        report(built)", **STRICT)
    assert outcome.result == "built"


def test_strict_stops_a_scheduler_that_is_not_guarded(miniature: Miniature, vendor: Path) -> None:
    """At its construction; register() and the import go through as always."""
    outcome = miniature.run(
        f"""
        import vendor
        vendor.replace()
        vllm_guard.register(){BUILD}        report([state(), built])
        """,
        paths=(vendor,),
        **STRICT,
    )
    registered, message = outcome.result
    assert registered == "skipped"
    for part in ("VLLMGUARD_STRICT=1", "clamp", "vendor:schedule", "Unset VLLMGUARD_STRICT"):
        assert part in message


def test_strict_stops_when_we_were_replaced(miniature: Miniature, vendor: Path) -> None:
    """Applied is not enough where the wrapper is no longer what Python finds."""
    outcome = miniature.run(
        f"""
        vllm_guard.register()
        import vendor
        vendor.original = None
        vendor.replace(){BUILD}        report(built)
        """,
        paths=(vendor,),
        **STRICT,
    )
    assert "was replaced by vendor:schedule" in outcome.result


def test_strict_stops_when_a_switch_cannot_be_read(miniature: Miniature) -> None:
    """The user meant something else than the default."""
    outcome = miniature.run(
        f"        vllm_guard.register(){BUILD}        report(built)",
        VLLMGUARD_CLAMP="fource",
        **STRICT,
    )
    assert "VLLMGUARD_CLAMP='fource'" in outcome.result


def test_strict_accepts_switches_of_guards_that_are_not_here_yet(miniature: Miniature) -> None:
    """A deployment that is written once for all guards can be strict today."""
    outcome = miniature.run(
        f"        vllm_guard.register(){BUILD}        report(built)",
        VLLMGUARD_STALE="off",
        VLLMGUARD_STATE_DIR="/run/vllm-guard",
        **STRICT,
    )
    assert outcome.result == "built"


def test_strict_stops_when_looking_failed(miniature: Miniature) -> None:
    """A guard that could not even look does not guard."""
    outcome = miniature.run(
        f"""
        import vllm_guard.definition
        def fail(*args):
            raise RuntimeError("ours")
        vllm_guard.definition.judge = fail
        vllm_guard.register(){BUILD}        report(built)
        """,
        swallows=True,
        **STRICT,
    )
    assert "clamp" in outcome.result


def test_without_strict_the_same_scheduler_starts(miniature: Miniature, vendor: Path) -> None:
    """Unguarded is the operator's risk unless they say otherwise."""
    outcome = miniature.run(
        f"""
        import vendor
        vendor.replace()
        vllm_guard.register(){BUILD}        report(built)
        """,
        paths=(vendor,),
    )
    assert outcome.result == "built"
