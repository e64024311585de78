"""Runs the real gather and merge of the imported vLLM, step by step, on items made by hand.

Nothing is encoded: the encoder cache is filled by hand. All else that the two functions touch is
vLLM's own, except the runners' buffers, which need an accelerator.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from tests.embeddings.places import TEXT

# Masks are pinned for the copy to an accelerator, and there is none here.
_zeros = torch.zeros


def _unpinned_zeros(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
    return _zeros(*size, **options)


torch.zeros = _unpinned_zeros
if not hasattr(torch._C._cpu, "_is_avx512_supported"):
    torch._C._cpu._is_avx512_supported = lambda: False

HIDDEN = 8


@dataclass(frozen=True)
class Item:
    """A medium of a request.

    `rows` is how many embeddings are cached for it, `placeholders` how many its prompt has;
    `gaps` puts a text token after each placeholder. `key` is its cache key, its own unless given.
    `after` is how many text tokens come before it; `overlaps` lets it begin where the item before
    it began, in the gaps of that one. `modality` is what vLLM is told that it is. `cached` is
    false where the encoder cache has lost it.
    """

    name: str
    rows: int
    placeholders: int
    gaps: bool = False
    key: str = ""
    after: int = 1
    overlaps: bool = False
    modality: str = "image"
    cached: bool = True

    def embeddings(self, dtype: torch.dtype) -> torch.Tensor:
        """Rows that no other item has: filled with a number of its name."""
        number = sum(ord(letter) * 31**place for place, letter in enumerate(self.name)) % 997
        steps = torch.arange(1, self.rows + 1, dtype=torch.float32) / 128
        return (number + 1 + steps)[:, None].repeat(1, HIDDEN).to(dtype)


@dataclass(frozen=True)
class Prompt:
    """A request: its items in order, with a text token behind the last."""

    name: str
    items: tuple[Item, ...]


Merge = Callable[[torch.Tensor, list[torch.Tensor], torch.Tensor, "list[Computed]"], torch.Tensor]
"""From a step's batch of embeddings (tokens, HIDDEN), the gathered items and the mask of all
placeholders to the batch with the items in it; also told what is computed of which request."""


def load_modules() -> tuple[Any, Any, Any]:
    """Import and return the modules of both runners (None: no such runner) and of the merge."""
    merge = importlib.import_module("vllm.model_executor.models.utils")
    v1 = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    try:
        v2 = importlib.import_module("vllm.v1.worker.gpu.mm.encoder_runner")
    except ModuleNotFoundError:
        v2 = None
    return v1, v2, merge


class Placed:
    """A prompt with real vLLM features and the places of each item's rows."""

    def __init__(self, prompt: Prompt) -> None:
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

        self.prompt = prompt
        self.features: list[Any] = []
        self.places: dict[str, list[int]] = {}
        end = start = 0
        for item in prompt.items:
            width = 2 if item.gaps else 1
            start = start if item.overlaps else end + item.after
            length = item.placeholders * width
            mask = torch.arange(length) % width == int(item.overlaps) if item.gaps else None
            end = max(end, start + length)
            self.places[item.name] = [
                start + place for place in range(length) if mask is None or mask[place]
            ]
            self.features.append(
                MultiModalFeatureSpec(
                    data=None,
                    modality=item.modality,
                    identifier=item.key or item.name,
                    mm_position=PlaceholderRange(offset=start, length=length, is_embed=mask),
                )
            )
        self.length = end + 1


class Computed(NamedTuple):
    """What a step computes of a request: `count` positions from `start`."""

    placed: Placed
    start: int
    count: int


def merge_as_most_models(
    batch: torch.Tensor,
    embeddings: list[torch.Tensor],
    mask: torch.Tensor,
    _computed: list[Computed],
) -> torch.Tensor:
    """The merge that nearly all models share."""
    merged: torch.Tensor = load_modules()[2]._merge_multimodal_embeddings(
        inputs_embeds=batch, multimodal_embeddings=embeddings, is_multimodal=mask
    )
    return merged


@dataclass
class Merged:
    """What came of a run: an error, or for each request a tensor of its prompt's embeddings.

    `changed` names the cache entries and the requests whose items are not those of before.
    """

    error: str = ""
    changed: list[str] = field(default_factory=list)
    prompts: dict[str, torch.Tensor] | None = None


def run(
    runner: str,
    prompts: Sequence[Prompt],
    chunk: int,
    dtype: torch.dtype = torch.float32,
    merge: Merge = merge_as_most_models,
) -> Merged:
    """Prefill all `prompts` together, `chunk` tokens of each in a step, on `runner` v1 or v2."""
    v1, v2, _ = load_modules()
    placed = [Placed(prompt) for prompt in prompts]
    cache: dict[str, torch.Tensor] = {}
    for item in (item for prompt in prompts for item in prompt.items if item.cached):
        # As in vLLM: who comes first fills the entry.
        cache.setdefault(item.key or item.name, item.embeddings(dtype))
    entries = dict(cache)
    gather = RunnerV1(v1, placed, cache) if runner == "v1" else RunnerV2(v2, placed, cache)
    result = {p.prompt.name: torch.full((p.length, HIDDEN), TEXT, dtype=dtype) for p in placed}
    try:
        for start in range(0, max(p.length for p in placed), chunk):
            _step(gather, merge, placed, (start, chunk), result)
    except Exception as error:
        changed = _changed(gather, placed, cache, entries)
        return Merged(error=f"{type(error).__name__}: {error}", changed=changed)
    return Merged(prompts=result, changed=_changed(gather, placed, cache, entries))


