"""The arms of the experiments: what a server is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FAULT_RATE = 0.3
FAULT_SEED = 20
BLOCKS = 28
# vLLM's V1 model runner keeps as many frames in its pipeline as that has stages: while one of them
# is scheduled, two are in flight.
STAGES = 3


@dataclass(frozen=True)
class Arm:
    """What differs from arm to arm.

    Args:
        name: For people.
        fault: Whether workers return tokens for unfinished prefill chunks.
        guard: Whether vllm-guard, which is installed in any case, is switched on.
        cache_blocks: Size of the KV cache, if it is not to be all the memory that the server has.
        stages: Of the pipeline that the model's layers are distributed over.
        ordered: Whether requests are admitted at fixed steps instead of when they arrive, so that
            each batch is the same in all such arms. Asynchronous scheduling, which is on in all
            others, would leave to chance how far the scheduler is ahead.
        only_observed: A guard that counts and does nothing.
    """

    name: str
    fault: bool
    guard: bool
    cache_blocks: int | None = None
    stages: int = 1
    ordered: bool = False
    only_observed: str | None = None

    def options(self) -> list[str]:
        """Return what a server's command line needs to become this arm."""
        options = ["--pipeline-parallel-size", str(self.stages)]
        if self.cache_blocks is not None:
            options += ["--num-gpu-blocks-override", str(self.cache_blocks)]
        return options

    def environment(self, records: Path) -> dict[str, str]:
        """Return the variables by which a server becomes this arm.

        Args:
            records: Folder for what its processes record.
        """
        variables = {
            "FAULTS_ADMISSION" if self.ordered else "FAULTS_ASYNC_SCHEDULING": "1",
            "FAULTS_PIL_ONLY": "1",
            # As on accelerators; a spawned process would import vLLM anew, which takes longest.
            "FAULTS_START_METHOD": "fork",
            "FAULTS_TOKEN_RATE": str(FAULT_RATE if self.fault else 0),
            "FAULTS_SEED": str(FAULT_SEED),
            "FAULTS_RECORD_DIR": str(records),
            "VLLMGUARD": "on" if self.guard else "off",
        }
        if self.only_observed is not None:
            variables[f"VLLMGUARD_{self.only_observed.upper()}"] = "observe"
        if self.stages > 1:
            # vLLM would give each stage a NUMA node of its own.
            variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        return variables


HEALTHY_UNGUARDED = Arm("no fault, no guard", fault=False, guard=False)
FAULT_UNGUARDED = Arm("fault, no guard", fault=True, guard=False)
FAULT_GUARDED = Arm("fault, guard", fault=True, guard=True)
HEALTHY_GUARDED = Arm("no fault, guard", fault=False, guard=True)

LARGE_CACHE = Arm("large cache, no guard", fault=False, guard=False)
SMALL_CACHE_UNGUARDED = Arm("small cache, no guard", fault=False, guard=False, cache_blocks=BLOCKS)
SMALL_CACHE_GUARDED = Arm("small cache, guard", fault=False, guard=True, cache_blocks=BLOCKS)
PIPELINE_UNGUARDED = Arm(
    "small cache, pipeline, no guard", fault=False, guard=False, cache_blocks=BLOCKS, stages=STAGES
)
PIPELINE_GUARDED = Arm(
    "small cache, pipeline, guard", fault=False, guard=True, cache_blocks=BLOCKS, stages=STAGES
)

IMAGES_UNGUARDED = Arm("images, no guard", fault=False, guard=False, ordered=True)
IMAGES_GUARDED = Arm("images, guard", fault=False, guard=True, ordered=True)
IMAGES_OBSERVED = Arm(
    "images, guard observes", fault=False, guard=True, ordered=True, only_observed="mm_merge"
)
