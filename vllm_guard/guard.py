"""One guard in this process: what it found, what it does, what it counted, and how it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from vllm_guard.counters import Counters
from vllm_guard.definition import Definition
from vllm_guard.log import logger
from vllm_guard.settings import Settings
from vllm_guard.states import Finding, Mode, State, Verdict, merged, worst
from vllm_guard.targets import Patch, Target, Wrapper, exists

MAX_INTERNAL_ERRORS = 5
"""So many errors of our own, and a guard disarms itself."""

# A guard's own state is the first of these that one of its modules is in.
_PRECEDENCE = (State.FAILED, State.APPLIED, State.OBSERVING, State.RETIRED, State.SKIPPED)


class InternalError(NamedTuple):
    """An error of ours that was swallowed so that vLLM could go on.

    Args:
        guard: Name of the guard.
        error: What was raised.
    """

    guard: str
    error: Exception


@dataclass
class InModule:
    """What a guard found and did in one module.

    Args:
        findings: By fault.
        state: ``applied``, ``observing``, ``retired``, ``skipped`` or ``failed``.
        detail: What the state rests on.
        patches: What was wrapped.
    """

    findings: Mapping[str, Finding] = field(default_factory=dict)
    state: State = State.SKIPPED
    detail: str = ""
    patches: list[Patch] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst of the faults that show in the module."""
        return worst(finding.verdict for finding in self.findings.values())


