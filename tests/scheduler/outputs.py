"""What a worker returns and what a scheduler delivers, and how releases differ in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, LogprobsTensors, ModelRunnerOutput

from tests.scheduler.configuration import accepted

ROWS_ARE_ARRAYS = "ndarray" in str(ModelRunnerOutput.__annotations__["sampled_token_ids"])
"""In 0.11.2 a worker returns arrays, in every other release lists."""


def make_output(
    request_ids: list[str],
    rows: list[list[int]],
    prompt_logprobs: dict[str, int],
    *,
    pooled: Mapping[str, list[int]] | None = None,
    loaded: Collection[str] = (),
    invalid_blocks: Collection[int] = (),
) -> ModelRunnerOutput:
    """What a worker returns: `rows` of token ids, in the order of `request_ids`.

    `prompt_logprobs` maps a request id to a label, which is written into the tensors so that the
    receiver can tell which of several deliveries it got. `pooled` are the vectors of pooling
    requests, empty for an unfinished prefill. `loaded` are requests whose load has come to an end,
    `invalid_blocks` the blocks in which it failed.
    """
    tensors = {request_id: _logprobs(label) for request_id, label in prompt_logprobs.items()}
    scores = {
        request_id: torch.full((1, 1), label) for request_id, label in prompt_logprobs.items()
    }
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: row for row, request_id in enumerate(request_ids)},
        sampled_token_ids=[np.array(row, dtype=int) for row in rows] if ROWS_ARE_ARRAYS else rows,
        prompt_logprobs_dict=tensors,
        **accepted(
            ModelRunnerOutput.__init__,
            prompt_token_id_logprobs_dict=scores,
            logprobs=None,
            pooler_output=_pooler_output(request_ids, pooled) if pooled else [],
            kv_connector_output=_connector_output(loaded, invalid_blocks),
        ),
    )


def propose_drafts(scheduler: Scheduler, output: ModelRunnerOutput, count: int) -> None:
    """Give a synchronous scheduler `count` drafts for each row that has delivered.

    What they are does not matter: the device decides how many it accepts.
    """
    drafts = [[0] * (count if len(row) else 0) for row in output.sampled_token_ids]
    if output.req_ids:
        scheduler.update_draft_token_ids(DraftTokenIds(output.req_ids, drafts))


def pooled_vector(engine_output: Any) -> list[int]:
    """The vector that one EngineCoreOutput brings; empty if it brings none."""
    vector = engine_output.pooling_output
    return [] if vector is None else vector.tolist()


def prompt_logprobs_labels(engine_output: Any) -> list[int]:
    """The labels of the prompt logprobs that ride on one EngineCoreOutput (0.31+: two of them)."""
    tensors = engine_output.new_prompt_logprobs_tensors
    found = [] if tensors is None else [tensors.logprobs]
    scores = getattr(engine_output, "prompt_token_id_logprobs", None)
    if scores is not None:
        found.append(scores)
    return [int(tensor[0, 0]) for tensor in found]


def labels_per_prompt_logprobs() -> int:
    """How many labels `prompt_logprobs_labels` finds on an output that carries prompt logprobs."""
    return 1 + ("prompt_token_id_logprobs_dict" in {f.name for f in fields(ModelRunnerOutput)})


def _connector_output(
    loaded: Collection[str], invalid_blocks: Collection[int]
) -> KVConnectorOutput | None:
    if not loaded and not invalid_blocks:
        return None
    return KVConnectorOutput(
        **accepted(
            KVConnectorOutput,
            finished_recving=set(loaded),
            invalid_block_ids=set(invalid_blocks),
        )
    )


def _pooler_output(
    request_ids: list[str], pooled: Mapping[str, list[int]]
) -> list[torch.Tensor | None]:
    vectors = (pooled.get(request_id) for request_id in request_ids)
    return [torch.tensor(vector, dtype=torch.int64) if vector else None for vector in vectors]


def _logprobs(label: int) -> LogprobsTensors:
    return LogprobsTensors(
        logprob_token_ids=torch.zeros((1, 1), dtype=torch.int32),
        logprobs=torch.full((1, 1), float(label)),
        selected_token_ranks=torch.zeros(1, dtype=torch.int32),
    )
