"""From the entry point to wrapped functions and back: one set of guards in each process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vllm_guard import __version__, hooks, installed, settings, this_process
from vllm_guard.counters import AtExit
from vllm_guard.guard import Guard, InternalError
from vllm_guard.guards import DEFINITIONS
from vllm_guard.log import logger
from vllm_guard.process_report import ProcessReport, guard_report
from vllm_guard.publishing import Publisher
from vllm_guard.settings import Settings
from vllm_guard.states import Mode
from vllm_guard.targets import Patch, Target, judge

if TYPE_CHECKING:
    from vllm_guard.metrics import Endpoint

CONSTRUCTORS = (
    Target("vllm.v1.core.sched.scheduler", "Scheduler.__init__", ("self",)),
    Target("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.__init__", ("self",)),
    Target("vllm.v1.worker.gpu.mm.encoder_runner", "EncoderRunner.__init__", ("self",)),
)
"""What is built in the processes that serve, after everything that might patch has been loaded."""

internal_errors: list[InternalError] = []
"""Errors of our own that were swallowed since `start`; tests raise them again."""


class NotGuardedError(RuntimeError):
    """Raised under ``VLLMGUARD_STRICT=1`` where a guard that should apply does not."""


class _Process:
    """What `start` set up in this process."""

    def __init__(self, chosen: Settings) -> None:
        self.settings = chosen
        self.build = _find_build()
        self.guards = {
            definition.name: Guard(definition, chosen, internal_errors, self.changed)
            for definition in DEFINITIONS
        }
        self.constructions: list[Patch] = []
        # Replaced and never changed, as other threads go through it.
        self.checked: Mapping[str, type] = {}
        self.told: set[str] = set()
        self.announced: tuple[int, str] | None = None
        is_on = any(guard.mode is not Mode.OFF for guard in self.guards.values())
        self.publisher = Publisher(chosen.state_dir, _report, _swallow) if is_on else None
        self.endpoint: Endpoint | None = None

    def changed(self) -> None:
        """Have the others told soon that a guard has acted or failed; takes microseconds."""
        if self.publisher is not None:
            self.publisher.request()

    def publish(self) -> None:
        """Tell the other processes now what the guards do here."""
        if self.publisher is not None:
            self.publisher.publish()


def _find_build() -> installed.Build | None:
    try:
        return installed.find()
    except Exception:  # it is for the log line only
        logger.exception("vllm-guard: could not find out which vLLM this is")
        return None


_lock = threading.RLock()
_process: _Process | None = None
_at_exit: tuple[AtExit, AtExit] | None = None


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


# The child has not the thread that may have held it in the parent.
os.register_at_fork(after_in_child=_renew_lock)


def start() -> None:
    """Read the settings, arm or apply the guards, and say so in one line.

    Does nothing when it has been done; after `stop` it starts afresh.
    """
    global _process, _at_exit  # noqa: PLW0603  one per process is the point
    with _lock:
        if _process is not None:
            return
        internal_errors.clear()
        _process = process = _Process(settings.read(os.environ))
        for problem in process.settings.problems:
            logger.warning("vllm-guard: %s", problem)
        for name in _awaited(process):
            hooks.when_imported(name, _on_import)
        _announce(process)
        if process.publisher is not None:
            hooks.when_imported(this_process.REGISTRY_MODULE, _attach_metrics)
            process.publisher.begin()
        _at_exit = _at_exit or (AtExit(_flush), AtExit(_clean_up, after_children=True))


def stop() -> None:
    """Put back what was replaced; `start` may follow."""
    global _process  # noqa: PLW0603
    with _lock:
        hooks.forget_all()
        if _process is None:
            return
        # Backwards: two guards may have wrapped the same function, one above the other.
        for guard in reversed(_process.guards.values()):
            guard.counters.flush()
            guard.unwrap()
        for patch in _process.constructions:
            patch.undo()
        if _process.endpoint is not None:
            _process.endpoint.detach()
        if _process.publisher is not None:
            _process.publisher.end()
            _process.publisher.remove_ended()
            this_process.leave_run(_process.publisher.run)
        _process = None


def describe() -> dict[str, Any]:
    """Return what `vllm_guard.status` documents."""
    process = _process
    build = process.build if process is not None else _find_build()
    return {
        "version": __version__,
        "build": build.as_dict() if build is not None else None,
        "enabled": process is not None and process.settings.enabled,
        "problems": list(process.settings.problems) if process is not None else [],
        "guards": {name: guard.as_dict(process.checked) for name, guard in process.guards.items()}
        if process is not None
        else {},
    }


def _report() -> ProcessReport:
    """Return what this process tells others."""
    pid = os.getpid()
    guards = {name: guard_report(status) for name, status in describe()["guards"].items()}
    return ProcessReport(pid, this_process.own_start_time(), this_process.role(), guards)


def _swallow(error: Exception) -> None:
    """Remember an error of our own that is no guard's."""
    internal_errors.append(InternalError("vllm-guard", error))


