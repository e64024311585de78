"""Before a step's embeddings are gathered: is every item that it needs there in full?

The gather step slices what is in the encoder cache to what a prefill chunk needs, so the whole item
is judged, not the rows of a chunk: 138 cached rows pass for the first 100 placeholders of 638, and
they are somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from vllm_guard.embeddings import ZEROED, Once, count_placeholders, fit
from vllm_guard.guard import Guard

SHORT_ITEM = "short-item"


Window = tuple[str, Sequence[Any], int, int]
"""What a step computes of one request that has media: the request's id, its items (vLLM
MultiModalFeatureSpecs in the order of their offsets), the first position computed, and the one
past the last. A plain tuple: one is made for each request of a prefill."""


class Gather(Protocol):
    """One call of a gather step, whichever runner's it is.

    Args:
        outputs: Encoder outputs by identifier: the runner's own cache.
    """

    outputs: MutableMapping[str, Any]

    def windows(self) -> Iterator[Window]:
        """Yield what the step computes of requests whose items it may need."""

    def give(self, request_id: str, features: Sequence[Any]) -> None:
        """Let the runner see other items for a request."""


class V1Gather:
    """``GPUModelRunner._gather_mm_embeddings``, with its arguments."""

    def __init__(self, runner: Any, scheduler_output: Any, shift_computed_tokens: int = 0) -> None:
        self.outputs = runner.encoder_cache
        self._runner = runner
        self._scheduled = scheduler_output.num_scheduled_tokens
        self._shift = shift_computed_tokens

    def windows(self) -> Iterator[Window]:
        """Yield what the step computes of requests whose items it may need."""
        requests = self._runner.requests
        for request_id in self._runner.input_batch.req_ids:
            state = requests[request_id]
            features = state.mm_features
            if not features:
                continue
            start = state.num_computed_tokens + self._shift
            if _may_need(features, start, state.num_prompt_tokens):
                yield request_id, features, start, start + self._scheduled[request_id]

    def give(self, request_id: str, features: Sequence[Any]) -> None:
        """Let the runner see other items for a request."""
        self._runner.requests[request_id].mm_features = features


class V2Gather:
    """``EncoderRunner.gather_mm_embeddings``, with its arguments (one was renamed in 0.25)."""

    def __init__(  # noqa: PLR0913, PLR0917  vLLM's own parameters
        self,
        runner: Any,
        req_ids: Sequence[str],
        total_num_scheduled_tokens: int,
        num_scheduled_tokens: Any,
        query_start_loc: Any,
        prefill_lens: Any,
        computed_prefill_lens: Any = None,
        draft_lookahead: int = 0,
        num_computed_tokens: Any = None,
    ) -> None:
        cache = runner.encoder_cache
        # Up to 0.16 the runner keeps both itself.
        self._features: MutableMapping[str, Sequence[Any]] = (
            cache.mm_features if hasattr(cache, "mm_features") else runner.req_id_to_mm_features
        )
        self.outputs = getattr(cache, "encoder_outputs", cache)
        computed = num_computed_tokens if computed_prefill_lens is None else computed_prefill_lens
        self._request_ids = req_ids
        self._starts = (computed + draft_lookahead).tolist()
        self._scheduled = num_scheduled_tokens.tolist()
        self._prefills = prefill_lens.tolist()

    def windows(self) -> Iterator[Window]:
        """Yield what the step computes of requests whose items it may need."""
        for index, request_id in enumerate(self._request_ids):
            features = self._features[request_id]
            start = self._starts[index]
            if features and _may_need(features, start, self._prefills[index]):
                yield request_id, features, start, start + self._scheduled[index]

    def give(self, request_id: str, features: Sequence[Any]) -> None:
        """Let the runner see other items for a request."""
        self._features[request_id] = features


def _may_need(features: Sequence[Any], start: int, prompt_length: int) -> bool:
    # Nothing is looked at for requests that decode, which is nearly all of them nearly always.
    if start < prompt_length:
        return True
    last = features[-1].mm_position
    return bool(start < last.offset + last.length)


class _ShortItem(NamedTuple):
    request_id: str
    place: int
    feature: Any
    rows: Any
    placeholders: int


class GatherRepair:
    """The wrappers of both gather steps.

    Args:
        guard: Where to count and how to fail.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._counted = Once()
        self.left_short = False
        """Whether the last step's items go to the merge with one of them short: when observing."""

    def v1(self, wrapped: Callable[..., Any], runner: Any, args: Any, kwargs: Any) -> Any:
        """Wrap ``GPUModelRunner._gather_mm_embeddings``."""
        return self._run(V1Gather, wrapped, runner, args, kwargs)

    def v2(self, wrapped: Callable[..., Any], runner: Any, args: Any, kwargs: Any) -> Any:
        """Wrap ``EncoderRunner.gather_mm_embeddings``."""
        return self._run(V2Gather, wrapped, runner, args, kwargs)

    def _run(
        self,
        gather_type: Callable[..., Gather],
        wrapped: Callable[..., Any],
        runner: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        given = None
        if self._guard.active:
            with self._guard.failing_open:
                given = self._look(gather_type(runner, *args, **kwargs))
        if given is None:
            return wrapped(*args, **kwargs)
        with given:
            return wrapped(*args, **kwargs)

    def _look(self, gather: Gather) -> _Given | None:
        given = None
        output_of = gather.outputs.get
        for request_id, features, start, end in gather.windows():
            for index, feature in enumerate(features):
                position = feature.mm_position
                offset, length = position.offset, position.length
                if offset >= end:
                    break
                if offset + length <= start:
                    continue
                # Not there: an item the drafter looks ahead to, or a miss that vLLM reports.
                rows = output_of(feature.identifier)
                shape: tuple[int, ...] = getattr(rows, "shape", ())
                # An item has at most one placeholder a position; few models have to be asked.
                if len(shape) != 2 or shape[0] >= length:
                    continue
                placeholders = count_placeholders(position)
                if shape[0] < placeholders:
                    given = given or _Given(self._guard, gather)
                    item = _ShortItem(request_id, index, feature, rows, placeholders)
                    given.add(request_id, index, self._repaired(item))
        self.left_short = given is not None and self._guard.observes
        return None if self.left_short else given

    def _repaired(self, item: _ShortItem) -> Any:
        fitted = fit(item.rows, item.placeholders, self._guard.settings.mm_max_delta)
        # A position is an object of one request's item, and lives as long.
        if self._counted.is_new(item.feature.mm_position):
            self._count(item, fitted.action)
        return fitted.rows

    def _count(self, item: _ShortItem, action: str) -> None:
        gross = action == ZEROED
        self._guard.counters.record(
            SHORT_ITEM,
            "observed" if self._guard.observes else action,
            f"request {item.request_id}, item {item.place} ({item.feature.modality}):"
            f" {len(item.rows)} embeddings for {item.placeholders} placeholders",
            "The rows may be another medium's, kept under the same cache key: a key chosen by the"
            " client must never be used for two media. `vllm-guard explain mm_merge` says more."
            if gross
            else "`vllm-guard explain mm_merge` says more.",
            alarming=gross,
        )


class _Given:
    """Inside the ``with`` block the runner finds repaired items under private identifiers.

    Its own lists and entries stay as they are, so whoever shares a cache key is not touched.
    """

    def __init__(self, guard: Guard, gather: Gather) -> None:
        self._guard = guard
        self._gather = gather
        self._repaired: dict[str, dict[int, Any]] = {}
        # By request: its own items, and the identifiers that are put into the runner's cache.
        self._installed: dict[str, tuple[Sequence[Any], list[str]]] = {}

    def add(self, request_id: str, index: int, rows: Any) -> None:
        """Have an item replaced."""
        self._repaired.setdefault(request_id, {})[index] = rows

    def __enter__(self) -> None:
        with self._guard.failing_open:
            for request_id, features, *_ in list(self._gather.windows()):
                if request_id in self._repaired:
                    self._install(request_id, features)

    def _install(self, request_id: str, features: Sequence[Any]) -> None:
        seen = list(features)
        private: list[str] = []
        # Noted before anything is changed: it has to be put back after an error too.
        self._installed[request_id] = features, private
        for index, rows in self._repaired[request_id].items():
            private.append(f"vllm-guard/{request_id}/{index}")
            self._gather.outputs[private[-1]] = rows
            seen[index] = replace(seen[index], identifier=private[-1])
        self._gather.give(request_id, seen)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for request_id, (features, private) in self._installed.items():
            # One by one: who cannot be put back keeps its repaired items, and nobody else does.
            with self._guard.failing_open:
                self._gather.give(request_id, features)
                for identifier in private:
                    self._gather.outputs.pop(identifier, None)
