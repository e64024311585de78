"""Known causes of a fault, in single models: which of them are fixed in a source?

Information only. A cause that is fixed makes its fault rarer and retires nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from vllm_guard.probes.static.errors import Unsupported
from vllm_guard.probes.static.program import Program
from vllm_guard.states import Finding, Verdict

_MINICPM = "vllm.model_executor.models.minicpmv4_6"


class Cause(NamedTuple):
    """One known cause.

    Args:
        name: As ``MiniCPM-V 4.6 width and height``.
        pull_request: Number of the one that fixed it.
        finding: What the source does about it.
    """

    name: str
    pull_request: int
    finding: Finding


class _Size(NamedTuple):
    """vLLM's ImageSize: width first."""

    width: int
    height: int


def find_causes(program: Program) -> dict[str, list[Cause]]:
    """Judge the known causes, by guard; a model that the source does not have has none.

    Args:
        program: The source.
    """
    program.renew_budget()
    try:
        module = program.module(_MINICPM)
    except Unsupported:
        return {}
    if module is None:
        return {}
    path = program.path(_MINICPM)
    causes = []
    for name, pull_request, judge in _MINICPM_CAUSES:
        try:
            finding = judge(program, module)
        except Exception as error:
            finding = Finding(Verdict.UNKNOWN, f"could not be worked out: {error}")
        evidence = f"{finding.evidence} ({path})"
        causes.append(Cause(f"MiniCPM-V 4.6 {name}", pull_request, Finding(finding[0], evidence)))
    return {"mm_merge": causes}


def _method(module: ModuleType, cls: str, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = vars(getattr(module, cls))[name]
    return method


def _judge_size_order(_program: Program, module: ModuleType) -> Finding:
    """The image processor takes height first: which does it get?"""
    sizes: list[tuple[int, ...]] = []

    def get_sliced_grid(size: Any, *_rest: Any) -> None:
        sizes.append(tuple(size))

    processor = SimpleNamespace(
        max_slice_nums=9,
        patch_size=14,
        scale_resolution=448,
        get_sliced_grid=get_sliced_grid,
        find_best_resize=lambda *_sizes, **_options: (14, 14),
    )
    info = SimpleNamespace(
        get_image_processor=lambda: processor, _get_downsample_mode=lambda _mode: "16x"
    )
    _method(module, "MiniCPMV4_6ProcessingInfo", "_compute_visual_tokens")(info, _Size(2, 1))
    if sizes == [(1, 2)]:
        return Finding(Verdict.FIXED, "the grid is asked for with height before width")
    if sizes == [(2, 1)]:
        return Finding(Verdict.NEEDED, "the grid is asked for with width before height")
    return Finding(Verdict.UNKNOWN, f"the grid is asked for with {sizes}")


def _judge_grid_order(_program: Program, module: ModuleType) -> Finding:
    """Two rows of three slices: how are they written down?"""
    plain = SimpleNamespace()
    info = SimpleNamespace(
        get_image_processor=lambda: plain,
        get_tokenizer=lambda: plain,
        _compute_visual_tokens=lambda *_sizes, **_options: ([2, 3], 1, 1),
    )
    text = _method(module, "MiniCPMV4_6ProcessingInfo", "get_slice_image_placeholder")(
        info, _Size(2, 1)
    )
    rows = [line.count("<slice>") for line in text.split("\n")]
    if rows == [3, 3]:
        return Finding(Verdict.FIXED, "slices are written in their rows")
    if rows == [2, 2, 2]:
        return Finding(Verdict.NEEDED, "rows and columns of slices are swapped")
    return Finding(Verdict.UNKNOWN, f"slices are written in rows of {rows}")


def _judge_video_sizes(program: Program, _module: ModuleType) -> Finding:
    """Does the processor hand on the sizes of the frames that it has seen?"""
    path = program.path(_MINICPM)
    assert path is not None
    functions = [
        node
        for node in ast.walk(program.tree(path))
        if isinstance(node, ast.FunctionDef) and node.name == "process_videos"
    ]
    if len(functions) != 1:
        return Finding(Verdict.UNKNOWN, f"there are {len(functions)} functions process_videos")
    keys = {
        key.value
        for node in ast.walk(functions[0])
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant)
    }
    if "video_image_sizes" in keys:
        return Finding(Verdict.FIXED, "placeholders of a video follow the sizes of its frames")
    if "video_tgt_sizes" in keys:
        return Finding(Verdict.NEEDED, "placeholders of a video are guessed without its frames")
    return Finding(Verdict.UNKNOWN, "process_videos returns something unknown")


_MINICPM_CAUSES: tuple[tuple[str, int, Callable[[Program, ModuleType], Finding]], ...] = (
    ("sizes of video frames", 44509, _judge_video_sizes),
    ("width and height", 45244, _judge_size_order),
    ("rows and columns of slices", 45918, _judge_grid_order),
)
