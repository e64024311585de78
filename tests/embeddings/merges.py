"""The merge itself, without the gather step before it, and a merge that a model has of its own.

Every value is what was found; what it should be stands in the tests.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import vllm

import vllm_guard
from tests.embeddings.cases import problems
from tests.embeddings.places import PLACES, TEXT
from tests.embeddings.step import (
    HIDDEN,
    Computed,
    Item,
    Merge,
    Placed,
    Prompt,
    load_modules,
    run,
)
from tests.scheduler.arms import report

MERGE = "vllm.model_executor.models.utils"
NAME = "_merge_multimodal_embeddings"

AUDIO_IN_VIDEO = (
    Item("v", 6, 6, gaps=True, modality="video"),
    Item("s", 5, 6, gaps=True, overlaps=True, modality="audio"),
)
HEALTHY_AUDIO_IN_VIDEO = (
    Item("v", 6, 6, gaps=True, modality="video"),
    Item("s", 6, 6, gaps=True, overlaps=True, modality="audio"),
)


def merge(items: Any, name: str = NAME, module: Any = None) -> dict[str, Any]:
    """Merge ``items`` into eight positions of text; return the rows or the error."""
    batch = torch.full((8, HIDDEN), TEXT)
    mask = torch.zeros(8, dtype=torch.bool)
    mask[list(PLACES)] = True
    before = _triggers()
    try:
        merged = vars(module or sys.modules[MERGE])[name](
            inputs_embeds=batch, multimodal_embeddings=items, is_multimodal=mask
        )
    except (ValueError, RuntimeError) as error:
        return {"error": str(error), "triggers": _triggers() - before}
    return {
        "error": "",
        # One number a position: all columns of a row are equal, or the number is lost.
        "rows": [row[0].item() if bool((row == row[0]).all()) else None for row in merged],
        "triggers": _triggers() - before,
    }


def _triggers() -> int:
    guard = vllm_guard.status()["guards"].get("mm_merge", {"triggers": {}})
    return sum(sum(actions.values()) for actions in guard["triggers"].values())


def numbered(count: int, start: int = 1, width: int = HIDDEN) -> torch.Tensor:
    """Rows that are filled with start, start + 1 and so on."""
    return (torch.arange(count, dtype=torch.float32) + start)[:, None].repeat(1, width)


def singles() -> dict[str, Any]:
    """What becomes of items that reach the merge without the gather step."""
    items: dict[str, Any] = {
        "healthy": [numbered(6)],
        "healthy-two": [numbered(2), numbered(4, 11)],
        "healthy-stacked": torch.stack([numbered(3), numbered(3, 11)]),
        "short": [numbered(4)],
        "long": [numbered(9)],
        "one-row": [numbered(1)],
        "wrong-hidden-size": [numbered(6, width=HIDDEN + 2)],
        "two-short": [numbered(2), numbered(3, 11)],
        "two-long": [numbered(4), numbered(4, 11)],
    }
    return {name: merge(item) for name, item in items.items()}


def aliases() -> dict[str, Any]:
    """Modules that bound the function by name, before us and while we are there."""
    original = load_modules()[2]._merge_multimodal_embeddings
    before = _module("vllm.some_model", merge_multimodal_embeddings=original)
    vllm_guard.register()
    wrapper = sys.modules[MERGE].__dict__[NAME]
    after = _module("vllm.another_model", **{NAME: wrapper})
    found = {
        "wrapped": wrapper is not original,
        "before": merge([numbered(5)], "merge_multimodal_embeddings", before),
        "after": merge([numbered(5)], NAME, after),
    }
    vllm_guard.unpatch()
    found["restored"] = [
        sys.modules[MERGE].__dict__[NAME] is original,
        before.__dict__["merge_multimodal_embeddings"] is original,
        after.__dict__[NAME] is original,
    ]
    return found


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
    return module


def interleaved() -> dict[str, Any]:
    """Sound in a video, merged by Qwen2.5-Omni's own function, which we do not wrap.

    Nothing where this release has no such function.
    """
    merge_interleaved = _interleaved_merge()
    if merge_interleaved is None:
        return {}
    # Up to 0.28 it takes an item for a video if there is room for one of its size.
    others = Prompt("first", (Item("a", 7, 7),))
    bad = (others, Prompt("omni", AUDIO_IN_VIDEO))
    healthy = (others, Prompt("omni", HEALTHY_AUDIO_IN_VIDEO))
    vllm_guard.unpatch()
    right = run("v1", healthy, 1000, merge=merge_interleaved)
    unguarded = run("v1", bad, 1000, merge=merge_interleaved)
    vllm_guard.register()
    before = _triggers()
    guarded = run("v1", bad, 1000, merge=merge_interleaved)
    return {
        "healthy": right.error,
        "unguarded": unguarded.error,
        "guarded": problems(bad, guarded, right),
        "triggers": _triggers() - before,
    }


def _interleaved_merge() -> Merge | None:
    function = _function_of("model_executor/models/qwen2_5_omni_thinker.py")
    if function is None:
        return None

    def call(
        batch: torch.Tensor,
        embeddings: list[torch.Tensor],
        mask: torch.Tensor,
        computed: list[Computed],
    ) -> torch.Tensor:
        kinds = {"video": torch.zeros_like(mask), "audio": torch.zeros_like(mask)}
        first = 0
        for placed, _, count in computed:
            for item in placed.prompt.items:
                if item.modality in kinds:
                    places = torch.tensor(Placed(placed.prompt).places[item.name])
                    kinds[item.modality][first + places] = True
            first += count
        given = {f"is_{kind}": places for kind, places in kinds.items()}
        counts = {f"num_{kind}": int(places.sum()) for kind, places in kinds.items()}
        # Where it tells sound from video by size, it is told how many there are.
        wanted = function.__code__.co_varnames
        given |= {name: count for name, count in counts.items() if name in wanted}
        return function(batch, embeddings, is_multimodal=mask, **given)

    return call


def _function_of(file: str, name: str = "merge_interleaved_embeddings") -> Any:
    """A function of a model's file, without the file: that needs the model's own libraries."""
    tree = ast.parse((Path(vllm.__file__).parent / file).read_text())
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    names: dict[str, Any] = {"torch": torch, "Sequence": Sequence, "MultiModalEmbeddings": Any}
    exec(compile(tree, file, "exec"), names)
    return names.get(name)


def outcomes() -> dict[str, Any]:
    """Run everything on the imported vLLM."""
    load_modules()
    results: dict[str, Any] = {"unguarded": singles(), "aliases": aliases()}
    vllm_guard.register()
    results["guarded"] = singles()
    results["interleaved"] = interleaved()
    results["guard"] = report("mm_merge")
    vllm_guard.unpatch()
    return results
