"""What a guard's module declares, and what a look at a build's code says about it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from vllm_guard.probes.standins import Loaded
from vllm_guard.states import Finding, Verdict
from vllm_guard.targets import Target, Wrapper, judge

if TYPE_CHECKING:
    from vllm_guard.guard import Guard


class Definition(NamedTuple):
    """What a guard's module declares.

    Args:
        name: As in ``VLLMGUARD_<NAME>``.
        faults: Names of the faults it answers to.
        targets: The functions it wraps.
        probe: Looks at an imported module of the targets and returns a finding for each fault
            that shows there; finds other modules with its second argument.
        wrappers: Makes the wrappers for one `Guard`, by target path.
    """

    name: str
    faults: tuple[str, ...]
    targets: tuple[Target, ...]
    probe: Callable[[ModuleType, Loaded], Mapping[str, Finding]]
    wrappers: Callable[[Guard], Mapping[str, Wrapper]]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the targets, each once, in order."""
        return tuple(dict.fromkeys(target.module for target in self.targets))

    def targets_in(self, module: str) -> list[Target]:
        """The targets in one module."""
        return [target for target in self.targets if target.module == module]

    def faults_of(self, target: Target) -> tuple[str, ...]:
        """The faults that a target is needed for."""
        return target.faults or self.faults

    def examine(
        self,
        module: ModuleType,
        judge_target: Callable[[Target, ModuleType], Finding | None] | None = None,
        loaded: Loaded = sys.modules.get,
    ) -> dict[str, Finding]:
        """Look at an imported module, or at one that stands for it.

        Args:
            module: One of `modules`, fully imported and not patched by us.
            judge_target: Says what keeps a target from being wrapped; None: `judge`.
            loaded: Finds other modules by name.

        Returns:
            A finding for each fault that a target in it answers to: what keeps such a target from
            being wrapped, or else what the probe says.
        """
        targets = self.targets_in(module.__name__)
        faults = dict.fromkeys(fault for target in targets for fault in self.faults_of(target))
        refused: dict[str, Finding] = {}
        for target in targets:
            finding = (judge_target or judge)(target, module)
            if finding is None:
                continue
            for fault in self.faults_of(target):
                # A target that somebody replaced tells more than one that is missing.
                if fault not in refused or finding.verdict is not Verdict.ABSENT:
                    refused[fault] = finding
        probed: Mapping[str, Finding] = {}
        if len(refused) < len(faults):
            try:
                probed = self.probe(module, loaded)
            except Exception as error:
                finding = Finding(Verdict.UNKNOWN, f"the probe failed: {error!r}")
                probed = dict.fromkeys(faults, finding)
        return {fault: refused.get(fault) or probed[fault] for fault in faults}
