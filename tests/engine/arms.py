"""The four arms of the experiment: with and without the fault, with and without the guard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FAULT_RATE = 0.3
FAULT_SEED = 20


@dataclass(frozen=True)
class Arm:
    """What differs from arm to arm; asynchronous scheduling is on in all of them.

    Args:
        name: For people.
        fault: Whether workers return tokens for unfinished prefill chunks.
        guard: Whether vllm-guard, which is installed in any case, is switched on.
    """

    name: str
    fault: bool
    guard: bool

    def environment(self, records: Path) -> dict[str, str]:
        """Return the variables by which a server becomes this arm.

        Args:
            records: Folder for what its processes record.
        """
        return {
            "FAULTS_ASYNC_SCHEDULING": "1",
            "FAULTS_TOKEN_RATE": str(FAULT_RATE if self.fault else 0),
            "FAULTS_SEED": str(FAULT_SEED),
            "FAULTS_RECORD_DIR": str(records),
            "VLLMGUARD": "on" if self.guard else "off",
        }


HEALTHY_UNGUARDED = Arm("no fault, no guard", fault=False, guard=False)
FAULT_UNGUARDED = Arm("fault, no guard", fault=True, guard=False)
FAULT_GUARDED = Arm("fault, guard", fault=True, guard=True)
HEALTHY_GUARDED = Arm("no fault, guard", fault=False, guard=True)
