"""The net below the gather repair: the merge itself, for callers that bypass the gather step.

Rows are counted before anything is written: up to 0.19 a merge that fails has written half of it,
and on an accelerator it cannot be caught. Which of several items is at fault cannot be told here,
and a row must never move to another item, so then vLLM raises as it would.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vllm_guard.embeddings import ZEROED, fit, is_rows
from vllm_guard.gather_repair import GatherRepair
from vllm_guard.guard import Guard

UNGATHERED = "ungathered"


class MergeNet:
    """The wrapper of ``_merge_multimodal_embeddings``.

    Args:
        guard: Where to count and how to fail.
        gather: What repairs, or only counts, items on the ordinary way to the merge.
    """

    def __init__(self, guard: Guard, gather: GatherRepair) -> None:
        self._guard = guard
        self._gather = gather
        self._names: tuple[str, ...] = ()

    def __call__(self, wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
        """Make a single item fit; leave everything else to vLLM."""
        if self._guard.active:
            with self._guard.failing_open:
                # By name: two parameters were swapped in 0.11.2.
                self._names = self._names or tuple(inspect.signature(wrapped).parameters)
                given = dict(zip(self._names, args, strict=False)) | kwargs
                repaired = self._repair(**given)
                if repaired is not None:
                    args, kwargs = (), given | {"multimodal_embeddings": [repaired]}
        return wrapped(*args, **kwargs)

    def _repair(
        self, inputs_embeds: Any, multimodal_embeddings: Any, is_multimodal: Any
    ) -> Any | None:
        """Return other rows for the only item; None where nothing is to be done.

        Args:
            inputs_embeds: Tensor of shape (tokens, hidden size) that is written to.
            multimodal_embeddings: The items: tensors of shape (rows, hidden size).
            is_multimodal: Boolean mask of shape (tokens,).
        """
        items = [multimodal_embeddings] if is_rows(multimodal_embeddings) else multimodal_embeddings
        # A mask on an accelerator is not counted: that would wait for the device in every step.
        if len(items) != 1 or not is_rows(items[0]) or is_multimodal.device.type != "cpu":
            return None
        rows, width = items[0].shape
        hidden_size = inputs_embeds.shape[-1]
        placeholders = int(is_multimodal.sum())
        if rows == placeholders and width == hidden_size:
            return None
        # Counted already: each item once.
        if self._gather.left_short:
            return None
        # One row or none for no placeholder is written nowhere, and vLLM does not mind.
        if not placeholders and rows <= 1:
            return None
        return self._fit(items[0], placeholders, hidden_size)

    def _fit(self, item: Any, placeholders: int, hidden_size: int) -> Any | None:
        fitted = fit(item, placeholders, self._guard.settings.mm_max_delta, hidden_size)
        self._guard.counters.record(
            UNGATHERED,
            "observed" if self._guard.observes else fitted.action,
            f"an item was merged without the gather step: shape {tuple(item.shape)} for"
            f" {placeholders} placeholders of {hidden_size}",
            "`vllm-guard explain mm_merge` says more.",
            alarming=fitted.action == ZEROED,
        )
        return None if self._guard.observes else fitted.rows
