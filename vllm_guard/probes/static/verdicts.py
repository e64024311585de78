"""What the code of a source does about each fault: the probes of imported modules, interpreted."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from vllm_guard.booking import ID_REUSE
from vllm_guard.definition import Definition
from vllm_guard.guards import DEFINITIONS
from vllm_guard.guards.clamp import LAST_CHUNK, PREFILL_TOKEN
from vllm_guard.guards.stale import NO_QUEUE, RESET, RESUME_EARLY
from vllm_guard.installed import Build, parse
from vllm_guard.pipeline import ASYNC_SCHEDULER
from vllm_guard.probes.delivery import judge_prefill_token
from vllm_guard.probes.static.causes import Cause, find_causes
from vllm_guard.probes.static.errors import Unsupported
from vllm_guard.probes.static.overrides import find_overrides
from vllm_guard.probes.static.program import Program
from vllm_guard.probes.static.sources import Source
from vllm_guard.probes.static.values import Function, Unresolved
from vllm_guard.states import Finding, Verdict, worse, worst
from vllm_guard.targets import Target, exists, judge_parameters

# Where the targets do not say what a fault shows in.
_SUBJECTS = {
    PREFILL_TOKEN: "Scheduler._update_request_with_output",
    LAST_CHUNK: "Scheduler._update_request_with_output",
    ID_REUSE: "Scheduler._update_request_with_output",
    RESUME_EARLY: "Scheduler._preempt_request",
    RESET: "Scheduler.reset_prefix_cache",
    NO_QUEUE: "Scheduler._handle_stopped_request",
}
_ABSENT = Finding(Verdict.ABSENT, "")


class JudgedBuild(NamedTuple):
    """A vLLM that was judged by its source.

    Args:
        build: Its version, for show.
        findings: By guard and fault.
        causes: By guard, the known causes in models that the source has: information only.
    """

    build: Build
    findings: dict[str, dict[str, Finding]]
    causes: dict[str, list[Cause]] = {}  # noqa: RUF012  never changed

    def verdict(self, guard: str) -> Verdict:
        """The worst of a guard's faults."""
        return worst(finding.verdict for finding in self.findings[guard].values())


def judge_source(source: Source) -> JudgedBuild:
    """Judge a vLLM that is not imported.

    Args:
        source: Its files.

    Raises:
        SourceError: A file that is needed cannot be read.
    """
    probe = StaticProbe(source)
    return JudgedBuild(parse(source.version()), probe.examine(), probe.find_causes())


class StaticProbe:
    """Examines one source.

    Args:
        source: Its files.
    """

    def __init__(self, source: Source) -> None:
        self._program = Program(source)
        targets = (target for definition in DEFINITIONS for target in definition.targets)
        self._overrides = find_overrides(self._program, targets)

    def examine(self) -> dict[str, dict[str, Finding]]:
        """Return a finding for each fault of each guard, the worst of those that show."""
        return {definition.name: self._examine(definition) for definition in DEFINITIONS}

    def find_causes(self) -> dict[str, list[Cause]]:
        """Return the known causes in models that the source has, by guard."""
        return find_causes(self._program)

    def _examine(self, definition: Definition) -> dict[str, Finding]:
        findings: dict[str, Finding] = {}
        for name in definition.modules:
            for fault, finding in self.examine_module(definition, name).items():
                findings[fault] = worse(findings.get(fault, finding), finding)
        missing = Finding(Verdict.ABSENT, f"there is no {definition.modules[0]}")
        return {fault: findings.get(fault, missing) for fault in definition.faults}

    def examine_module(self, definition: Definition, name: str) -> dict[str, Finding]:
        """Look at one module; empty where the source does not have it.

        Args:
            definition: Whose targets are looked for.
            name: One of its `Definition.modules`.
        """
        targets = definition.targets_in(name)
        self._program.renew_budget()
        try:
            module = self._program.module(name)
        except Unsupported as error:
            faults = [fault for target in targets for fault in definition.faults_of(target)]
            return dict.fromkeys(faults, Finding(Verdict.UNKNOWN, str(error)))
        if module is None:
            return {}
        for target in targets:
            # `vars(module)` has what was asked for.
            getattr(module, target.attribute if not target.owner else target.owner, None)
        found = definition.examine(module, self._judge, self._program.outside)
        if found.get(PREFILL_TOKEN, _ABSENT).verdict is Verdict.NEEDED:
            found[PREFILL_TOKEN] = self._with_async(found[PREFILL_TOKEN])
        return {
            fault: finding._replace(evidence=f"{finding.evidence} ({self._place(targets, fault)})")
            for fault, finding in found.items()
        }

    def _with_async(self, finding: Finding) -> Finding:
        """Tell what happens under async scheduling: the class that has placeholders."""
        try:
            module = self._program.module(ASYNC_SCHEDULER)
            async_finding = judge_prefill_token(getattr(module, "AsyncScheduler", None))
        except Exception:
            return finding
        evidence = f"{finding.evidence}; by AsyncScheduler: {async_finding.evidence}"
        return finding._replace(evidence=evidence)

    def _judge(self, target: Target, module: ModuleType) -> Finding | None:
        """Say what keeps a target from being wrapped, as `vllm_guard.targets.judge` does."""
        where = f"{target.module}:{target.path}"
        owner = getattr(module, target.owner or target.attribute, None)
        if isinstance(owner, Unresolved):
            return Finding(Verdict.UNKNOWN, f"{owner} could not be worked out")
        if target.owner and owner is not None and owner.__module__ != module.__name__:
            found = f"{target.module}:{target.owner} is {owner.__module__}'s"
            return Finding(Verdict.FOREIGN, found)
        if not exists(target, module):
            return Finding(Verdict.ABSENT, f"{where} does not exist")
        if target in self._overrides:
            return Finding(Verdict.FOREIGN, self._overrides[target])
        return _judge_function(target, vars(target.owner_in(module))[target.attribute])

    def _place(self, targets: list[Target], fault: str) -> str:
        """Say where a fault shows: file, line and symbol."""
        named = [target.path for target in targets if fault in target.faults]
        path = named[0] if named else _SUBJECTS.get(fault, targets[0].path)
        module = self._program.module(targets[0].module)
        found = module
        for name in path.split("."):
            found = getattr(found, name, None)
        line = f":{found.node.lineno}" if isinstance(found, Function) else ""
        return f"{self._program.path(targets[0].module)}{line} {path}"


def _judge_function(target: Target, function: object) -> Finding | None:
    where = f"{target.module}:{target.path}"
    if not isinstance(function, Function):
        return Finding(Verdict.UNKNOWN, f"{where} is no plain function")
    if function.decorator:
        return Finding(Verdict.UNKNOWN, f"{where} is decorated by {function.decorator}")
    if function.__module__ != target.module:
        return Finding(Verdict.FOREIGN, f"{where} is {function.__module__}'s")
    return judge_parameters(target, function)
