"""One guard in this process: what it found, what it does, what it counted, and how it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from vllm_guard.counters import Counters
from vllm_guard.log import logger
from vllm_guard.states import Finding, Mode, State, Verdict, worst
from vllm_guard.targets import Patch, Target, Wrapper, exists, judge

MAX_INTERNAL_ERRORS = 5
"""So many errors of our own, and a guard disarms itself."""


# Asked several times a step: looking a member up in its enum costs as much as all the rest.
_ACTIVE = (State.APPLIED, State.OBSERVING)


class Definition(NamedTuple):
    """What a guard's module declares.

    Args:
        name: As in ``VLLMGUARD_<NAME>``.
        faults: Names of the faults it answers to.
        targets: The functions it wraps.
        probe: Looks at an imported module of the targets and returns a finding for each fault.
        wrappers: Makes the wrappers for one `Guard`, by target path.
    """

    name: str
    faults: tuple[str, ...]
    targets: tuple[Target, ...]
    probe: Callable[[ModuleType], Mapping[str, Finding]]
    wrappers: Callable[[Guard], Mapping[str, Wrapper]]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the targets, each once, in order."""
        return tuple(dict.fromkeys(target.module for target in self.targets))


class InternalError(NamedTuple):
    """An error of ours that was swallowed so that vLLM could go on.

    Args:
        guard: Name of the guard.
        error: What was raised.
    """

    guard: str
    error: Exception


class Guard:
    """The life of one guard between `register` and `unpatch`.

    Args:
        definition: What it is.
        mode: What the user asked of it.
        internal_errors: Where swallowed errors are remembered; tests raise them again.
    """

    def __init__(
        self, definition: Definition, mode: Mode, internal_errors: list[InternalError]
    ) -> None:
        self.definition = definition
        self.name = definition.name
        self.mode = mode
        self.state = State.OFF if mode is Mode.OFF else State.ARMED
        self.findings: dict[str, Finding] = {}
        self.detail = ""
        self.counters = Counters(definition.name)
        self.error_count = 0
        self.failing_open = _FailingOpen(self)
        self._patches: list[Patch] = []
        self._internal_errors = internal_errors

    @property
    def active(self) -> bool:
        """Whether the wrappers do anything: false makes each of them call straight through."""
        return self.state in _ACTIVE

    @property
    def observes(self) -> bool:
        """Whether the guard only counts."""
        return self.mode is Mode.OBSERVE

    def answers(self, fault: str) -> bool:
        """Whether the guard acts on this fault: what is fixed is left alone unless forced."""
        return self.findings[fault].verdict is Verdict.NEEDED or self.mode is Mode.FORCE

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of its faults; None before the module was looked at."""
        if not self.findings:
            return None
        return worst(finding.verdict for finding in self.findings.values())

    def consider(self, module: ModuleType) -> None:
        """Look at an imported module and wrap its targets: all that are needed, or none.

        Args:
            module: One of `Definition.modules`, fully imported.
        """
        try:
            self._consider(module)
        except Exception as error:
            self.state = State.FAILED
            self.detail = f"looking at {module.__name__} failed: {error!r}"
            self.swallow(error)

    def _consider(self, module: ModuleType) -> None:
        targets = [t for t in self.definition.targets if t.module == module.__name__]
        self.findings = self._examine(targets, module)
        verdict = self.verdict
        self.detail = "; ".join(dict.fromkeys(f.evidence for f in self.findings.values()))
        if verdict is Verdict.ABSENT:
            self.state = State.SKIPPED
        elif verdict is Verdict.NEEDED or self.mode is Mode.FORCE:
            self._wrap([t for t in targets if exists(t, module) and self._is_needed(t)], module)
        else:
            self.state = State.RETIRED if verdict is Verdict.FIXED else State.SKIPPED

    def unwrap(self) -> None:
        """Put the original objects back and switch the guard off."""
        for patch in reversed(self._patches):
            if not patch.undo():
                logger.warning(
                    "vllm-guard %s: %s has been wrapped by somebody else since; our wrapper stays"
                    " below theirs and passes every call through",
                    self.name,
                    patch.target.path,
                )
        self._patches.clear()
        self.state = State.OFF

    def obstacles(self, cls: type) -> list[str]:
        """Say what keeps this guard from acting on instances of ``cls``; empty if nothing."""
        found = (patch.obstacle(cls) for patch in self._patches)
        return [obstacle for obstacle in found if obstacle]

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
            self.state = State.DISARMED
            self.detail = f"{self.error_count} internal errors, the last: {error!r}"
            logger.error("vllm-guard %s: disarmed after %s", self.name, self.detail)

    def as_dict(self, cls: type | None) -> dict[str, Any]:
        """Return what `vllm_guard.status` shows of this guard.

        Args:
            cls: The class of Scheduler that runs in this process; None if there is none yet.
        """
        return {
            "mode": str(self.mode),
            "verdict": str(self.verdict) if self.verdict else None,
            "state": str(self.state),
            "effective": None if cls is None else self.active and not self.obstacles(cls),
            "detail": self.detail,
            "faults": {
                fault: {"verdict": str(finding.verdict), "evidence": finding.evidence}
                for fault, finding in self.findings.items()
            },
            "triggers": self.counters.as_dict(),
            "internal_errors": self.error_count,
        }

    def _examine(self, targets: list[Target], module: ModuleType) -> dict[str, Finding]:
        """Return a finding for each fault: what keeps a target of it from being wrapped, or else
        what the probe says."""
        refused: dict[str, Finding] = {}
        for target in targets:
            finding = judge(target, module)
            if finding is None:
                continue
            for fault in target.faults or self.definition.faults:
                # A target that somebody replaced tells more than one that is missing.
                if fault not in refused or finding.verdict is not Verdict.ABSENT:
                    refused[fault] = finding
        probed: Mapping[str, Finding] = {}
        if len(refused) < len(self.definition.faults):
            try:
                probed = self.definition.probe(module)
            except Exception as error:
                finding = Finding(Verdict.UNKNOWN, f"the probe failed: {error!r}")
                probed = dict.fromkeys(self.definition.faults, finding)
        return {fault: refused.get(fault) or probed[fault] for fault in self.definition.faults}

    def _is_needed(self, target: Target) -> bool:
        verdicts = {
            self.findings[fault].verdict for fault in target.faults or self.definition.faults
        }
        verdicts.discard(Verdict.ABSENT)
        return target.wrapped and bool(
            Verdict.NEEDED in verdicts or (self.mode is Mode.FORCE and verdicts)
        )

    def _wrap(self, targets: list[Target], module: ModuleType) -> None:
        applied: list[Patch] = []
        try:
            wrappers = self.definition.wrappers(self)
            for target in targets:
                applied.append(Patch.shared(target, module, wrappers[target.path]))
        except Exception as error:
            for patch in reversed(applied):
                patch.undo()
            self.state = State.FAILED
            self.detail = f"wrapping failed and was undone: {error!r}"
            return
        self._patches += applied
        self.state = State.OBSERVING if self.observes else State.APPLIED


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
