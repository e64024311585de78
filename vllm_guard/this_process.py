"""What this process is to vLLM, and which server it belongs to."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from multiprocessing import process

RUN_VARIABLE = "VLLMGUARD_RUN"
"""Set by the first process of a server, inherited by all that it starts."""
UNKNOWN = "unknown"
REGISTRY_MODULE = "vllm.v1.metrics.prometheus"
"""The module of vLLM that chooses the registry behind ``/metrics``; where metrics are served."""

_REGISTRY = "vllm.model_executor.models.registry"
# How the names begin under which vLLM starts its processes (0.10 to 0.33), and what its log lines
# make of them.
_CHILDREN = {
    "EngineCore": "EngineCore",
    "VllmWorker-": "Worker_",
    "ApiServer_": "APIServer_",
    "VLLM_DP_Coordinator": "DPCoordinator",
}
_PROGRAMS = (
    (_REGISTRY, "RegistryInspection"),
    ("vllm.entrypoints.openai.api_server", "APIServer"),
    # It imports the former late, and only starts others where several are asked for.
    ("vllm.entrypoints.cli.serve", "APIServer"),
    ("vllm.entrypoints.llm", "LLM"),
)


def role() -> str:
    """Return what this process is, in the words of vLLM's log lines.

    ``APIServer``, ``APIServer_1``, ``EngineCore``, ``EngineCore_DP0``, ``Worker_0`` (its rank),
    ``DPCoordinator``, ``RegistryInspection``, ``LLM`` (a program that uses that class), `UNKNOWN`.
    """
    if process.parent_process() is not None:
        name = process.current_process().name
        for begin, word in _CHILDREN.items():
            if name.startswith(begin):
                return word + name[len(begin) :]
    program = _program()
    return next(
        (word for name, word in _PROGRAMS if name == program or _is_used(name)),
        UNKNOWN,
    )


def _program() -> str:
    """Return the module that ``python -m`` was given, if it was."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(spec, "name", ""))


def _is_used(module: str) -> bool:
    # Many processes import the registry; one runs it.
    return module != _REGISTRY and module in sys.modules


def join_run() -> str:
    """Return the server's run that this process belongs to; it begins with the first one's pid.

    It belongs to the run of the process that started it. A program of its own begins a new one:
    whoever starts two servers from a program that uses vLLM itself has two, each with its own
    ``/metrics``. The registry inspection is part of the process that waits for it.
    """
    inherited = os.environ.get(RUN_VARIABLE, "")
    is_part = process.parent_process() is not None or _program() == _REGISTRY
    if is_part and is_run(inherited):
        return inherited
    run = f"{os.getpid()}-{os.urandom(8).hex()}"
    os.environ[RUN_VARIABLE] = run
    return run


def is_run(name: str) -> bool:
    """Whether a name can be that of a run; anything else is never made part of a path.

    >>> is_run("4711-0123456789abcdef"), is_run("../4711")
    (True, False)
    """
    return re.fullmatch(r"\d{1,10}-[0-9a-f]{16}", name, re.ASCII) is not None


def leave_run(run: str) -> None:
    """Forget a run, so that the next `join_run` of its first process begins a new one."""
    if run.startswith(f"{os.getpid()}-") and os.environ.get(RUN_VARIABLE) == run:
        del os.environ[RUN_VARIABLE]


def start_time(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot: tells a reused pid.

    Returns:
        0 where the system does not tell, or there is no such process.
    """
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def own_start_time() -> int:
    """Return the `start_time` of this process, for which the system is asked once."""
    return _own_start_time(os.getpid())


@lru_cache(maxsize=1)
def _own_start_time(pid: int) -> int:
    return start_time(pid)


def is_alive(pid: int, started: int) -> bool:
    """Whether a process still runs, in the pid namespace of this one.

    Args:
        pid: Its number, at least 1.
        started: Its `start_time`; 0: not known, and a later process of that number passes for it.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    if _stat(pid)[:1] == [b"Z"]:  # ended, and nobody has asked how yet
        return False
    return not started or start_time(pid) == started


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the process's state on; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may itself hold spaces and parentheses.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
