"""What in this environment keeps vllm-guard, or a switch of it, from where it should be."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from importlib import metadata

from vllm_guard import installed, settings

_ENTRY_POINT = "vllm_guard"


def warnings() -> Iterator[str]:
    """Yield a line for each thing around vllm-guard that keeps it, or a switch of it, out."""
    found = dict(installed.distributions())
    if len(found) > 1:
        names = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
        yield f"{len(found)} distributions install vllm ({names}): uninstall all but one"
    yield from not_loaded()
    yield from _lost_with_ray()


def not_loaded() -> Iterator[str]:
    """Yield each reason for which vLLM would not load vllm-guard, and what to do about it."""
    plugins = metadata.entry_points(group="vllm.general_plugins")
    if _ENTRY_POINT not in {plugin.name for plugin in plugins}:
        yield (
            "vLLM does not load vllm-guard: its entry point is not installed in this environment"
            " (pip install vllm-guard)"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    # vLLM splits at commas and compares exactly, without stripping.
    if allowed is not None and _ENTRY_POINT not in allowed.split(","):
        yield (
            f"VLLM_PLUGINS={allowed!r} keeps vllm-guard out: add {_ENTRY_POINT} to it, without"
            f" spaces around the commas"
        )


def _lost_with_ray() -> Iterator[str]:
    if importlib.util.find_spec("ray") is None:
        return
    # What vLLM copies to workers of Ray besides its own variables, from 0.17 on.
    listed = os.environ.get("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "")
    names = {name.strip() for name in listed.split(",")}
    prefixes = os.environ.get("VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY", "").split(",")
    kept = tuple(prefix.strip() for prefix in prefixes if prefix.strip())
    lost = [
        name
        for name in sorted(os.environ)
        if name.startswith(settings.PREFIX) and name not in names and not name.startswith(kept)
    ]
    if lost:
        yield (
            f"Ray is installed, and its workers would not get {', '.join(lost)}: set"
            f" VLLM_RAY_EXTRA_ENV_VARS_TO_COPY={','.join(sorted({*names, *lost} - {''}))}"
            f" (before vLLM 0.17 set them where each node runs `ray start`)"
        )
