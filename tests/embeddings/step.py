"""Runs the real gather and merge of the imported vLLM, step by step, on items made by hand.

Nothing is encoded: the encoder cache is filled by hand. All else that the two functions touch is
vLLM's own, except the runners' buffers, which need an accelerator.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

# Masks are pinned for the copy to an accelerator, and there is none here.
_zeros = torch.zeros


def _unpinned_zeros(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
    return _zeros(*size, **options)


torch.zeros = _unpinned_zeros
if not hasattr(torch._C._cpu, "_is_avx512_supported"):
    torch._C._cpu._is_avx512_supported = lambda: False

HIDDEN = 8
TEXT = -1.0
"""What text positions hold before and after a merge."""


@dataclass(frozen=True)
class Item:
    """A medium of a request.

    `rows` is how many embeddings are cached for it, `placeholders` how many its prompt has;
    `gaps` puts a text token after each placeholder. `key` is its cache key, its own unless given.
    `after` is how many text tokens come before it; `overlaps` lets it begin where the item before
    it began, in the gaps of that one.
    """

    name: str
    rows: int
    placeholders: int
    gaps: bool = False
    key: str = ""
    after: int = 1
    overlaps: bool = False

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
                    modality="image",
                    identifier=item.key or item.name,
                    mm_position=PlaceholderRange(offset=start, length=length, is_embed=mask),
                )
            )
        self.length = end + 1


@dataclass
class Merged:
    """What came of a run: an error, or for each request a tensor of its prompt's embeddings."""

    error: str = ""
    prompts: dict[str, torch.Tensor] | None = None


def run(
    runner: str, prompts: Sequence[Prompt], chunk: int, dtype: torch.dtype = torch.float32
) -> Merged:
    """Prefill all `prompts` together, `chunk` tokens of each in a step, on `runner` v1 or v2."""
    v1, v2, merge = load_modules()
    placed = [Placed(prompt) for prompt in prompts]
    cache: dict[str, torch.Tensor] = {}
    for prompt in prompts:
        for item in prompt.items:
            # As in vLLM: who comes first fills the entry.
            cache.setdefault(item.key or item.name, item.embeddings(dtype))
    entries = dict(cache)
    gather = _v1(v1, placed, cache) if runner == "v1" else _v2(v2, placed, cache)
    result = {p.prompt.name: torch.full((p.length, HIDDEN), TEXT, dtype=dtype) for p in placed}
    try:
        for start in range(0, max(p.length for p in placed), chunk):
            _step(gather, merge, placed, (start, chunk), result)
    except Exception as error:
        return Merged(error=f"{type(error).__name__}: {error}")
    if {key: id(rows) for key, rows in cache.items()} != {k: id(r) for k, r in entries.items()}:
        return Merged(error="the encoder cache was changed")
    return Merged(prompts=result)


def _step(
    gather: Callable[..., Any],
    merge: Any,
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
        batch = merge._merge_multimodal_embeddings(
            inputs_embeds=batch, multimodal_embeddings=embeddings, is_multimodal=mask
        )
    for one, rows in zip(active, batch.split(scheduled), strict=True):
        result[one.prompt.name][start : start + len(rows)] = rows


def _v1(module: Any, placed: list[Placed], cache: dict[str, Any]) -> Callable[..., Any]:
    runner = object.__new__(type("Runner", (module.GPUModelRunner,), {}))
    mask = torch.zeros(4096, dtype=torch.bool)
    buffer = SimpleNamespace(cpu=mask, copy_to_gpu=lambda count: mask[:count].clone())
    states = {
        p.prompt.name: SimpleNamespace(
            mm_features=p.features, num_computed_tokens=0, num_prompt_tokens=p.length
        )
        for p in placed
    }
    vars(runner).update(
        requests=states,
        encoder_cache=cache,
        is_multimodal_pruning_enabled=False,
        uses_mrope=False,
        is_mm_embed=buffer,
        is_mm_embed_idx=0,
        is_mm_embed_buffers=[buffer, buffer],
    )

    def gather(active: list[Placed], start: int, scheduled: list[int]) -> Any:
        names = [p.prompt.name for p in active]
        runner.input_batch = SimpleNamespace(req_ids=names)
        for name in names:
            states[name].num_computed_tokens = start
        output = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled),
            num_scheduled_tokens=dict(zip(names, scheduled, strict=True)),
        )
        return runner._gather_mm_embeddings(output)

    return gather


def _v2(module: Any, placed: list[Placed], cache: dict[str, Any]) -> Callable[..., Any]:
    runner = object.__new__(module.EncoderRunner)
    features = {p.prompt.name: p.features for p in placed}
    try:
        from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
    except ModuleNotFoundError:
        runner.encoder_cache = cache  # up to 0.16
    else:
        runner.encoder_cache = EncoderCache()
        runner.encoder_cache.encoder_outputs = cache
        runner.encoder_cache.mm_features = features
    vars(runner).update(
        req_id_to_mm_features=features,
        tmp_is_mm_embed=SimpleNamespace(copy_to_gpu=lambda mask: mask),
        is_realtime=False,
        device="cpu",
    )

    def gather(active: list[Placed], start: int, scheduled: list[int]) -> Any:
        counts = np.array(scheduled)
        return runner.gather_mm_embeddings(
            [p.prompt.name for p in active],
            sum(scheduled),
            counts,
            np.concatenate(([0], np.cumsum(counts))),
            np.array([p.length for p in active]),
            np.array([start] * len(active)),
        )

    return gather
