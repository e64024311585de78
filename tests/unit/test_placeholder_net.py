"""No more tokens than placeholders reach vLLM, and what it does by itself is left to it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.swallowed import SwallowedErrors
from tests.unit.stand_ins import make_guard, make_request
from vllm_guard.guard import Guard
from vllm_guard.ledger import Ledger
from vllm_guard.placeholder_net import PlaceholderNet
from vllm_guard.rows import ReturnedRows
from vllm_guard.states import Mode


class Scheduler:
    """Delivers what it gets and remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def _update_request_with_output(self, request: Any, tokens: Any, *args: Any, **kw: Any) -> Any:
        self.calls.append((list(tokens), args, kw))
        request.num_output_placeholders -= len(tokens)
        request.num_tokens += len(tokens)
        return tokens, False


class Bench:
    """A net over one scheduler for a frame that brought prompt logprobs for request ``r``."""

    def __init__(self, mode: Mode = Mode.AUTO) -> None:
        self.scheduler: Any = Scheduler()
        self.guard: Guard = make_guard(mode)
        self.ledger = Ledger(counts_placeholders=True)
        self.returned = SimpleNamespace(
            sampled_token_ids=[[7]],
            req_id_to_index={"r": 0},
            prompt_logprobs_dict={"r": "logprobs"},
        )
        self.net = self.make_net()

    def make_net(self) -> PlaceholderNet:
        """Return a net over the scheduler as it is now."""
        rows = ReturnedRows(SimpleNamespace(), self.returned)
        return PlaceholderNet(self.guard, self.scheduler, self.ledger, rows)

    def deliver(self, request: Any, tokens: Any, *args: Any, **kwargs: Any) -> Any:
        """Deliver inside the net."""
        with self.net:
            return self.scheduler._update_request_with_output(request, tokens, *args, **kwargs)

    @property
    def triggers(self) -> dict[str, dict[str, int]]:
        """What the guard counted."""
        return self.guard.counters.as_dict()


def make_decoding(placeholders: int, in_flight: int = 1, **changes: Any) -> SimpleNamespace:
    """Return a request with ``in_flight`` tokens computed beyond the ones it knows."""
    return make_request(
        num_tokens=20,
        num_computed_tokens=19 + in_flight,
        num_output_placeholders=placeholders,
        **changes,
    )


def test_covered_tokens_pass_uncounted() -> None:
    """As many tokens as placeholders, or fewer, are vLLM's business."""
    bench, tokens = Bench(), [1, 2]
    assert bench.deliver(make_decoding(2, 2), tokens) == ([1, 2], False)
    assert bench.deliver(make_decoding(3, 3), [1])[0] == [1]
    assert [call[0] for call in bench.scheduler.calls] == [[1, 2], [1]]
    assert bench.triggers == {}


def test_the_original_list_is_passed_on() -> None:
    """vLLM trims the caller's list in place where a stop token ends the request."""
    bench, tokens = Bench(), [1, 2]
    assert bench.deliver(make_decoding(2, 2), tokens)[0] is tokens


def test_the_surplus_is_dropped_and_the_first_tokens_are_kept() -> None:
    """One trigger; the tokens dropped are computed again."""
    bench, request = Bench(), make_decoding(1, in_flight=3)
    assert bench.deliver(request, [1, 2, 3]) == ([1], False)
    assert bench.triggers == {"surplus": {"dropped": 1}}
    assert (request.num_output_placeholders, request.num_tokens) == (0, 21)
    assert request.num_computed_tokens == 20


@pytest.mark.parametrize("placeholders", [0, -1, -3])
def test_without_a_placeholder_nothing_is_delivered(placeholders: int) -> None:
    """A negative counter counts as none and is set to 0; vLLM is not called at all."""
    bench, request = Bench(), make_decoding(placeholders)
    assert bench.deliver(request, [1]) == ([], False)
    assert bench.scheduler.calls == []
    assert request.num_output_placeholders == 0
    assert request.num_computed_tokens == 19


def test_the_token_of_a_prefill_leaves_nothing_to_take_back() -> None:
    """No frame had counted it as computed."""
    bench, request = Bench(), make_request()
    assert bench.deliver(request, [1]) == ([], False)
    assert request.num_computed_tokens == 4


def test_prompt_logprobs_of_a_row_that_is_dropped_are_kept() -> None:
    """vLLM asserts that none are left where a request gets no output."""
    bench, request = Bench(), make_request()
    bench.deliver(request, [1])
    assert bench.ledger.kept["r"].values == {"prompt_logprobs_dict": "logprobs"}
    assert bench.ledger.kept["r"].request is request
    assert bench.returned.prompt_logprobs_dict == {}


