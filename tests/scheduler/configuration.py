"""The configuration of a scheduler, in whichever vLLM is imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)

from tests.scheduler.experiment import BLOCK_SIZE, Setup

MAX_MODEL_LENGTH = 1024


def accepted(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those of `arguments` that `function` has parameters for in this release."""
    names = _parameters(function)
    return {name: value for name, value in arguments.items() if name in names}


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def vllm_config(setup: Setup) -> VllmConfig:
    """What `setup` says, in the terms of vLLM, for a made-up text model on the CPU."""
    # `device` and the model are set by hand because nothing can be detected: an unpacked release
    # has no compiled parts, and there is no model on disk.
    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"),
        scheduler_config=SchedulerConfig(
            max_model_len=MAX_MODEL_LENGTH,
            max_num_batched_tokens=setup.token_budget,
            max_num_seqs=setup.max_requests,
            **accepted(SchedulerConfig, is_encoder_decoder=False, enable_chunked_prefill=True),
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=setup.prefix_caching),
    )
    config.cache_config.num_gpu_blocks = setup.kv_blocks
    # Platforms without a model switch these off while the configuration is checked.
    config.scheduler_config.async_scheduling = setup.asynchronous
    config.scheduler_config.enable_chunked_prefill = True
    config.scheduler_config.max_num_batched_tokens = setup.token_budget
    config.scheduler_config.policy = setup.policy
    config.parallel_config.pipeline_parallel_size = setup.pipeline_stages
    config.cache_config.enable_prefix_caching = setup.prefix_caching
    config.model_config = _text_model()
    if setup.kv_load_failures:
        config.kv_transfer_config = _kv_source(setup)
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
    if setup.draft_tokens:
        config.speculative_config = _drafter(setup.draft_tokens)
    return config


def _kv_source(setup: Setup) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="KVSource",
        kv_connector_module_path="tests.scheduler.kv_source",
        kv_role="kv_consumer",
        kv_buffer_device="cpu",
        **accepted(KVTransferConfig, kv_load_failure_policy=setup.kv_load_failures),
    )


def _text_model() -> SimpleNamespace:
    """The attributes of a ModelConfig that schedulers read, for a plain text model."""
    return SimpleNamespace(
        max_model_len=MAX_MODEL_LENGTH,
        runner_type="generate",
        skip_tokenizer_init=True,
        is_encoder_decoder=False,
        is_diffusion=False,
        is_multimodal_model=False,
        supports_multimodal_inputs=False,
        multimodal_config=None,
        uses_mrope=False,
        uses_xdrope=False,
        uses_xdrope_dim=0,
        enable_return_routed_experts=False,
        return_sampling_mask=False,
    )


def _drafter(draft_tokens: int) -> SpeculativeConfig:
    # Its own constructor wants a model to draft for; its methods only read these two fields.
    drafter = object.__new__(SpeculativeConfig)
    drafter.method = "eagle"
    drafter.num_speculative_tokens = draft_tokens
    return drafter
