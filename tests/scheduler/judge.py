"""Judges an outcome against what its scenario expects. Nothing is compared with a recorded result.

Each function returns what is wrong, in words; nothing wrong is an empty list.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.scheduler.experiment import EARLY_LOGPROBS, FINAL_LOGPROBS, Symptom
from tests.scheduler.oracle import RequestPlan
from tests.scheduler.scenarios import Scenario

ASSERTIONS = (
    Symptom.PLACEHOLDER_ASSERTION,
    Symptom.LOGPROBS_ASSERTION,
    Symptom.STATISTICS_ASSERTION,
)


def symptom_of(scenario: Scenario, outcome: dict[str, Any]) -> Symptom | str:
    """Which symptom `outcome` shows; a description if it is none that we know."""
    error = outcome["error"]
    if error is None:
        return _symptom_without_error(scenario, outcome)
    if error["type"] == "AssertionError":
        for symptom in ASSERTIONS:
            if symptom.value in error["source"]:
                return symptom
    if error["type"] == "NoProgress":
        return Symptom.NEVER_SCHEDULED
    return f"{error['type']} at {error['where']}: {error['message']}"


def wrong_deliveries(scenario: Scenario, outcome: dict[str, Any]) -> list[str]:
    """Requests that did not get exactly their tokens and their finish reason."""
    return [
        f"{plan.name} got {delivered['tokens']} ({delivered['finish_reason']}), "
        f"expected {plan.expected_tokens()} ({plan.expected_finish_reason()})"
        for plan, delivered in _deliveries(scenario, outcome)
        if delivered["tokens"] != plan.expected_tokens()
        or delivered["finish_reason"] != plan.expected_finish_reason()
    ]


def wrong_prompt_logprobs(
    scenario: Scenario, outcome: dict[str, Any], labels: int, healthy: bool
) -> list[str]:
    """Requests whose prompt logprobs did not come exactly once, the newest, with the first token.

    `labels` is how many labels one delivery has in this release.
    """
    only_early = scenario.faults.no_final_logprobs and not healthy
    label = EARLY_LOGPROBS if only_early else FINAL_LOGPROBS
    problems = []
    for plan, delivered in _deliveries(scenario, outcome):
        expected = [[label, 0]] * labels if plan.prompt_logprobs else []
        if delivered["prompt_logprobs"] != expected:
            problems.append(f"{plan.name} got {delivered['prompt_logprobs']}, expected {expected}")
    return problems


def left_overs(scenario: Scenario, outcome: dict[str, Any]) -> list[str]:
    """What a scheduler that has become idle still holds, and frames it could not have computed."""
    before, after = outcome["free_blocks_before"], outcome["free_blocks_after"]
    problems = [*outcome["frames_without_room"], *outcome["gaps"]]
    if before != after:
        problems.append(f"{before} free KV blocks before, {after} after")
    if outcome["unfinished_requests"]:
        problems.append(f"{outcome['unfinished_requests']} requests are not finished")
    for plan, delivered in _deliveries(scenario, outcome):
        # vLLM trims accepted drafts beyond the limit and leaves their placeholders.
        settled = not (delivered["in_flight_at_finish"] or scenario.setup.draft_tokens)
        problems += [
            f"{plan.name}: {counter} is {value}"
            for counter, value in delivered["counters"].items()
            if value < 0 or (value and settled)
        ]
    return problems


def expected_triggers(scenario: Scenario, outcome: dict[str, Any]) -> dict[str, int]:
    """How often the guard must act, by reason: once for each row that the worker filled wrongly."""
    expected = Counter(outcome["bogus_rows"]) + Counter(scenario.own_triggers)
    if scenario.faults.early_logprobs_alone:
        expected["prompt-logprobs"] += sum(plan.prompt_logprobs for plan in scenario.plans)
    return dict(expected)


def triggers(outcome: dict[str, Any]) -> dict[str, int]:
    """How often the guard acted, by reason."""
    by_reason = outcome["guard"]["triggers"]
    counts = {reason: sum(actions.values()) for reason, actions in by_reason.items()}
    return {reason: count for reason, count in counts.items() if count}


def without_guard(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome less what the guard says of itself: all that a client or the engine can see."""
    return {name: value for name, value in outcome.items() if name != "guard"}


def _symptom_without_error(scenario: Scenario, outcome: dict[str, Any]) -> Symptom | str:
    symptom = Symptom.NONE
    for plan, delivered in _deliveries(scenario, outcome):
        expected = plan.expected_tokens()
        foreign = set(delivered["tokens"]) - set(expected)
        lost = set(expected) - set(delivered["tokens"])
        # A foreign token uses up one of max_tokens; before a stop token there is room for both.
        explained = bool(lost) == bool(foreign) if plan.stops_after is None else foreign or not lost
        if not explained:
            return f"{plan.name} got {delivered['tokens']}, expected {expected}"
        if foreign:
            symptom = Symptom.WRONG_TOKENS
    return symptom


def _deliveries(
    scenario: Scenario, outcome: dict[str, Any]
) -> list[tuple[RequestPlan, dict[str, Any]]]:
    return [(plan, outcome["requests"][plan.name]) for plan in scenario.finishing_plans]
