"""What the model runners V1 and V2 know of each request, followed as closely as matters here.

Both learn only from scheduler outputs and from what they sampled themselves. V1 takes the number
of computed tokens from the scheduler in every frame; V2 counts on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.scheduler.device import Token, Work
from tests.scheduler.oracle import owner_of


@dataclass(eq=False)
class Known:
    """One request as a runner knows it.

    `prompt_length` includes a session's earlier segments. `tokens` are the known ones, prompt and
    outputs, none where only a placeholder is there. `prefill_length` is V2's: the tokens it was
    given. `drafts_before` is V1's: drafts in the request's last frame, if it delivered. `pooled`: a
    vector is wanted, and nothing is sampled.
    """

    key: int
    prompt_length: int
    tokens: list[Token]
    computed: int
    blocks: list[int]
    wants_prompt_logprobs: bool
    pooled: bool = False
    prefill_length: int = 0
    drafts_before: int = 0
    last_sampled: Token = None


class View:
    """What the two runners have in common: requests come, are scheduled and go."""

    def __init__(self) -> None:
        self.requests: dict[str, Known] = {}

    def take_in(self, output: Any) -> None:
        """Learn from a SchedulerOutput, before its rows are computed."""
        raise NotImplementedError

    def work(self, request_id: str, scheduled: int, drafts: int) -> Work:
        """What the device has to do for a request of the frame taken in last."""
        raise NotImplementedError

    def sampled(self, work: Work, tokens: list[int]) -> None:
        """Learn what the device sampled for `work`."""
        raise NotImplementedError

    def end_frame(self) -> None:
        """All rows of the frame have been computed."""


@dataclass(frozen=True)
class Sampled:
    """What V1 keeps on the device of a request's last row.

    `end` is one past the last position whose token is known to be right, `token` the last sampled.
    """

    token: int
    end: int


class ViewV1(View):
    """`GPUModelRunner._update_states`, `_prepare_input_ids` and `_bookkeeping_sync`.

    `batch` is the persistent batch, `previous` what the last frame sampled, by request.
    `keeps_tokens` irons out what the real runner cannot do: with more than one frame in flight it
    loses the last token of a request that is left out of a frame (vLLM: V1 "does not fully support
    async scheduling with PP"), whatever the scheduler does.
    """

    def __init__(self, keeps_tokens: bool = False) -> None:
        super().__init__()
        self.keeps_tokens = keeps_tokens
        self.batch: set[str] = set()
        self.previous: dict[str, Sampled] = {}
        self._current: dict[str, Sampled] = {}

    def take_in(self, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        resumed = resumed_ids(cached)
        gone = {*output.finished_req_ids, *resumed, *_preempted_ids(output)}
        for request_id in output.finished_req_ids:
            self.requests.pop(request_id, None)
        for request_id in gone | (self.batch - set(output.num_scheduled_tokens)):
            self._leave_batch(request_id, keeps_token=self.keeps_tokens and request_id not in gone)
        for new in output.scheduled_new_reqs:
            # Also a session's next segment; its earlier outputs are part of the prompt now.
            self._leave_batch(new.req_id)
            self.requests[new.req_id] = _newcomer(new, new.prompt_token_ids)
        for row in cached_rows(cached):
            self._follow(row)
        self.batch.update(output.num_scheduled_tokens)

    def _leave_batch(self, request_id: str, keeps_token: bool = False) -> None:
        self.batch.discard(request_id)
        if not keeps_token:
            self.previous.pop(request_id, None)

    def _follow(self, row: CachedRow) -> None:
        known = self.requests[row.request_id]
        known.computed = row.computed
        sampled = self.previous.get(row.request_id)
        if known.drafts_before and sampled is not None:
            # Rejected drafts are still counted by the scheduler.
            known.computed = sampled.end
            known.tokens += [None] * (sampled.end + 1 - len(known.tokens))
        known.drafts_before = 0
        if row.outputs is not None:
            del known.tokens[known.prompt_length + row.outputs :]
            if not row.outputs:
                # Nothing is awaited either: what was sampled has been dropped.
                self.previous.pop(row.request_id, None)
        known.blocks = row.new_blocks if row.resumed else known.blocks + row.new_blocks
        if row.request_id not in self.batch and row.outputs and row.all_tokens is not None:
            self._recover(known, row.all_tokens, row.outputs)

    def _recover(self, known: Known, all_tokens: list[Token], outputs: int) -> None:
        """Take the output tokens of a request that comes back into the batch."""
        if self.keeps_tokens:
            length = known.prompt_length + outputs
            known.tokens = all_tokens + [None] * (length - len(all_tokens))
        else:
            # vLLM counts placeholders in: with some left, prompt tokens slip into the outputs.
            known.tokens = known.tokens[: known.prompt_length] + all_tokens[-outputs:]

    def work(self, request_id: str, scheduled: int, drafts: int) -> Work:
        known = self.requests[request_id]
        end = known.computed + scheduled
        tokens = known.tokens[known.computed : end]
        tokens += [None] * (scheduled - len(tokens))
        if request_id in self.previous:
            tokens[-1 - drafts] = self.previous[request_id].token
        known.drafts_before = drafts
        return Work(
            request_id=request_id,
            key=known.key,
            start=known.computed,
            tokens=tokens,
            drafts=drafts,
            blocks=known.blocks,
            finishes_prefill=end >= len(known.tokens),
            drafts_exist=request_id in self.previous,
        )

    def sampled(self, work: Work, tokens: list[int]) -> None:
        if tokens:
            end = work.certain_end + len(tokens) - 1
            self._current[work.request_id] = Sampled(tokens[-1], end)
            self.requests[work.request_id].tokens.append(None)

    def end_frame(self) -> None:
        kept = self.previous if self.keeps_tokens else {}
        self.previous, self._current = kept | self._current, {}


class ViewV2(View):
    """`RequestState` of model runner V2, and the kernels that read and advance it."""

    def take_in(self, output: Any) -> None:
        for request_id in (*output.finished_req_ids, *_preempted_ids(output)):
            self.requests.pop(request_id, None)
        for new in output.scheduled_new_reqs:
            # A session's next segment, and a request that resumes, replace what was there.
            self.requests[new.req_id] = known = _newcomer(new, new.prefill_token_ids)
            known.prefill_length = len(known.tokens)
            # One that has outputs has had its prompt logprobs.
            known.wants_prompt_logprobs &= known.prefill_length == known.prompt_length
            if known.computed:
                known.last_sampled = known.tokens[known.computed - 1]
        for row in cached_rows(output.scheduled_cached_reqs):
            self.requests[row.request_id].blocks += row.new_blocks

    def work(self, request_id: str, scheduled: int, drafts: int) -> Work:
        known = self.requests[request_id]
        end = known.computed + scheduled
        tokens = known.tokens[known.computed : min(end, known.prefill_length)]
        tokens += [None] * (scheduled - len(tokens))
        # In 0.33 drafts may ride on the last token of a prompt, which stays as it is.
        decodes = end - drafts > known.prefill_length
        if decodes:
            tokens[-1 - drafts] = known.last_sampled
        return Work(
            request_id=request_id,
            key=known.key,
            start=known.computed,
            tokens=tokens,
            drafts=drafts,
            blocks=known.blocks,
            finishes_prefill=end >= known.prefill_length,
            drafts_exist=decodes,
        )

    def sampled(self, work: Work, tokens: list[int]) -> None:
        known = self.requests[work.request_id]
        rejected = work.drafts + 1 - len(tokens) if tokens else 0
        known.computed += len(work.tokens) - rejected
        if tokens:
            known.last_sampled = tokens[-1]


@dataclass(frozen=True)
class CachedRow:
    """What a SchedulerOutput says of a request that the runner knows already.

    `outputs` (known and awaited ones) and `all_tokens` are none where the release does not say.
    """

    request_id: str
    computed: int
    new_blocks: list[int]
    resumed: bool
    outputs: int | None = None
    all_tokens: list[Token] | None = field(default=None)


def cached_rows(cached: Any) -> Iterator[CachedRow]:
    """The rows of a CachedRequestData."""
    resumed = resumed_ids(cached)
    outputs = getattr(cached, "num_output_tokens", None)
    all_tokens = getattr(cached, "all_token_ids", None) or {}
    for index, request_id in enumerate(cached.req_ids):
        blocks = cached.new_block_ids[index]
        yield CachedRow(
            request_id=request_id,
            computed=cached.num_computed_tokens[index],
            new_blocks=list(blocks[0]) if blocks else [],
            resumed=request_id in resumed,
            outputs=outputs[index] if outputs else None,
            all_tokens=all_tokens.get(request_id),
        )


def resumed_ids(cached: Any) -> set[str]:
    """The requests of a CachedRequestData that were preempted and start over."""
    if hasattr(cached, "resumed_req_ids"):
        return set(cached.resumed_req_ids)
    # Up to 0.11.0: a flag for each request.
    flags = zip(cached.req_ids, cached.resumed_from_preemption, strict=True)
    return {request_id for request_id, flag in flags if flag}


def _preempted_ids(output: Any) -> set[str]:
    # From 0.12 on, and none where nothing was preempted.
    return getattr(output, "preempted_req_ids", None) or set()


def _newcomer(new: Any, tokens: list[int]) -> Known:
    pooled = new.sampling_params is None
    return Known(
        key=owner_of(new.prompt_token_ids[-1]),
        prompt_length=len(new.prompt_token_ids),
        tokens=list(tokens),
        computed=new.num_computed_tokens,
        blocks=list(new.block_ids[0]),
        wants_prompt_logprobs=not pooled and new.sampling_params.prompt_logprobs is not None,
        pooled=pooled,
    )
