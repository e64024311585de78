"""The rows of tokens that the worker returned for one frame, and taking some of them out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

_PROMPT_LOGPROBS = ("prompt_logprobs_dict", "prompt_token_id_logprobs_dict")


class ReturnedRows:
    """A ModelRunnerOutput seen as one row of tokens a request.

    Changes are made in place and touch the named request only; vLLM reads the object once, in
    ``update_from_output``, after us.

    Args:
        scheduler_output: The SchedulerOutput of the frame.
        model_runner_output: What the worker returned for it.

    >>> from types import SimpleNamespace
    >>> frame = SimpleNamespace(scheduled_spec_decode_tokens={"b": [7, 8]})
    >>> returned = SimpleNamespace(
    ...     req_id_to_index={"a": 0, "b": 1}, sampled_token_ids=[[1, 2], [3, 4, 5]]
    ... )
    >>> rows = ReturnedRows(frame, returned)
    >>> rows.overlong()
    [('a', 1)]
    >>> rows.cut("a", 1)
    >>> rows.blank("b")
    >>> returned.sampled_token_ids
    [[1], []]
    """

    def __init__(self, scheduler_output: Any, model_runner_output: Any) -> None:
        self._scheduler_output = scheduler_output
        self._output = model_runner_output
        self._rows = model_runner_output.sampled_token_ids

    def row(self, request_id: str) -> Any:
        """Return the request's tokens, a list (or array) of token ids; empty if it has none."""
        index = self._output.req_id_to_index.get(request_id)
        return self._rows[index] if self._rows and index is not None else ()

    @property
    def scheduled(self) -> Collection[str]:
        """The ids of the requests in the frame."""
        scheduled: Collection[str] = self._scheduler_output.num_scheduled_tokens
        return scheduled

    @property
    def kv_load_failed(self) -> bool:
        """Whether KV blocks of this frame could not be loaded: computed tokens are set back."""
        connector_output = getattr(self._output, "kv_connector_output", None)
        return bool(getattr(connector_output, "invalid_block_ids", None))

    def overlong(self) -> list[tuple[str, int]]:
        """Find the rows that are longer than anything their frame could have sampled.

        Returns:
            Pairs of request id and the number of tokens it may have: one, and one for each draft.
        """
        drafts = self._scheduler_output.scheduled_spec_decode_tokens
        if not drafts:
            try:
                # Ordinary frames have one token in each row, and this is the fastest way to see it.
                for [_] in self._rows:
                    pass
                return []
            except ValueError:
                pass
        if self._fit_at_a_glance(list(drafts.values())):
            return []
        allowed = {request_id: 1 + len(tokens) for request_id, tokens in drafts.items()}
        return [
            (request_id, allowed.get(request_id, 1))
            for request_id, index in self._output.req_id_to_index.items()
            if len(self._rows[index]) > allowed.get(request_id, 1)
        ]

    def _fit_at_a_glance(self, drafts: list[Sequence[int]]) -> bool:
        """Whether every row would fit the request with the fewest drafts."""
        longest = max(map(len, self._rows), default=0)
        if longest <= 1 or len(drafts) < len(self._rows):
            return longest <= 1
        # The AsyncScheduler gives all requests the same list: comparing is faster than measuring.
        alike = drafts.count(drafts[0]) == len(drafts)
        return longest <= 1 + (len(drafts[0]) if alike else min(map(len, drafts)))

    def cut(self, request_id: str, length: int) -> None:
        """Keep the first ``length`` tokens of the request's row."""
        index = self._output.req_id_to_index[request_id]
        # Slicing keeps the type: up to 0.11.2 a row may be a numpy array.
        self._rows[index] = self._rows[index][:length]

    def blank(self, request_id: str) -> None:
        """Empty the request's row, as if its frame had sampled nothing.

        Its drafts go too: vLLM would count them as rejected and roll the request back.
        """
        self.cut(request_id, 0)
        self._scheduler_output.scheduled_spec_decode_tokens.pop(request_id, None)

    def blank_pooled(self, request_id: str) -> None:
        """Drop the request's pooled vector: it would finish the request that owns the id now."""
        index = self._output.req_id_to_index.get(request_id)
        if self._output.pooler_output and index is not None:
            self._output.pooler_output[index] = None

    def prompt_logprobs(self, request_id: str) -> dict[str, Any]:
        """Return the request's prompt logprobs by field name; empty where there are none."""
        values = {
            name: (getattr(self._output, name, None) or {}).get(request_id)
            for name in _PROMPT_LOGPROBS
        }
        return {name: value for name, value in values.items() if value is not None}

    def take_prompt_logprobs(self, request_id: str) -> dict[str, Any]:
        """Take out and return the request's prompt logprobs.

        vLLM asserts that there are none where a request gets no output.
        """
        taken = self.prompt_logprobs(request_id)
        for name in taken:
            del getattr(self._output, name)[request_id]
        return taken

    def give_prompt_logprobs(self, request_id: str, values: dict[str, Any]) -> None:
        """Hand over prompt logprobs taken earlier; newer ones in this output win."""
        for name, value in values.items():
            field = getattr(self._output, name)
            if field.get(request_id) is None:
                field[request_id] = value


def describe(request: Any, event: str) -> str:
    """Put a trigger into words, with the request's numbers as they are now.

    Args:
        request: The vLLM request.
        event: What happened to it.
    """
    return (
        f"request {request.request_id}: {event}, {request.num_output_placeholders} placeholder(s),"
        f" {request.num_computed_tokens} of {request.num_tokens} tokens computed"
    )
