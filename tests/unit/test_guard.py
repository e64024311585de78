"""One guard from looking at a module to letting go of it, and how it fails."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import pytest

from tests.runtime.swallowed import SwallowedErrors
from tests.unit.stand_ins import (
    MODULE,
    SCHEDULE,
    UPDATE,
    call_through,
    finds,
    make_guard,
    make_module,
)
from vllm_guard.guard import MAX_INTERNAL_ERRORS, Guard
from vllm_guard.states import Finding, Mode, State, Verdict
from vllm_guard.targets import Target


@pytest.fixture
def module() -> ModuleType:
    """The stand-in module, untouched."""
    return make_module()


def functions(module: ModuleType) -> dict[str, Any]:
    """Return the objects in the class's dictionary."""
    return {name: vars(module.Scheduler)[name] for name in ("schedule", "update")}


def unchanged(module: ModuleType, before: dict[str, Any]) -> bool:
    """Say whether the objects are the same ones; a wrapper equals what it wraps."""
    return all(now is before[name] for name, now in functions(module).items())


def test_a_guard_that_is_needed_wraps_all_its_targets(module: ModuleType) -> None:
    """And says so."""
    before, guard = functions(module), make_guard()
    guard.consider(module)
    assert (guard.state, guard.verdict, guard.active) == (State.APPLIED, Verdict.NEEDED, True)
    for name, function in functions(module).items():
        assert function is not before[name]
        assert function.__wrapped__ is before[name]


def test_unwrapping_restores_the_exact_objects(module: ModuleType) -> None:
    """And the guard is off."""
    before, guard = functions(module), make_guard()
    guard.consider(module)
    guard.unwrap()
    assert unchanged(module, before)
    assert guard.state is State.OFF


def test_a_target_that_is_only_looked_at_is_never_replaced(module: ModuleType) -> None:
    """It is judged like the others."""
    before = functions(module)
    guard = make_guard(targets=(SCHEDULE, Target(MODULE, UPDATE.path, ("self",), wrapped=False)))
    guard.consider(module)
    assert guard.state is State.APPLIED
    assert functions(module)["update"] is before["update"]
    assert functions(module)["schedule"] is not before["schedule"]


STATES_BY_VERDICT = [
    (Verdict.NEEDED, State.APPLIED, State.APPLIED),
    (Verdict.FIXED, State.RETIRED, State.APPLIED),
    (Verdict.UNKNOWN, State.SKIPPED, State.APPLIED),
    (Verdict.FOREIGN, State.SKIPPED, State.APPLIED),
    (Verdict.ABSENT, State.SKIPPED, State.SKIPPED),
]


@pytest.mark.parametrize(("verdict", "auto", "force"), STATES_BY_VERDICT)
def test_what_a_verdict_leads_to(verdict: Verdict, auto: State, force: State) -> None:
    """Only what is needed is wrapped, everything that exists when forced."""
    for mode, expected in ((Mode.AUTO, auto), (Mode.FORCE, force)):
        module = make_module()
        before, guard = functions(module), make_guard(mode, probe=finds(verdict))
        guard.consider(module)
        assert (guard.state, guard.verdict) == (expected, verdict)
        assert unchanged(module, before) is (expected is not State.APPLIED)


def test_a_call_may_outlive_its_guard(module: ModuleType) -> None:
    """One that another thread was in when the guard was unwrapped: there is no fault any more."""
    guard = make_guard()
    guard.consider(module)
    assert guard.answers("fault")
    guard.unwrap()
    assert not guard.answers("fault")


def test_a_target_that_is_refused_keeps_the_others_unwrapped(module: ModuleType) -> None:
    """All or nothing, and the report says which and why."""
    module.Scheduler.update = lambda self, output: None
    before, guard = functions(module), make_guard()
    guard.consider(module)
    assert (guard.state, guard.verdict) == (State.SKIPPED, Verdict.FOREIGN)
    assert f"{MODULE}:Scheduler.update was replaced by {__name__}:" in guard.detail
    assert unchanged(module, before)


def test_a_foreign_target_counts_for_more_than_an_absent_one() -> None:
    """What somebody did to the class is reported first."""
    module = make_module("class Scheduler:\n    def schedule(self): pass")
    module.Scheduler.schedule = lambda self: None
    guard = make_guard(targets=(UPDATE, SCHEDULE))
    guard.consider(module)
    assert guard.verdict is Verdict.FOREIGN


def test_a_forced_guard_wraps_what_somebody_replaced(module: ModuleType) -> None:
    """The user said so."""
    module.Scheduler.update = lambda self, output: ("theirs", output)
    guard = make_guard(Mode.FORCE)
    guard.consider(module)
    assert guard.state is State.APPLIED
    assert module.Scheduler().update(1) == ("theirs", 1)


def test_a_forced_guard_cannot_wrap_what_is_not_there() -> None:
    """Nothing is half wrapped for trying."""
    module = make_module("class Scheduler:\n    def schedule(self): pass")
    before, guard = vars(module.Scheduler)["schedule"], make_guard(Mode.FORCE)
    guard.consider(module)
    assert guard.state is State.SKIPPED
    assert vars(module.Scheduler)["schedule"] is before


def test_a_probe_that_fails_makes_the_verdict_unknown(module: ModuleType) -> None:
    """The error is the evidence, for each fault."""

    def probe(_module: ModuleType, _loaded: Any) -> Any:
        raise RuntimeError("no such shape")

    before, guard = functions(module), make_guard(probe=probe, faults=("one", "two"))
    guard.consider(module)
    assert (guard.state, guard.verdict) == (State.SKIPPED, Verdict.UNKNOWN)
    assert set(guard.findings) == {"one", "two"}
    assert "no such shape" in guard.detail
    assert unchanged(module, before)