def _changed(
    gather: Gather, placed: list[Placed], cache: dict[str, Any], entries: dict[str, Any]
) -> list[str]:
    """What of a runner's own is not what it was."""
    changed = [key for key in cache | entries if cache.get(key) is not entries.get(key)]
    names = [p.prompt.name for p in placed if gather.features(p.prompt.name) is not p.features]
    return changed + names


def _step(
    gather: Gather,
    merge: Merge,
    placed: list[Placed],
    window: tuple[int, int],
    result: dict[str, torch.Tensor],
) -> None:
    start, chunk = window
    active = [p for p in placed if start < p.length]
    scheduled = [min(chunk, p.length - start) for p in active]
    embeddings, mask = gather(active, start, scheduled)
    dtype = next(iter(result.values())).dtype
    batch = torch.full((sum(scheduled), HIDDEN), TEXT, dtype=dtype)
    if embeddings:
        computed = [Computed(p, start, n) for p, n in zip(active, scheduled, strict=True)]
        batch = merge(batch, embeddings, mask, computed)
    for one, rows in zip(active, batch.split(scheduled), strict=True):
        result[one.prompt.name][start : start + len(rows)] = rows


class Gather(Protocol):
    """The gather step of a runner that was set up by hand."""

    def __call__(
        self, active: list[Placed], start: int, scheduled: list[int], look_ahead: int = 0
    ) -> Any:
        """Gather for `scheduled` tokens of each request from position `start`.

        `look_ahead` is how many positions further on a drafter is.
        """

    def features(self, name: str) -> Any:
        """The items that the runner sees of a request."""


class RunnerV1:
    """``GPUModelRunner`` with its encoder cache and requests, and no model."""

    def __init__(self, module: Any, placed: list[Placed], cache: dict[str, Any]) -> None:
        self.runner = object.__new__(type("Runner", (module.GPUModelRunner,), {}))
        mask = torch.zeros(4096, dtype=torch.bool)
        buffer = SimpleNamespace(cpu=mask, copy_to_gpu=lambda count: mask[:count].clone())
        self.states = {
            p.prompt.name: SimpleNamespace(
                mm_features=p.features, num_computed_tokens=0, num_prompt_tokens=p.length
            )
            for p in placed
        }
        vars(self.runner).update(
            requests=self.states,
            encoder_cache=cache,
            is_multimodal_pruning_enabled=False,
            uses_mrope=False,
            is_mm_embed=buffer,
            is_mm_embed_idx=0,
            is_mm_embed_buffers=[buffer, buffer],
        )

    def __call__(
        self, active: list[Placed], start: int, scheduled: list[int], look_ahead: int = 0
    ) -> Any:
        names = [p.prompt.name for p in active]
        self.runner.input_batch = SimpleNamespace(req_ids=names)
        for name in names:
            self.states[name].num_computed_tokens = start
        output = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled),
            num_scheduled_tokens=dict(zip(names, scheduled, strict=True)),
        )
        ahead = {"shift_computed_tokens": look_ahead} if look_ahead else {}
        return self.runner._gather_mm_embeddings(output, **ahead)

    def features(self, name: str) -> Any:
        return self.states[name].mm_features


class RunnerV2:
    """``EncoderRunner`` with its encoder cache and requests, and no model."""

    def __init__(self, module: Any, placed: list[Placed], cache: dict[str, Any]) -> None:
        self.runner = object.__new__(module.EncoderRunner)
        self.seen = {p.prompt.name: p.features for p in placed}
        try:
            from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
        except ModuleNotFoundError:
            self.runner.encoder_cache = cache  # up to 0.16
        else:
            self.runner.encoder_cache = EncoderCache()
            self.runner.encoder_cache.encoder_outputs = cache
            self.runner.encoder_cache.mm_features = self.seen
        vars(self.runner).update(
            req_id_to_mm_features=self.seen,
            tmp_is_mm_embed=SimpleNamespace(copy_to_gpu=lambda mask: mask),
            is_realtime=False,
            device="cpu",
        )

    def __call__(
        self, active: list[Placed], start: int, scheduled: list[int], look_ahead: int = 0
    ) -> Any:
        counts = np.array(scheduled)
        ahead = {"draft_lookahead": look_ahead} if look_ahead else {}
        return self.runner.gather_mm_embeddings(
            [p.prompt.name for p in active],
            sum(scheduled),
            counts,
            np.concatenate(([0], np.cumsum(counts))),
            np.array([p.length for p in active]),
            np.array([start] * len(active)),
            **ahead,
        )

    def features(self, name: str) -> Any:
        return self.seen[name]
