"""Which guards are on while the simulator runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import vllm_guard

GUARDS = {"none": (), "both": ("clamp", "stale"), "clamp": ("clamp",), "stale": ("stale",)}
"""The arms: which guards are on."""


@contextmanager
def guarded(guards: str) -> Iterator[None]:
    """Register the guards of the arm, and put vLLM back in the end."""
    switches = {
        f"VLLMGUARD_{name.upper()}": "auto" if name in GUARDS[guards] else "off"
        for name in GUARDS["both"]
    }
    os.environ.update(switches)
    try:
        if guards != "none":
            vllm_guard.register()
        yield
    finally:
        vllm_guard.unpatch()
        for name in switches:
            del os.environ[name]
