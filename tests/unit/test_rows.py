"""Rows of tokens that came back from the worker: finding them, cutting them, emptying them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.stand_ins import make_request
from vllm_guard.rows import ReturnedRows, describe


class ArrayLike(Sequence[int]):
    """A row as numpy has it: a slice is of the same type, and its truth is an error."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Any) -> Any:
        found = self.tokens[index]
        return ArrayLike(*found) if isinstance(index, slice) else found

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


class Frame:
    """One frame of requests ``a``, ``b``, …: what was scheduled and what came back."""

    def __init__(self, *rows: Any, drafts: dict[str, int] | None = None, **fields: Any) -> None:
        self.scheduled = SimpleNamespace(
            scheduled_spec_decode_tokens={
                request_id: [-1] * count for request_id, count in (drafts or {}).items()
            }
        )
        self.returned = SimpleNamespace(
            sampled_token_ids=list(rows),
            req_id_to_index={chr(ord("a") + index): index for index in range(len(rows))},
            **({"pooler_output": None} | fields),
        )
        self.rows = ReturnedRows(self.scheduled, self.returned)

    @property
    def tokens(self) -> list[list[int]]:
        """What vLLM would read."""
        return [list(row) for row in self.returned.sampled_token_ids]


ROW_TYPES = pytest.mark.parametrize(
    "row", [lambda *tokens: list(tokens), ArrayLike], ids=["list", "array"]
)


@ROW_TYPES
def test_a_row_is_found_by_request(row: Any) -> None:
    """A request that came back has a row, any other has an empty one."""
    frame = Frame(row(1, 2), row(3))
    assert list(frame.rows.row("a")) == [1, 2]
    assert len(frame.rows.row("x")) == 0


def test_a_frame_that_sampled_nothing_has_empty_rows() -> None:
    """Pooling models and empty frames return no rows for the requests they name."""
    frame = Frame()
    frame.returned.req_id_to_index["a"] = 0
    assert len(frame.rows.row("a")) == 0
    assert frame.rows.overlong() == []


@ROW_TYPES
def test_cutting_keeps_the_first_tokens_and_the_type(row: Any) -> None:
    """Only that request's row becomes shorter."""
    frame = Frame(row(1, 2, 3), row(4, 5))
    frame.rows.cut("a", 2)
    assert frame.tokens == [[1, 2], [4, 5]]
    assert type(frame.returned.sampled_token_ids[0]) is type(row())


@ROW_TYPES
def test_blanking_empties_the_row_and_takes_its_drafts(row: Any) -> None:
    """Left-over drafts would count as rejected and roll the request back."""
    frame = Frame(row(1, 2), row(3, 4), drafts={"a": 1, "b": 1})
    frame.rows.blank("a")
    assert frame.tokens == [[], [3, 4]]
    assert frame.scheduled.scheduled_spec_decode_tokens == {"b": [-1]}
    frame.rows.blank("b")
    assert frame.tokens == [[], []]


def test_a_pooled_vector_is_dropped_for_one_request() -> None:
    """The others' stay; a frame without any is no error."""
    frame = Frame([], [], pooler_output=["vector a", "vector b"])
    frame.rows.blank_pooled("a")
    frame.rows.blank_pooled("x")
    assert frame.returned.pooler_output == [None, "vector b"]
    Frame([]).rows.blank_pooled("a")


@pytest.mark.parametrize(
    ("rows", "drafts", "expected"),
    [
        ([[1], [2]], {}, []),
        ([[1, 2], [3]], {}, [("a", 1)]),
        ([[1, 2], [3]], {"a": 1}, []),
        ([[1, 2], [3, 4]], {"a": 1}, [("b", 1)]),
        ([[1, 2, 3], [4]], {"a": 1, "b": 2}, [("a", 2)]),
        ([[1, 2, 3, 4], [], [5, 6]], {"a": 3}, [("c", 1)]),
        ([[], []], {}, []),
    ],
)
def test_a_row_is_overlong_beyond_one_token_and_one_for_each_draft(
    rows: list[list[int]], drafts: dict[str, int], expected: list[tuple[str, int]]
) -> None:
    """With the length it may have."""
    assert Frame(*rows, drafts=drafts).rows.overlong() == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(1, 4)), max_size=6))
def test_overlong_agrees_with_its_definition(shapes: list[tuple[int, int | None]]) -> None:
    """The short cuts for ordinary frames change nothing; ``None``: scheduled without drafts."""
    drafts = {chr(ord("a") + i): d for i, (_, d) in enumerate(shapes) if d is not None}
    frame = Frame(*([7] * length for length, _ in shapes), drafts=drafts)
    expected = [
        (chr(ord("a") + i), 1 + (d or 0)) for i, (n, d) in enumerate(shapes) if n > 1 + (d or 0)
    ]
    assert frame.rows.overlong() == expected


def test_prompt_logprobs_are_taken_from_every_field_that_this_vllm_has() -> None:
    """Up to 0.30 there is one dictionary, from 0.31 on two; other requests keep theirs."""
    frame = Frame(
        [],
        prompt_logprobs_dict={"a": "old", "b": "other"},
        prompt_token_id_logprobs_dict={"a": "new"},
    )
    assert frame.rows.take_prompt_logprobs("a") == {
        "prompt_logprobs_dict": "old",
        "prompt_token_id_logprobs_dict": "new",
    }
    assert frame.returned.prompt_logprobs_dict == {"b": "other"}
    assert frame.rows.take_prompt_logprobs("a") == {}


@pytest.mark.parametrize(
    "fields", [{}, {"prompt_logprobs_dict": None}, {"prompt_logprobs_dict": {"a": None}}]
)
def test_without_prompt_logprobs_there_is_nothing_to_take(fields: dict[str, Any]) -> None:
    """A missing dictionary, none at all, and a request without any are the same."""
    assert Frame([], **fields).rows.take_prompt_logprobs("a") == {}


def test_kept_prompt_logprobs_are_given_unless_newer_ones_came() -> None:
    """What the worker returned last wins."""
    frame = Frame([1], [2], prompt_logprobs_dict={"b": "newer", "a": None})
    for request_id in ("a", "b"):
        frame.rows.give_prompt_logprobs(request_id, {"prompt_logprobs_dict": "kept"})
    assert frame.returned.prompt_logprobs_dict == {"a": "kept", "b": "newer"}


def test_a_trigger_is_described_by_request_and_numbers() -> None:
    """The numbers of the public report, in one line."""
    request = make_request(request_id="cmpl-7", num_computed_tokens=8448, num_tokens=9119)
    line = describe(request, "1 token(s) returned")
    assert line == (
        "request cmpl-7: 1 token(s) returned, 0 placeholder(s), 8448 of 9119 tokens computed"
    )
