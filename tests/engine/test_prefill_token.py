"""A worker that returns tokens for unfinished prefill chunks, with and without the guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.outcome import Outcome

pytestmark = pytest.mark.engine

REQUESTS = 24
HEALTHY = "200"
PROCESSES = 3  # the API server, EngineCore and one worker


def errors(outcome: Outcome) -> list[str]:
    return [f"{answer.name}: {answer.error}" for answer in outcome.answers if answer.error]


class TestHealthyWithoutGuard:
    def test_every_request_is_answered_by_one_engine(self, healthy_unguarded: Outcome) -> None:
        assert errors(healthy_unguarded) == []
        assert len(healthy_unguarded.answers) == REQUESTS
        assert healthy_unguarded.health == HEALTHY
        assert healthy_unguarded.kept_engine is not None
        assert healthy_unguarded.crash is None

    def test_the_load_would_show_a_mix_up(self, healthy_unguarded: Outcome) -> None:
        tokens = [answer.tokens for answer in healthy_unguarded.answers]
        assert len(set(tokens)) == REQUESTS
        assert all(len(set(request)) > len(request) // 2 for request in tokens)

    def test_long_prompts_take_several_chunks(self, healthy_unguarded: Outcome) -> None:
        assert healthy_unguarded.unfinished_chunks >= 2 * REQUESTS // 2
        assert healthy_unguarded.injected == 0

    def test_switched_off_guard_wraps_nothing(self, healthy_unguarded: Outcome) -> None:
        assert healthy_unguarded.recorded("scheduler") == [
            {"class": "AsyncScheduler", "replaced": []}
        ]
        assert [status["enabled"] for status in healthy_unguarded.recorded("guard")] == [False]


class TestFaultWithoutGuard:
    def test_engine_dies_of_the_placeholder_assertion(self, fault_unguarded: Outcome) -> None:
        assert fault_unguarded.injected > 0
        assert fault_unguarded.replaced_methods == []
        crash = fault_unguarded.crash
        assert crash is not None
        assert "async_scheduler.py" in crash.place
        assert crash.source == "assert request.num_output_placeholders >= 0"
        assert crash.exception == "AssertionError"

    def test_server_is_gone_and_requests_are_lost(self, fault_unguarded: Outcome) -> None:
        assert fault_unguarded.health != HEALTHY
        assert fault_unguarded.engine_processes[-1] is None
        # At least the second round, which nobody is left to answer.
        assert fault_unguarded.answered <= REQUESTS // 2


class TestFaultWithGuard:
    def test_every_request_is_answered_by_one_engine(self, fault_guarded: Outcome) -> None:
        assert errors(fault_guarded) == []
        assert len(fault_guarded.answers) == REQUESTS
        assert fault_guarded.health == HEALTHY
        assert fault_guarded.kept_engine is not None
        assert fault_guarded.crash is None

    def test_every_request_gets_the_tokens_of_a_healthy_run(
        self, fault_guarded: Outcome, healthy_unguarded: Outcome
    ) -> None:
        assert fault_guarded.victims > 1
        assert fault_guarded.different_from(healthy_unguarded) == []

    def test_each_bogus_token_is_counted_once(self, fault_guarded: Outcome) -> None:
        assert fault_guarded.injected > 1
        assert fault_guarded.triggers == fault_guarded.injected

    def test_guard_is_in_force_in_engine_core_without_internal_errors(
        self, fault_guarded: Outcome
    ) -> None:
        (status,) = fault_guarded.recorded("guard")
        clamp = status["guards"]["clamp"]
        assert status["problems"] == []
        assert (clamp["verdict"], clamp["state"]) == ("needed", "applied")
        assert clamp["effective"] is True
        assert clamp["internal_errors"] == 0

    def test_first_trigger_is_a_warning_with_the_way_to_switch_off(
        self, fault_guarded: Outcome
    ) -> None:
        warnings = [
            line
            for line in fault_guarded.log.splitlines()
            if " WARNING " in line and "vllm-guard clamp" in line
        ]
        assert warnings
        assert all(line.startswith("(EngineCore pid=") for line in warnings)
        assert "VLLMGUARD_CLAMP=off" in warnings[0]

    def test_later_triggers_are_not_logged_one_by_one(self, fault_guarded: Outcome) -> None:
        reasons = fault_guarded.recorded("guard")[0]["guards"]["clamp"]["triggers"]
        lines = fault_guarded.log.count("vllm-guard clamp: request ")
        assert lines == len(reasons) < fault_guarded.triggers


class TestHealthyWithGuard:
    def test_guard_never_acts(self, healthy_guarded: Outcome) -> None:
        (status,) = healthy_guarded.recorded("guard")
        assert status["guards"]["clamp"]["state"] == "applied"
        assert status["guards"]["clamp"]["internal_errors"] == 0
        assert healthy_guarded.triggers == 0

    def test_every_request_gets_the_same_tokens_as_without_the_guard(
        self, healthy_guarded: Outcome, healthy_unguarded: Outcome
    ) -> None:
        assert errors(healthy_guarded) == []
        assert healthy_guarded.different_from(healthy_unguarded) == []
        assert healthy_guarded.kept_engine is not None

    def test_each_process_says_at_start_what_the_guards_do(self, healthy_guarded: Outcome) -> None:
        said = healthy_guarded.said_of_guards
        assert len(said) == PROCESSES
        # Who starts the others has imported nothing that is guarded yet.
        first = next(iter(said.values()))[0]
        assert all(guard.split()[1] == "armed," for guard in first.split("; "))

    def test_a_process_says_it_again_only_where_a_guard_has_acted_on_an_import(
        self, healthy_guarded: Outcome
    ) -> None:
        for lines in healthy_guarded.said_of_guards.values():
            assert len(lines) <= 2
            assert len(set(lines)) == len(lines)
        # EngineCore builds the scheduler, the worker the model runner; the API server neither.
        assert healthy_guarded.process_logs("clamp applied") == {"EngineCore"}
        assert healthy_guarded.process_logs("mm_merge applied") == {"EngineCore", "Worker"}
        # These two are forked, and speak when they build what is guarded.
        assert sorted(map(len, healthy_guarded.said_of_guards.values())) == [1, 1, 1]
