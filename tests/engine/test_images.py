"""Images that yield fewer embeddings than they have placeholders, with and without the guard.

No fault is injected: vLLM 0.23.0 counts the placeholders of some image sizes of MiniCPM-V 4.6
wrongly. Requests are admitted at the same steps in every arm, and compared to those of an arm in
which each such image is replaced by a healthy one whose prompt is the same token by token: so all
batches have the same shapes, and log-probabilities can be compared bit by bit. Without that order
they differ in the last bits, since a CPU adds up differently for batches of other shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.arms import IMAGES_GUARDED, IMAGES_OBSERVED, IMAGES_UNGUARDED, Arm
from tests.engine.image_sizes import Case
from vllm_guard.settings import Settings

if TYPE_CHECKING:
    from tests.engine.load import Round
    from tests.engine.outcome import Outcome

pytestmark = pytest.mark.engine

HEALTHY = "200"
BAD_SIZES = ((365, 211), (1084, 820))
Ask = Callable[[Arm, "Sequence[Round]"], "Outcome"]


def errors(outcome: Outcome) -> list[str]:
    return [f"{answer.name}: {answer.error}" for answer in outcome.answers if answer.error]


def mm_merge_of(outcome: Outcome) -> dict[str, Any]:
    """What the guard of the worker said when it last changed."""
    (status,) = outcome.recorded("worker_guard")
    found: dict[str, Any] = status["guards"]["mm_merge"]
    return found


@pytest.fixture(scope="session")
def cases(count_sizes: Callable[[Sequence[tuple[int, int]]], list[Case]]) -> list[Case]:
    return count_sizes(BAD_SIZES)


@pytest.fixture(scope="session")
def healthy(ask_minicpm: Ask, cases: list[Case]) -> Outcome:
    """The reference: all rounds with healthy images, and the four good ones without a fifth."""
    from tests.engine.questions import crowds, five, four, further

    rounds = [five(cases[0].healthy), *crowds(cases, healthy=True), further(), four()]
    return ask_minicpm(IMAGES_UNGUARDED, rounds)


@pytest.fixture(scope="session")
def guarded(ask_minicpm: Ask, cases: list[Case]) -> Outcome:
    from tests.engine.questions import crowds, five, further

    return ask_minicpm(
        IMAGES_GUARDED, [five(cases[0].bad), *crowds(cases, healthy=False), further()]
    )


@pytest.fixture(scope="session")
def unguarded(ask_minicpm: Ask, cases: list[Case]) -> Outcome:
    from tests.engine.questions import five

    return ask_minicpm(IMAGES_UNGUARDED, [five(cases[0].bad)])


@pytest.fixture(scope="session")
def observed(ask_minicpm: Ask, cases: list[Case]) -> Outcome:
    from tests.engine.questions import five

    return ask_minicpm(IMAGES_OBSERVED, [five(cases[0].bad)])


class TestHealthyImages:
    def test_every_question_is_answered_by_one_engine(self, healthy: Outcome) -> None:
        assert errors(healthy) == []
        assert healthy.health == HEALTHY
        assert healthy.kept_engine is not None
        assert healthy.kept_workers

    def test_the_load_would_show_a_mix_up(self, healthy: Outcome) -> None:
        # The four are asked twice.
        tokens = {answer.tokens for answer in healthy.answers}
        assert len(tokens) == len(healthy.answers) - len(healthy.answers_to("four."))
        assert all(len(answer.logprobs) == len(answer.tokens) for answer in healthy.answers)

    def test_nothing_is_wrapped(self, healthy: Outcome) -> None:
        assert healthy.replaced_methods == []
        assert [runner["replaced"] for runner in healthy.recorded("runner")] == [[]]
        assert [status["enabled"] for status in healthy.recorded("worker_guard")] == [False]


class TestTooFewEmbeddings:
    def test_sizes_are_short_by_what_is_repaired(self, cases: list[Case]) -> None:
        max_delta = Settings().mm_max_delta
        for case in cases:
            assert 0 < case.placeholders - case.embeddings <= max_delta * case.placeholders

    def test_a_healthy_image_takes_as_many_tokens(self, guarded: Outcome, healthy: Outcome) -> None:
        lengths = {answer.name: answer.prompt_tokens for answer in healthy.answers}
        for answer in guarded.answers:
            assert answer.prompt_tokens == lengths[answer.name]


def died_of_too_few_embeddings(outcome: Outcome, case: Case) -> bool:
    """Whether all requests were lost because a worker's merge failed, and with it EngineCore."""
    numbers = f"{case.embeddings} = {case.embeddings} multimodal tokens to {case.placeholders}"
    message = f"Attempted to assign {numbers} placeholders"
    assert outcome.worker_crash is not None
    assert outcome.worker_crash.exception == f"ValueError: {message}"
    assert "models/utils.py" in outcome.worker_crash.place
    assert outcome.crash is not None
    assert outcome.crash.exception.startswith(f"RuntimeError: Worker failed with error '{message}'")
    assert outcome.health != HEALTHY
    assert outcome.engine_processes[-1] is None
    return outcome.answered == 0


