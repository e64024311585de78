"""Guards around three upstream faults that kill vLLM's EngineCore.

vLLM loads this package by itself, through the ``vllm.general_plugins`` entry point, in every
process it starts. See ``README.md`` for what is guarded and how to switch it off.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "register", "status", "unpatch"]


def register() -> None:
    """Arm the guards in this process; the entry point that vLLM calls.

    Never raises (vLLM calls plugins without a ``try``), may be called any number of times, and
    imports no vLLM module and no torch. After `unpatch` it reads the environment again.
    """
    try:
        from vllm_guard import runtime

        runtime.start()
    except Exception:
        import logging

        # Not vllm_guard.log: it may be the very module that cannot be imported.
        logging.getLogger("vllm.vllm_guard").exception(
            "vllm-guard could not start; vLLM runs without it"
        )


def unpatch() -> None:
    """Put back the exact objects that `register` replaced, and disarm what still waits.

    Where somebody wrapped our wrapper afterwards, theirs stays and ours passes every call
    through; a log line says so.
    """
    from vllm_guard import runtime

    runtime.stop()


def status() -> dict[str, Any]:
    """Describe this process.

    Returns:
        A JSON-able dictionary: ``version``, ``build`` (the vLLM found), ``enabled``, ``problems``
        (lines about bad settings) and, by name, ``guards`` with mode, verdict, state, whether the
        wrappers are what Python finds (``effective``: true, false, or null before the first
        Scheduler) or what keeps them from it (``obstacles``), faults with their evidence, triggers
        by reason and action, when the last was (``last_triggers``: by reason, seconds since the
        epoch), internal errors.
    """
    from vllm_guard import runtime

    return runtime.describe()