def _attach_metrics(_module: ModuleType) -> None:
    # Only the few processes that may serve /metrics pay for the import.
    from vllm_guard import metrics

    with _lock:
        if _process is not None and _process.publisher is not None:
            publisher = _process.publisher
            collector = metrics.Collector(publisher.folder, publisher.run, _report)
            _process.endpoint = metrics.Endpoint(collector)
            _process.endpoint.attach()


def _awaited(process: _Process) -> list[str]:
    """Return the modules to wait for: those of the guards, and what STRICT speaks up in."""
    names = [name for guard in process.guards.values() for name in guard.awaited]
    if _has_to_stop(process):
        names += [constructor.module for constructor in CONSTRUCTORS]
    return list(dict.fromkeys(names))


def _has_to_stop(process: _Process) -> bool:
    return process.settings.strict and bool(process.settings.problems)


def _on_import(module: ModuleType) -> None:
    with _lock:
        process = _process
        if process is None:
            return
        for guard in process.guards.values():
            if module.__name__ in guard.awaited:
                guard.consider(module)
        for constructor in CONSTRUCTORS:
            if constructor.module == module.__name__ and _can_check(process, constructor, module):
                patch = Patch(constructor, module, partial(_on_construction, module.__name__))
                patch.apply()
                process.constructions.append(patch)
        process.publish()


def _can_check(process: _Process, constructor: Target, module: ModuleType) -> bool:
    guards = [g for g in process.guards.values() if module.__name__ in g.in_module]
    wanted = _has_to_stop(process) or any(
        guard.is_in_force(module.__name__) or guard.idle_in(module.__name__) for guard in guards
    )
    refused = judge(constructor, module)
    # Where there is no such class, none will be built.
    if wanted and refused is not None and hasattr(module, constructor.owner):
        logger.warning(
            "vllm-guard: cannot check a %s when it is built: %s",
            constructor.owner,
            refused.evidence,
        )
    return wanted and refused is None


def _announce(process: _Process) -> None:
    """Log the start line, again only where it has changed or this is a forked child."""
    guards = "; ".join(f"{guard.name} {_summary(guard)}" for guard in process.guards.values())
    if process.announced == (os.getpid(), guards):
        return
    process.announced = (os.getpid(), guards)
    build = process.build or "no vLLM found"
    logger.info("vllm-guard %s (pid %d) on %s: %s", __version__, os.getpid(), build, guards)


def _summary(guard: Guard) -> str:
    if guard.verdict is None:
        waits = f", waits for {', '.join(guard.awaited)}"
        return f"{guard.state}{waits if guard.awaited else ''}"
    return f"{guard.state}, verdict {guard.verdict} ({guard.detail})"


def _on_construction(
    module: str, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any
) -> Any:
    """Before a Scheduler or a runner is built: do the guards reach its class?"""
    process = _process
    complaints: list[str] = []
    if process is not None:
        try:
            _announce(process)
            complaints = _check(process, type(instance), module)
            process.publish()
        except Exception:
            logger.exception("vllm-guard: could not check whether the guards are effective")
        if complaints and process.settings.strict:
            raise NotGuardedError(
                f"VLLMGUARD_STRICT=1 and not everything is guarded: {'; '.join(complaints)}."
                f" Unset VLLMGUARD_STRICT to start without, or switch the guard off."
            )
    return wrapped(*args, **kwargs)


def _check(process: _Process, cls: type, module: str) -> list[str]:
    """Look whether each guard that should act on ``cls`` does; log what does not, once."""
    complaints = list(process.settings.problems)
    for guard in process.guards.values():
        idle = guard.idle_in(module)
        obstacles = [idle] if idle else guard.obstacles(cls, module)
        if obstacles:
            complaints.append(f"{guard.name} does not act on {cls.__qualname__}: {obstacles[0]}")
            if complaints[-1] not in process.told:
                process.told.add(complaints[-1])
                logger.warning("vllm-guard: %s", complaints[-1])
    process.checked = {**process.checked, module: cls}
    return complaints


def _flush() -> None:
    if _process is not None:
        for guard in _process.guards.values():
            guard.counters.flush()
        if _process.publisher is not None:
            _process.publisher.end()


def _clean_up() -> None:
    if _process is not None and _process.publisher is not None:
        _process.publisher.remove_ended()