class TestWithoutGuard:
    def test_one_image_ends_the_engine_and_all_five_requests(
        self, unguarded: Outcome, cases: list[Case]
    ) -> None:
        assert len(unguarded.answers) == 5
        assert died_of_too_few_embeddings(unguarded, cases[0])


class TestObserving:
    def test_guard_counts_and_lets_vllm_raise(self, observed: Outcome, cases: list[Case]) -> None:
        assert died_of_too_few_embeddings(observed, cases[0])
        assert mm_merge_of(observed)["state"] == "observing"
        assert mm_merge_of(observed)["triggers"] == {"short-item": {"observed": 1}}
        assert mm_merge_of(observed)["internal_errors"] == 0


class TestWithGuard:
    def test_every_question_is_answered_by_the_same_processes(self, guarded: Outcome) -> None:
        assert errors(guarded) == []
        assert guarded.health == HEALTHY
        assert guarded.kept_engine is not None
        assert guarded.kept_workers
        assert guarded.crash is None
        assert guarded.worker_crash is None

    def test_innocents_get_the_same_as_beside_a_healthy_image(
        self, guarded: Outcome, healthy: Outcome
    ) -> None:
        victims = {f"crowd-{images}.bad-{bad}" for images in (12, 16, 24) for bad in (1, 2)}
        victims.add("five.fifth")
        assert set(guarded.different_from(healthy)) <= victims

    def test_innocents_get_the_tokens_they_get_without_the_fifth(
        self, guarded: Outcome, healthy: Outcome
    ) -> None:
        alone = [answer.tokens for answer in healthy.answers_to("four.")]
        assert [answer.tokens for answer in guarded.answers_to("five.good")] == alone

    def test_each_image_is_counted_once(self, guarded: Outcome) -> None:
        bad = [answer for answer in guarded.answers if "fifth" in answer.name]
        bad += [answer for answer in guarded.answers if ".bad-" in answer.name]
        assert mm_merge_of(guarded)["triggers"] == {"short-item": {"padded": len(bad)}}
        assert guarded.triggers == len(bad) == 7

    def test_guard_is_in_force_in_the_worker_without_internal_errors(
        self, guarded: Outcome
    ) -> None:
        mm_merge = mm_merge_of(guarded)
        assert (mm_merge["verdict"], mm_merge["state"]) == ("needed", "applied")
        assert mm_merge["effective"] is True
        assert mm_merge["internal_errors"] == 0
        (runner,) = guarded.recorded("runner")
        assert runner["replaced"] == ["GPUModelRunner._gather_mm_embeddings"]

    def test_first_trigger_is_a_warning_of_the_worker_with_the_numbers(
        self, guarded: Outcome, cases: list[Case]
    ) -> None:
        lines = [
            line for line in guarded.log.splitlines() if "vllm-guard mm_merge: request" in line
        ]
        assert len(lines) == 1
        assert lines[0].startswith("(Worker pid=")
        assert " WARNING " in lines[0]
        case = cases[0]
        assert f"{case.embeddings} embeddings for {case.placeholders} placeholders" in lines[0]
        assert "VLLMGUARD_MM_MERGE=off" in lines[0]

    def test_after_repairs_further_requests_are_answered_right(
        self, guarded: Outcome, healthy: Outcome
    ) -> None:
        further = guarded.answers_to("further-")
        assert len(further) == 200
        assert further == healthy.answers_to("further-")


@pytest.fixture(scope="session")
def arms(ask_llava: Ask) -> dict[bool, Outcome]:
    """By whether there is a guard."""
    from tests.engine.questions import crowd_of, four

    rounds = [four(), crowd_of(16)]
    return {arm.guard: ask_llava(arm, rounds) for arm in (IMAGES_UNGUARDED, IMAGES_GUARDED)}


class TestOtherModelAndRelease:
    """vLLM 0.29.0 and a LLaVA, whose images are all healthy."""

    def test_outputs_are_the_same_bit_by_bit(self, arms: dict[bool, Outcome]) -> None:
        assert errors(arms[False]) == []
        assert arms[True].different_from(arms[False]) == []
        assert all(answer.logprobs for answer in arms[True].answers)

    def test_the_load_would_show_a_mix_up(self, arms: dict[bool, Outcome]) -> None:
        answers = arms[False].answers
        assert len({answer.tokens for answer in answers}) == len(answers)

    def test_guard_is_in_force_and_never_acts(self, arms: dict[bool, Outcome]) -> None:
        assert mm_merge_of(arms[True])["state"] == "applied"
        assert mm_merge_of(arms[True])["effective"] is True
        assert mm_merge_of(arms[True])["internal_errors"] == 0
        assert arms[True].triggers == 0
