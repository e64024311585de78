"""``mm_merge``: a medium yields fewer or more embeddings than it has placeholders.

Reported as ``Attempted to assign 303 = 303 multimodal tokens to 327 placeholders`` (vLLM #45244,
#40796, #55546). The merge is one write for all requests of a step, so one such item ends them all.

* before the gather step, an item that is short is repaired, as a whole and for its own request;
* in the scheduler, a request whose cache key stands for an item of another size is refused;
* in the merge itself, a single item of callers that bypass the gather step is made to fit.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_guard.definition import Definition
from vllm_guard.gather_repair import SHORT_ITEM, GatherRepair
from vllm_guard.guard import Guard
from vllm_guard.merge_net import MergeNet
from vllm_guard.pipeline import SCHEDULER
from vllm_guard.probes.embeddings import probe
from vllm_guard.reused_keys import REUSED_KEY, ReusedKeys
from vllm_guard.targets import Target, Wrapper

ONE_ROW = "one-row"


def _wrappers(guard: Guard) -> Mapping[str, Wrapper]:
    gather, keys = GatherRepair(guard), ReusedKeys(guard)
    return {
        "GPUModelRunner._gather_mm_embeddings": gather.v1,
        "EncoderRunner.gather_mm_embeddings": gather.v2,
        "_merge_multimodal_embeddings": MergeNet(guard, gather),
        "Scheduler._try_schedule_encoder_inputs": keys.try_schedule_encoder_inputs,
    }


DEFINITION = Definition(
    name="mm_merge",
    faults=(SHORT_ITEM, ONE_ROW, REUSED_KEY),
    targets=(
        Target(
            "vllm.v1.worker.gpu_model_runner",
            "GPUModelRunner._gather_mm_embeddings",
            ("self", "scheduler_output"),
            faults=(SHORT_ITEM,),
        ),
        Target(
            "vllm.v1.worker.gpu.mm.encoder_runner",
            "EncoderRunner.gather_mm_embeddings",
            (
                "self",
                "req_ids",
                "total_num_scheduled_tokens",
                "num_scheduled_tokens",
                "query_start_loc",
                "prefill_lens",
            ),
            faults=(SHORT_ITEM,),
        ),
        # Its other two parameters were swapped in 0.11.2; they are bound by name.
        Target(
            "vllm.model_executor.models.utils",
            "_merge_multimodal_embeddings",
            ("inputs_embeds",),
            faults=(SHORT_ITEM, ONE_ROW),
        ),
        Target(
            SCHEDULER,
            "Scheduler._try_schedule_encoder_inputs",
            (
                "self",
                "request",
                "num_computed_tokens",
                "num_new_tokens",
                "encoder_compute_budget",
            ),
            faults=(REUSED_KEY,),
        ),
        # Never replaced on the class: a refused request has it shadowed until the next frame.
        Target(
            SCHEDULER,
            "Scheduler.update_from_output",
            ("self", "scheduler_output", "model_runner_output"),
            faults=(REUSED_KEY,),
            wrapped=False,
        ),
    ),
    probe=probe,
    wrappers=_wrappers,
)
