"""The `clamp` guard on real schedulers: what each release does without it, and with it."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from tests.scheduler import judge
from tests.scheduler.experiment import Arm, Symptom
from tests.scheduler.scenarios import SCENARIOS, Scenario

NO_ASSERTION_WITHOUT_PLACEHOLDER = Version("0.33.0")


def scenarios_with(*arms: Arm) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "scenario",
        [
            pytest.param(scenario, id=name)
            for name, scenario in SCENARIOS.items()
            if set(arms) <= set(scenario.arms)
        ],
    )


def outcome_of(result: Any, scenario: Scenario, arm: Arm) -> dict[str, Any]:
    outcome: dict[str, Any] = result["outcomes"][scenario.name][arm.value]
    if arm.guard_mode is not None:
        assert outcome["guard"]["internal_errors"] == []
    return outcome


@scenarios_with(Arm.HEALTHY)
def test_a_healthy_worker_needs_no_guard(result: Any, scenario: Scenario) -> None:
    outcome = outcome_of(result, scenario, Arm.HEALTHY)
    assert judge.symptom_of(scenario, outcome) == Symptom.NONE
    assert judge.wrong_deliveries(scenario, outcome) == []
    assert judge.left_overs(scenario, outcome) == []
    labels = result["labels_per_prompt_logprobs"]
    assert judge.wrong_prompt_logprobs(scenario, outcome, labels, healthy=True) == []


@scenarios_with(Arm.UNGUARDED)
def test_without_the_guard_it_fails_as_reported(result: Any, scenario: Scenario) -> None:
    outcome = outcome_of(result, scenario, Arm.UNGUARDED)
    newer = Version(result["vllm_version"]) >= NO_ASSERTION_WITHOUT_PLACEHOLDER
    expected = (newer and scenario.symptom_from_033) or scenario.symptom
    assert judge.symptom_of(scenario, outcome) == expected
    if expected is Symptom.PLACEHOLDER_ASSERTION:
        module = "scheduler.py" if newer else "async_scheduler.py"
        assert outcome["error"]["where"].split(":")[0] == module


@scenarios_with(Arm.GUARDED)
def test_with_the_guard_every_request_gets_its_tokens(result: Any, scenario: Scenario) -> None:
    outcome = outcome_of(result, scenario, Arm.GUARDED)
    assert judge.symptom_of(scenario, outcome) == Symptom.NONE
    assert judge.wrong_deliveries(scenario, outcome) == []
    assert judge.left_overs(scenario, outcome) == []
    labels = result["labels_per_prompt_logprobs"]
    assert judge.wrong_prompt_logprobs(scenario, outcome, labels, healthy=False) == []
    assert outcome["guard"]["state"] == "applied"
    if scenario.guard_from_frame is None:
        assert outcome["guard"]["effective"] is True


@scenarios_with(Arm.GUARDED)
def test_every_intervention_is_counted_once(result: Any, scenario: Scenario) -> None:
    outcome = outcome_of(result, scenario, Arm.GUARDED)
    expected = judge.expected_triggers(scenario, outcome)
    assert expected, "the fault of this scenario did not take place"
    assert judge.triggers(outcome) == expected


@scenarios_with(Arm.HEALTHY, Arm.GUARDED)
def test_a_fault_leaves_no_mark_on_the_schedule(result: Any, scenario: Scenario) -> None:
    """Guarded, the frames and the counters are those of a run whose worker is healthy."""
    healthy = outcome_of(result, scenario, Arm.HEALTHY)
    guarded = outcome_of(result, scenario, Arm.GUARDED)
    assert guarded["trace"] == healthy["trace"]
    for name, delivered in healthy["requests"].items():
        assert guarded["requests"][name]["counters"] == delivered["counters"]
        assert guarded["requests"][name]["preemptions"] == delivered["preemptions"]


@scenarios_with(Arm.HEALTHY, Arm.HEALTHY_GUARDED)
def test_the_guard_leaves_a_healthy_worker_alone(result: Any, scenario: Scenario) -> None:
    healthy = outcome_of(result, scenario, Arm.HEALTHY)
    guarded = outcome_of(result, scenario, Arm.HEALTHY_GUARDED)
    assert judge.triggers(guarded) == {}
    assert judge.without_guard(guarded) == healthy


@scenarios_with(Arm.UNGUARDED, Arm.OBSERVED)
def test_observing_counts_and_changes_nothing(result: Any, scenario: Scenario) -> None:
    unguarded = outcome_of(result, scenario, Arm.UNGUARDED)
    observed = outcome_of(result, scenario, Arm.OBSERVED)
    assert judge.without_guard(observed) == unguarded
    assert observed["guard"]["state"] == "observing"
    assert judge.triggers(observed)
    actions = {name for counts in observed["guard"]["triggers"].values() for name in counts}
    assert actions == {"observed"}
