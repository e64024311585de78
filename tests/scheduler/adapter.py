"""The real objects of whichever vLLM is imported, and all that differs between releases.

No other module of this folder but `configuration` and `outputs` looks at a version or a signature.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.scheduler.configuration import accepted, vllm_config
from tests.scheduler.experiment import BLOCK_SIZE, Setup
from tests.scheduler.grammar import ExactGrammar
from tests.scheduler.oracle import RequestPlan

HASH_ALGORITHM = "sha256"

RUNNER_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"

COUNTERS = ("num_output_placeholders", "num_in_flight_tokens", "num_stale_output_tokens")
"""Counters of a request for frames in flight. The later ones do not exist in every release."""


def make_scheduler(setup: Setup) -> Scheduler:
    """A real scheduler with a real KVCacheManager; only the model behind it is made up."""
    # Unset, vLLM looks for the answer in the model. The check of a configuration wants Triton for
    # V2, a scheduler does not.
    os.environ[RUNNER_SWITCH] = "0"
    config = vllm_config(setup)
    os.environ[RUNNER_SWITCH] = str(int(setup.model_runner_v2))
    spec = FullAttentionSpec(
        **accepted(
            FullAttentionSpec,
            block_size=BLOCK_SIZE,
            num_kv_heads=1,
            head_size=1,
            dtype=torch.float32,
            use_mla=False,
        )
    )
    scheduler_class = AsyncScheduler if setup.asynchronous else Scheduler
    return scheduler_class(
        **accepted(
            Scheduler.__init__,
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=setup.kv_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            log_stats=True,
        )
    )


def make_request(plan: RequestPlan, setup: Setup, **more: Any) -> Request:
    """A real request of `plan`, hashed for the prefix cache if `setup` has one.

    `more` are further arguments of its constructor.
    """
    stop_token = plan.stop_token()
    sampling = SamplingParams(
        max_tokens=plan.max_tokens,
        ignore_eos=True,
        stop_token_ids=None if stop_token is None else [stop_token],
        prompt_logprobs=1 if plan.prompt_logprobs else None,
        extra_args=_transfer_parameters(plan),
        **_structured_outputs(plan),
    )
    hasher = None
    if setup.prefix_caching:
        hash_function = _hash_function()
        init_none_hash(hash_function)
        hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
    request = Request(
        request_id=plan.request_id,
        prompt_token_ids=plan.prompt(),
        sampling_params=None if plan.pooled else sampling,
        pooling_params=PoolingParams(task="embed") if plan.pooled else None,
        block_hasher=hasher,
        **accepted(Request.__init__, eos_token_id=None),
        **more,
    )
    if plan.structured:
        request.structured_output_request.grammar = ExactGrammar(plan)
    return request


def counters_of(request: Request) -> dict[str, int]:
    """The counters of frames in flight that this release keeps, by name."""
    return {name: getattr(request, name) for name in COUNTERS if hasattr(request, name)}


def preemptions_of(request: Request) -> int:
    """How often a request was preempted; up to 0.11.0 nobody counts."""
    return getattr(request, "num_preemptions", 0)


def free_blocks(scheduler: Scheduler) -> int:
    """How many KV blocks are free."""
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


@cache
def supports_sessions() -> bool:
    """Whether this release has resumable requests."""
    return "resumable" in inspect.signature(Request.__init__).parameters


@cache
def supports_grammars() -> bool:
    """Whether a request makes a place for its grammar by itself: from 0.11.2 on."""
    return "structured_output_request" not in inspect.signature(Request.__init__).parameters


@cache
def load_failure_policies() -> tuple[str, ...]:
    """What this release can do when KV fails to load: up to 0.12 there is no choice."""
    if not hasattr(Scheduler, "_handle_invalid_blocks"):
        return ()
    has_choice = "kv_load_failure_policy" in inspect.signature(KVTransferConfig).parameters
    return ("recompute", "fail") if has_choice else ("recompute",)


@cache
def mixes_pooling() -> bool:
    """Whether requests that want a vector may share a frame with others: up to 0.12 they may not.

    There a frame that brings a vector lets vLLM look for one in every row.
    """
    source = inspect.getsource(Scheduler.update_from_output)
    return "request.pooling_params and pooler_output" in source


@cache
def recovers_preempted() -> bool:
    """Whether a resumed request's outputs reach the worker: up to 0.11.0 its runner lost them."""
    return "all_token_ids" in {f.name for f in fields(CachedRequestData)}


@cache
def has_model_runner_v2() -> bool:
    """Whether schedulers of this release can plan frames for model runner V2."""
    return "use_v2_model_runner" in inspect.getsource(Scheduler.schedule)


@cache
def staggers_decodes() -> bool:
    """Whether model runner V2 decodes a request only in every n-th of `n` stages' frames."""
    return "next_decode_eligible_step" in inspect.getsource(Scheduler.schedule)


@cache
def drops_stale_frames() -> bool:
    """Whether vLLM itself drops the frames in flight of a request whose KV was reset."""
    return "drop_stale_output" in inspect.getsource(Scheduler.reset_prefix_cache)


@cache
def can_guard_preemption() -> bool:
    """Whether there is a method to hook in when a request is preempted: from 0.12 on."""
    return hasattr(Scheduler, "_preempt_request")


@cache
def drafts_outlive_preemption() -> bool:
    """Whether a preempted request keeps drafts of tokens that are computed again: up to 0.13."""
    return "spec_token_ids" not in inspect.getsource(Scheduler._preempt_request)


def default_depths() -> tuple[int, ...]:
    """Sizes of the batch queue that are worth a run: before 0.12 async scheduling had only 2."""
    return (2, 3) if can_guard_preemption() else (2,)


def pipeline_stages(depth: int, model_runner_v2: bool) -> int:
    """The pipeline parallel size with which the engine's batch queue holds `depth` frames.

    Where async scheduling adds a frame to those of the stages, V2 needs one stage less.
    """
    if depth <= 2:
        return 1
    adds_a_frame = hasattr(VllmConfig, "max_concurrent_batches") and model_runner_v2
    return depth - 1 if adds_a_frame else depth


def _hash_function() -> Callable[[Any], bytes]:
    try:
        from vllm.utils.hashing import get_hash_fn_by_name
    except ModuleNotFoundError:
        # Up to 0.11.0.
        from vllm.utils import get_hash_fn_by_name
    function: Callable[[Any], bytes] = get_hash_fn_by_name(HASH_ALGORITHM)
    return function


def _structured_outputs(plan: RequestPlan) -> dict[str, Any]:
    if not plan.structured:
        return {}
    # Up to 0.10.2 there is no such class; what needs it does not run there.
    from vllm.sampling_params import StructuredOutputsParams

    return {"structured_outputs": StructuredOutputsParams(regex="the grammar is made by us")}


def _transfer_parameters(plan: RequestPlan) -> dict[str, Any] | None:
    if not plan.offered:
        return None
    return {"kv_transfer_params": {"offered_tokens": plan.offered, "waits": plan.waits}}
