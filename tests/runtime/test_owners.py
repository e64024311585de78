"""Targets that are missing, somebody else's, or replaced after us; and the strict mode."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.inside import DEAD, EVERYTHING, RIGHT
from tests.runtime.process import Miniature
from vllm_guard.guards import DEFINITIONS

CLAMP = "vllm_guard.status()['guards']['clamp']"


def test_a_missing_method_is_absent_and_nothing_is_wrapped(miniature: Miniature) -> None:
    """Of the others either; the report says which one is missing."""
    miniature.edit("def _free_request(", "def _let_go_of(")
    outcome = miniature.run(f"""
        import vllm.v1.core.sched.scheduler
        vllm_guard.register()
        names = ("schedule", "update_from_output")
        found = [hasattr(function, "__wrapped__") for function in attributes(names)]
        report([state(), {CLAMP}["verdict"], {CLAMP}["detail"], found, serve()])
    """)
    assert outcome.result == [
        "skipped",
        "absent",
        "vllm.v1.core.sched.scheduler:Scheduler._free_request does not exist",
        [False, False],
        DEAD,
    ]


def test_a_missing_class_is_absent_without_a_traceback(miniature: Miniature) -> None:
    """A release without a ``Scheduler`` has nothing to guard and nothing to report as broken."""
    miniature.path().write_text("class Planner:\n    pass\n")
    outcome = miniature.run(f"""
        vllm_guard.register()
        import vllm.v1.core.sched.scheduler
        report([state(), {CLAMP}["verdict"]])
    """)
    assert outcome.result == ["skipped", "absent"]


def test_a_vendor_s_override_before_us_is_foreign(miniature: Miniature, vendor: Path) -> None:
    """Theirs stays exactly as it is, nothing else is wrapped, and a warning says why."""
    outcome = miniature.run(
        f"""
        import vendor
        vendor.replace()
        vllm_guard.register()
        left = attributes()[1] is vendor.schedule
        before = wrapped()
        report([left, before, serve(), state(), {CLAMP}["verdict"]])
        """,
        paths=(vendor,),
    )
    assert outcome.result == [True, ["__init__"], DEAD, "skipped", "foreign"]
    lines = outcome.lines("WARNING")
    # The methods of mm_merge are not there in the miniature.
    assert len(lines) == len(DEFINITIONS) - 1
    for line in lines:
        assert "Scheduler.schedule was replaced by vendor:schedule" in line


def test_a_vendor_s_override_is_wrapped_when_forced(miniature: Miniature, vendor: Path) -> None:
    """The user knows that it calls the original."""
    outcome = miniature.run(
        f"""
        import vendor
        vendor.replace()
        vllm_guard.register()
        report([serve(), state(), {CLAMP}["verdict"]])
        """,
        paths=(vendor,),
        VLLMGUARD_CLAMP="force",
    )
    assert outcome.result == [RIGHT, "applied", "foreign"]


def test_a_replacement_after_us_is_reported_once(miniature: Miniature, vendor: Path) -> None:
    """When a Scheduler is built: not effective, one warning for the class, however many are."""
    outcome = miniature.run(
        """
        vllm_guard.register()
        import vendor
        from vllm.v1.core.sched.scheduler import Scheduler
        vendor.schedule.__globals__["original"] = lambda self: None
        vendor.replace()
        before = effective()
        Scheduler(); Scheduler()
        report([before, effective(), state()])
        """,
        paths=(vendor,),
    )
    assert outcome.result == [None, False, "applied"]
    (line,) = outcome.lines("WARNING")
    assert "clamp does not act on Scheduler" in line
    assert "Scheduler.schedule was replaced by vendor:schedule" in line


def test_unpatching_below_a_later_wrapper(miniature: Miniature) -> None:
    """Theirs stays and ours does nothing any more, until it is registered again."""
    outcome = miniature.run("""
        import functools
        from vllm.v1.core.sched.scheduler import Scheduler
        vllm_guard.register()
        for name in ("schedule", "update_from_output"):
            def trace(self, *args, ours=vars(Scheduler)[name]):
                return ours.__get__(self)(*args)
            setattr(Scheduler, name, functools.wraps(vars(Scheduler)[name])(trace))
        guarded = serve()
        theirs = attributes()[1:3]
        vllm_guard.unpatch()
        kept = [now is then for now, then in zip(attributes()[1:3], theirs)]
        dead = serve()
        vllm_guard.register()
        report([guarded, kept, dead, state(), serve()])
    """)
    assert outcome.result == [RIGHT, [True, True], DEAD, "applied", RIGHT]
    assert len([line for line in outcome.lines("WARNING") if "by somebody else" in line]) == 2


def test_another_tool_that_puts_the_original_back_is_reported(miniature: Miniature) -> None:
    """Its undo has taken ours out; "applied" alone would be untrue."""
    outcome = miniature.run("""
        from vllm.v1.core.sched.scheduler import Scheduler
        original = vars(Scheduler)["schedule"]
        vllm_guard.register()
        Scheduler.schedule = original
        Scheduler()
        report(effective())
    """)
    assert outcome.result is False
    assert len(outcome.lines("WARNING")) == 1


def test_an_untouched_process_is_effective_without_a_warning(miniature: Miniature) -> None:
    """For the class itself and for a subclass that calls it."""
    outcome = miniature.run("""
        vllm_guard.register()
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        class Vendors(AsyncScheduler):
            def schedule(self):
                return super().schedule()
        report([serve(), effective(), serve(Vendors), effective()])
    """)
    assert outcome.result == [RIGHT, True, RIGHT, True]
    assert not [line for line in outcome.lines("WARNING") if "does not act" in line]


def test_a_custom_scheduler_that_does_not_call_us_is_reported(miniature: Miniature) -> None:
    """By its own name; the guard still acts on others."""
    outcome = miniature.run("""
        vllm_guard.register()
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        original = vars(sys.modules[SCHEDULER].Scheduler)["update_from_output"].__wrapped__
        class Vendors(AsyncScheduler):
            def update_from_output(self, *args):
                return original(self, *args)
        report([serve(Vendors), effective()])
    """)
    assert outcome.result == [DEAD, False]
    (line,) = [line for line in outcome.lines("WARNING") if "does not act" in line]
    assert "clamp does not act on Vendors" in line


def test_the_synchronous_scheduler_is_guarded_too(miniature: Miniature) -> None:
    """There the wrong tokens would be delivered."""
    outcome = miniature.run("""
        from vllm.v1.core.sched.scheduler import Scheduler
        unguarded = serve(Scheduler)
        vllm_guard.register()
        report([unguarded, serve(Scheduler, frames=3)])
    """)
    assert outcome.result == [EVERYTHING, [2]]


def test_a_build_with_the_fix_is_left_alone(miniature: Miniature) -> None:
    """Retired: nothing is wrapped, the construction of a Scheduler included."""
    outcome = miniature.run("""
        from vllm_guard.states import Finding, Verdict
        definition = vllm_guard.runtime.DEFINITIONS[0]
        fixed = {fault: Finding(Verdict.FIXED, "refused") for fault in definition.faults}
        vllm_guard.runtime.DEFINITIONS = (definition._replace(probe=lambda *_: fixed),)
        vllm_guard.register()
        import vllm.v1.core.sched.scheduler
        report([state(), wrapped()])
    """)
    assert outcome.result == ["retired", []]
