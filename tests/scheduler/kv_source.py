"""A store of KV outside of vLLM: a real connector, which schedulers ask what is there already.

vLLM finds it by the name of this module. It offers the first tokens of a prompt to the requests
that say so in their transfer parameters. A load is either waited for by its request, which is
scheduled when it has come, or done in the frame that first schedules the request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

from tests.scheduler.experiment import BLOCK_SIZE
from tests.scheduler.oracle import owner_of

OFFERED = "offered_tokens"
WAITS = "waits"
"""The transfer parameters of a request: what is offered, and whether it waits for its load."""


@dataclass(frozen=True)
class Load:
    """KV of the positions from `start` to `end` of segment `key`, to be written into `blocks`."""

    request_id: str
    key: int
    blocks: list[int]
    start: int
    end: int
    waits: bool


@dataclass
class Loads(KVConnectorMetadata):
    """What the worker loads with a frame."""

    loads: list[Load] = field(default_factory=list)


class KVSource(KVConnectorBase_V1):
    """The scheduler's side of the connector. The worker's is in the simulated worker."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._computed: dict[str, int] = {}
        self._loads: list[Load] = []

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        wanted = request.kv_transfer_params or {OFFERED: 0, WAITS: False}
        # Whole blocks, and never the last token of the prompt: it has to be sampled from.
        most = min(wanted[OFFERED], request.num_prompt_tokens - 1)
        tokens = most // BLOCK_SIZE * BLOCK_SIZE - num_computed_tokens
        if tokens <= 0:
            return 0, False
        self._computed[request.request_id] = num_computed_tokens
        return tokens, wanted[WAITS]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        start = self._computed.pop(request.request_id)
        self._loads.append(
            Load(
                request_id=request.request_id,
                key=owner_of(request.prompt_token_ids[-1]),
                blocks=list(blocks.get_block_ids()[0]),
                start=start,
                end=start + num_external_tokens,
                waits=request.kv_transfer_params[WAITS],
            )
        )

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        loads, self._loads = self._loads, []
        return Loads(loads)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the worker is simulated")

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError("the worker is simulated")

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        raise NotImplementedError("the worker is simulated")

    def wait_for_save(self) -> None:
        raise NotImplementedError("the worker is simulated")