class Guard:
    """The life of one guard between `register` and `unpatch`.

    Args:
        definition: What it is.
        settings: What the user asked for.
        internal_errors: Where swallowed errors are remembered; tests raise them again.
        changed: Called, without arguments, when it has acted or failed.
    """

    def __init__(
        self,
        definition: Definition,
        settings: Settings,
        internal_errors: list[InternalError],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.definition = definition
        self.name = definition.name
        self.settings = settings
        self.mode = settings.mode(definition.name)
        # Replaced and never changed: other threads go through both.
        self.in_module: Mapping[str, InModule] = {}
        self.findings: Mapping[str, Finding] = {}
        """For each fault that was looked at, the worst that any module shows."""
        self.counters = Counters(definition.name, changed=changed)
        self.error_count = 0
        self.failing_open = _FailingOpen(self)
        self.active = False
        """Whether the wrappers do anything: false makes each of them call straight through."""
        self._overall = State.OFF if self.mode is Mode.OFF else None
        self._disarmed_by = ""
        self._internal_errors = internal_errors
        self._changed = changed
        self._wrappers: Mapping[str, Wrapper] = {}

    @property
    def observes(self) -> bool:
        """Whether the guard only counts."""
        return self.mode is Mode.OBSERVE

    @property
    def state(self) -> State:
        """The state of the guard as a whole."""
        if self._overall is not None:
            return self._overall
        states = {found.state for found in self.in_module.values()}
        return next((state for state in _PRECEDENCE if state in states), State.ARMED)

    @property
    def detail(self) -> str:
        """What the state rests on, of all modules that were looked at."""
        details = [found.detail for found in self.in_module.values()]
        return self._disarmed_by or "; ".join(dict.fromkeys(filter(None, details)))

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of its faults; None before any module was looked at."""
        if not self.in_module:
            return None
        return worst(finding.verdict for finding in self.findings.values())

    @property
    def awaited(self) -> tuple[str, ...]:
        """The modules that it waits for."""
        if self._overall is not None:
            return ()
        return tuple(name for name in self.definition.modules if name not in self.in_module)

    def answers(self, fault: str) -> bool:
        """Whether the guard acts on this fault: what is fixed is left alone unless forced."""
        # None after `unwrap`, which a call in another thread may outlive.
        found = self.findings.get(fault)
        return found is not None and (found.verdict is Verdict.NEEDED or self.mode is Mode.FORCE)

    def consider(self, module: ModuleType) -> None:
        """Look at an imported module and wrap its targets: all that are needed, or none.

        Args:
            module: One of `Definition.modules`, fully imported.
        """
        found = InModule()
        self.in_module = {**self.in_module, module.__name__: found}
        try:
            self._consider(module, found)
        except Exception as error:
            found.state = State.FAILED
            found.detail = f"looking at {module.__name__} failed: {error!r}"
            self.swallow(error)

    def _consider(self, module: ModuleType, found: InModule) -> None:
        found.findings = self.definition.examine(module)
        self.findings = merged(self.findings, found.findings)
        found.detail = "; ".join(dict.fromkeys(f.evidence for f in found.findings.values()))
        if found.verdict is Verdict.ABSENT:
            found.state = State.SKIPPED
        elif found.verdict is Verdict.NEEDED or self.mode is Mode.FORCE:
            self._wrap(module, found)
        else:
            found.state = State.RETIRED if found.verdict is Verdict.FIXED else State.SKIPPED

    def unwrap(self) -> None:
        """Switch the guard off and put the original objects back."""
        self._switch(State.OFF)
        patches = [patch for found in self.in_module.values() for patch in found.patches]
        for patch in reversed(patches):
            if not patch.undo():
                logger.warning(
                    "vllm-guard %s: %s has been wrapped by somebody else since; our wrapper stays"
                    " below theirs and passes every call through",
                    self.name,
                    patch.target.path,
                )
        self.in_module, self.findings = {}, {}

    def idle_in(self, module: str) -> str:
        """Say why the guard does nothing in a module though a fault is there, or may be.

        Args:
            module: Its name.

        Returns:
            State and reason; empty where the guard is in force or has nothing to do.
        """
        found = self.in_module.get(module)
        if found is None or found.verdict is Verdict.ABSENT:
            return ""
        if self.state is State.DISARMED:
            return f"{self.state}, {self.detail}"
        if found.state in (State.SKIPPED, State.FAILED):
            return f"{found.state}, {found.detail}"
        return ""

    def is_in_force(self, module: str) -> bool:
        """Whether the guard has wrapped something in a module and acts."""
        return self.active and bool(self.in_module[module].patches)

    def obstacles(self, cls: type, module: str) -> list[str]:
        """Say what keeps this guard from acting on instances of ``cls``; empty if nothing.

        Args:
            cls: A class that was derived from one in the module, or should have been.
            module: Name of a module of the targets.
        """
        found = self.in_module.get(module, InModule())
        obstacles = (patch.obstacle(cls) for patch in found.patches)
        return [obstacle for obstacle in obstacles if obstacle]

    def swallow(self, error: Exception) -> None:
        """Count an error of our own, log the first, and disarm after too many.

        Args:
            error: What our code raised.
        """
        self.error_count += 1
        if len(self._internal_errors) < 100:
            self._internal_errors.append(InternalError(self.name, error))
        if self.error_count == 1:
            logger.error(
                "vllm-guard %s: an error in the guard itself; vLLM goes on as if it were not there."
                " Please report it.",
                self.name,
                exc_info=error,
            )
        if self.error_count == MAX_INTERNAL_ERRORS:
            self._switch(State.DISARMED)
            self._disarmed_by = f"{self.error_count} internal errors, the last: {error!r}"
            logger.error("vllm-guard %s: disarmed after %s", self.name, self._disarmed_by)
        self._changed()

    def as_dict(self, checked: Mapping[str, type]) -> dict[str, Any]:
        """Return what `vllm_guard.status` shows of this guard.

        Args:
            checked: By module, the class that was built last in this process.
        """
        places = {name: cls for name, cls in checked.items() if name in self.definition.modules}
        obstacles = [o for name, cls in places.items() for o in self.obstacles(cls, name)]
        return {
            "mode": str(self.mode),
            "verdict": str(self.verdict) if self.verdict else None,
            "state": str(self.state),
            "effective": self.active and not obstacles if places else None,
            "obstacles": list(dict.fromkeys(obstacles)),
            "detail": self.detail,
            "faults": {
                fault: {"verdict": str(finding.verdict), "evidence": finding.evidence}
                for fault, finding in self.findings.items()
            },
            "triggers": self.counters.as_dict(),
            "last_triggers": self.counters.last(),
            "internal_errors": self.error_count,
        }

    def _switch(self, state: State) -> None:
        self._overall = state
        self.active = False

    def _is_needed(self, target: Target, found: InModule) -> bool:
        faults = self.definition.faults_of(target)
        verdicts = {found.findings[fault].verdict for fault in faults}
        verdicts.discard(Verdict.ABSENT)
        return target.wrapped and bool(
            Verdict.NEEDED in verdicts or (self.mode is Mode.FORCE and verdicts)
        )

    def _wrap(self, module: ModuleType, found: InModule) -> None:
        try:
            # One set for all modules: what is wrapped in one may know of what is in another.
            self._wrappers = self._wrappers or self.definition.wrappers(self)
            for target in self.definition.targets_in(module.__name__):
                if exists(target, module) and self._is_needed(target, found):
                    found.patches.append(Patch.shared(target, module, self._wrappers[target.path]))
        except Exception as error:
            while found.patches:
                found.patches.pop().undo()
            found.state = State.FAILED
            found.detail = f"wrapping failed and was undone: {error!r}"
            return
        found.state = State.OBSERVING if self.observes else State.APPLIED
        self.active = self._overall is None


class _FailingOpen:
    """Swallows errors of ours inside a ``with`` block; what vLLM raises is never inside one."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.swallow(error)
        return True
