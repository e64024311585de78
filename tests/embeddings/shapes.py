"""Healthy steps that look unusual: channels beside the embeddings, rows that are wider, a drafter
that looks ahead. The guard has nothing to do in any of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import vllm_guard
from tests.embeddings.step import (
    HIDDEN,
    Item,
    Placed,
    Prompt,
    RunnerV1,
    RunnerV2,
    load_modules,
    merge_as_most_models,
)
from tests.scheduler.arms import report

POSITION_CHANNELS = 5
"""What Qwen2.5-VL puts behind each embedding of a pruned video: positions, and which were kept."""

LEVELS = 3
"""Embeddings that Qwen3-VL puts side by side in a row: one for the input, two for later layers."""

PROMPT = Prompt("p", (Item("first", 6, 6), Item("second", 4, 4)))


def _cache(width: int, *names: str) -> dict[str, torch.Tensor]:
    rows = {item.name: item.rows for item in PROMPT.items if item.name in names}
    return {name: torch.randn((count, width)) for name, count in rows.items()}


def pruned_video() -> list[torch.Tensor]:
    """Efficient video sampling with M-RoPE: the positions are taken off the rows by the model."""
    placed = [Placed(PROMPT)]
    runner = RunnerV1(
        load_modules()[0], placed, _cache(HIDDEN + POSITION_CHANNELS, "first", "second")
    )
    state = runner.states["p"]
    state.mrope_positions, state.prompt_token_ids = torch.zeros((3, placed[0].length)), []
    vars(runner.runner).update(
        is_multimodal_pruning_enabled=True,
        uses_mrope=True,
        model=SimpleNamespace(recompute_mrope_positions=_without_positions),
        mrope_positions=SimpleNamespace(copy_to_gpu=lambda _count: None),
        _calc_mrope_positions=lambda _output: None,
    )
    return _merged(*runner(placed, 0, [placed[0].length]))


def _without_positions(
    multimodal_embeddings: list[torch.Tensor], mrope_positions: torch.Tensor, **_given: Any
) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    return [rows[:, :HIDDEN] for rows in multimodal_embeddings], mrope_positions, 0


def deep_stack() -> list[torch.Tensor]:
    """Rows of several embeddings each, which the model takes apart before it merges them."""
    placed = [Placed(PROMPT)]
    runner = RunnerV1(load_modules()[0], placed, _cache(LEVELS * HIDDEN, "first", "second"))
    embeddings, mask = runner(placed, 0, [placed[0].length])
    levels = zip(*(rows.split(HIDDEN, dim=1) for rows in embeddings), strict=True)
    return [rows for level in levels for rows in _merged(list(level), mask)]


def looking_ahead(make: Callable[..., Any], module: Any) -> list[torch.Tensor]:
    """A drafter one token ahead, where the next item begins, which is not encoded yet."""
    placed = [Placed(PROMPT)]
    runner = make(module, placed, _cache(HIDDEN, "first"))
    second = placed[0].places["second"][0]
    return _merged(*runner(placed, 0, [second], look_ahead=1))


def _merged(embeddings: list[torch.Tensor], mask: torch.Tensor) -> list[torch.Tensor]:
    batch = torch.zeros((len(mask), HIDDEN))
    return [merge_as_most_models(batch, embeddings, mask, [])]


def _steps() -> dict[str, Callable[[], list[torch.Tensor]]]:
    v1, v2, _ = load_modules()
    steps = {"pruned video": pruned_video, "deep stack": deep_stack}
    # Before 0.24 an item that is not there yet is an error, for drafters too.
    if "look-ahead" in inspect.getsource(v1.GPUModelRunner._gather_mm_embeddings):
        steps["drafter v1"] = lambda: looking_ahead(RunnerV1, v1)
    if v2 and "draft_lookahead" in inspect.getsource(v2.EncoderRunner.gather_mm_embeddings):
        steps["drafter v2"] = lambda: looking_ahead(RunnerV2, v2)
    return steps


def outcomes() -> dict[str, Any]:
    """Run each step without the guard and with it."""
    found = {}
    for name, step in _steps().items():
        results = []
        for patch in (vllm_guard.unpatch, vllm_guard.register):
            patch()
            torch.manual_seed(0)
            results.append(step())
        unguarded, guarded = results
        found[name] = {
            "marked": sum(int((rows != 0).any(dim=1).sum()) for rows in unguarded),
            "identical": all(map(torch.equal, unguarded, guarded)),
        }
    found_and_guard = {"steps": found, "guard": report("mm_merge")}
    vllm_guard.unpatch()
    return found_and_guard