def test_prompt_logprobs_of_a_row_that_is_delivered_stay() -> None:
    """They go out with it."""
    bench = Bench()
    bench.deliver(make_decoding(1, 2), [1, 2])
    assert bench.returned.prompt_logprobs_dict == {"r": "logprobs"}


@pytest.mark.parametrize(("args", "kwargs"), [((True,), {}), ((), {"is_stale": True})])
def test_stale_rows_pass_as_they_are(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """From 0.27 on vLLM delivers them on purpose; the flag arrives as it was given."""
    bench = Bench()
    assert bench.deliver(make_request(), [1], *args, **kwargs) == ([1], False)
    assert bench.scheduler.calls == [([1], args, kwargs)]
    assert bench.triggers == {}


@pytest.mark.parametrize(("args", "kwargs"), [((False,), {}), ((), {"is_stale": False})])
def test_fresh_rows_are_checked_and_the_flag_is_passed_on(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """A false flag changes nothing."""
    bench = Bench()
    assert bench.deliver(make_decoding(1, 2), [1, 2], *args, **kwargs) == ([1], False)
    assert bench.scheduler.calls == [([1], args, kwargs)]


@pytest.mark.parametrize(
    "flag", [{"discard_latest_async_tokens": True}, {"async_tokens_to_discard": 2}]
)
def test_what_vllm_is_about_to_discard_passes(flag: dict[str, Any]) -> None:
    """After a reset vLLM drops the row itself and counts on seeing it."""
    bench = Bench()
    bench.deliver(make_request(**flag), [1])
    assert bench.scheduler.calls == [([1], (), {})]
    assert bench.triggers == {}


@pytest.mark.parametrize(
    "flag", [{"discard_latest_async_tokens": False}, {"async_tokens_to_discard": 0}]
)
def test_discard_flags_that_are_used_up_do_not_count(flag: dict[str, Any]) -> None:
    """The next surplus is one."""
    bench = Bench()
    assert bench.deliver(make_request(**flag), [1]) == ([], False)


def test_observing_counts_and_changes_nothing() -> None:
    """vLLM does what it would have done."""
    bench, request = Bench(Mode.OBSERVE), make_decoding(-1, in_flight=2)
    assert bench.deliver(request, [1, 2]) == ([1, 2], False)
    assert bench.triggers == {"surplus": {"observed": 1}}
    assert (request.num_output_placeholders, request.num_computed_tokens) == (-3, 21)


def test_outside_the_block_the_class_answers_again() -> None:
    """Nothing of ours is left on the scheduler, whatever happened inside."""
    bench = Bench()
    with contextlib.suppress(ZeroDivisionError), bench.net:
        assert "_update_request_with_output" in vars(bench.scheduler)
        raise ZeroDivisionError
    assert "_update_request_with_output" not in vars(bench.scheduler)


def test_a_method_that_somebody_put_on_the_scheduler_survives() -> None:
    """It is called inside the block and is still there afterwards."""
    calls: list[Any] = []
    bench = Bench()
    bench.scheduler._update_request_with_output = lambda *args: calls.append(args)
    theirs = vars(bench.scheduler)["_update_request_with_output"]
    bench.net = bench.make_net()
    bench.deliver(make_decoding(1), [1])
    assert len(calls) == 1
    assert vars(bench.scheduler)["_update_request_with_output"] is theirs


def test_an_error_of_the_original_comes_out_once_and_untouched() -> None:
    """It is vLLM's, so it is neither swallowed nor counted, and nothing is tried again."""
    bench = Bench()
    error, calls = ValueError("vLLM's own"), []

    def raising(*args: Any) -> Any:
        calls.append(args)
        raise error

    bench.net._deliver = raising
    with pytest.raises(ValueError, match="vLLM's own") as raised:
        bench.deliver(make_decoding(1), [1])
    assert raised.value is error
    assert len(calls) == 1
    assert bench.guard.error_count == 0


def test_an_error_of_ours_lets_the_tokens_through(swallowed_errors: SwallowedErrors) -> None:
    """The original is called once, with everything, as if we were not there."""
    bench = Bench()
    bench.guard.counters = None  # type: ignore[assignment]
    bench.deliver(make_decoding(1, 2), [1, 2])
    assert bench.scheduler.calls == [([1, 2], (), {})]
    assert bench.guard.error_count == len(swallowed_errors.take()) == 1