def test_the_worst_verdict_of_its_faults_is_the_guard_s_own(module: ModuleType) -> None:
    """One fault of a shape we do not know is enough to stay away."""
    findings = {
        "one": Finding(Verdict.NEEDED, "raises"),
        "two": Finding(Verdict.UNKNOWN, "takes (x)"),
    }
    guard = make_guard(faults=("one", "two"), probe=lambda *_: findings)
    guard.consider(module)
    assert (guard.state, guard.verdict) == (State.SKIPPED, Verdict.UNKNOWN)
    assert guard.detail == "raises; takes (x)"


def test_a_wrapping_that_fails_half_way_is_rolled_back(module: ModuleType) -> None:
    """Here the second target has no wrapper."""
    before = functions(module)
    guard = make_guard(wrappers=lambda _guard: {SCHEDULE.path: call_through})
    guard.consider(module)
    assert guard.state is State.FAILED
    assert "wrapping failed and was undone" in guard.detail
    assert unchanged(module, before)
    assert guard.obstacles(module.Scheduler, MODULE) == []


def test_observing_wraps_and_says_that_it_only_observes(module: ModuleType) -> None:
    """The wrappers are the same; they ask ``observes``."""
    guard = make_guard(Mode.OBSERVE)
    guard.consider(module)
    assert (guard.state, guard.active, guard.observes) == (State.OBSERVING, True, True)


def test_a_later_wrapper_stays_when_ours_goes(
    module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours below it is told to do nothing, and a line says what is left."""
    guard = make_guard()
    guard.consider(module)
    ours = vars(module.Scheduler)["update"]
    module.Scheduler.update = lambda self, output: ours.__get__(self)(output)
    guard.unwrap()
    assert "Scheduler.update has been wrapped by somebody else" in caplog.text
    assert not guard.active
    assert module.Scheduler().update(1) == 1


class CountingGuard:
    """A guard whose wrapper fails each time before it calls through, as `Clamp`'s do."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.entered = 0
        self.guard: Guard = make_guard(wrappers=self._wrappers)

    def _wrappers(self, guard: Guard) -> dict[str, Any]:
        def wrapper(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
            if guard.active:
                with guard.failing_open:
                    self.entered += 1
                    raise self.error
            return wrapped(*args, **kwargs)

        return {SCHEDULE.path: wrapper, UPDATE.path: wrapper}


def test_errors_of_ours_are_swallowed_and_disarm_the_guard_after_some(
    module: ModuleType, caplog: pytest.LogCaptureFixture, swallowed_errors: SwallowedErrors
) -> None:
    """Each call returns what vLLM returns; the first error is logged, and the disarming."""
    counting = CountingGuard(RuntimeError("ours"))
    counting.guard.consider(module)
    scheduler = module.Scheduler()
    calls = MAX_INTERNAL_ERRORS + 3
    assert [scheduler.update(number) for number in range(calls)] == list(range(calls))
    assert module.calls == list(range(calls))
    assert counting.entered == counting.guard.error_count == MAX_INTERNAL_ERRORS
    assert counting.guard.state is State.DISARMED
    assert "ours" in counting.guard.detail
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "disarmed after 5 internal errors" in caplog.messages[1]
    assert swallowed_errors.take()


def test_an_error_of_vllm_passes_through_untouched(module: ModuleType) -> None:
    """The same object, from one call, counted as nobody's fault."""
    guard, error = make_guard(), ValueError("vLLM's own")
    guard.consider(module)
    with pytest.raises(ValueError, match="vLLM's own") as raised:
        module.Scheduler().update(error)
    assert raised.value is error
    assert module.calls == [error]
    assert guard.error_count == 0


def test_an_interruption_is_not_an_error_of_ours(module: ModuleType) -> None:
    """Ctrl-C in our code ends the process like anywhere else."""
    counting = CountingGuard(KeyboardInterrupt())
    counting.guard.consider(module)
    with pytest.raises(KeyboardInterrupt):
        module.Scheduler().update(1)
    assert counting.guard.error_count == 0


def test_remembered_errors_do_not_grow_without_end(swallowed_errors: SwallowedErrors) -> None:
    """The count goes on, the memory does not."""
    guard = make_guard()
    errors = [RuntimeError(number) for number in range(150)]
    for error in errors:
        guard.swallow(error)
    assert guard.error_count == 150
    assert swallowed_errors.take() == errors[:100]


def test_a_guard_that_is_off_has_looked_at_nothing() -> None:
    """Its verdict was not asked for."""
    guard = make_guard(Mode.OFF)
    assert (guard.state, guard.verdict, guard.active) == (State.OFF, None, False)


def test_a_guard_describes_itself_in_plain_words(module: ModuleType) -> None:
    """What status prints and metrics export."""
    guard = make_guard()
    guard.consider(module)
    guard.counters.record("fault", "blanked", "request r")
    described = guard.as_dict({})
    assert time.time() - 60 < described.pop("last_triggers")["fault"] <= time.time()
    assert described == {
        "mode": "auto",
        "verdict": "needed",
        "state": "applied",
        "effective": None,
        "obstacles": [],
        "detail": "the probe says needed",
        "faults": {"fault": {"verdict": "needed", "evidence": "the probe says needed"}},
        "triggers": {"fault": {"blanked": 1}},
        "internal_errors": 0,
    }
