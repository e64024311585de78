"""The simulator's worker: a runner's view of the requests, a device, and the frames in flight.

Frames are computed in the order of scheduling and answered in the same order, with the tokens of
the positions that each frame really computed.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.scheduler.device import Device, Work
from tests.scheduler.experiment import BLOCK_SIZE, EARLY_LOGPROBS, FINAL_LOGPROBS
from tests.scheduler.oracle import BOGUS_TOKEN
from tests.scheduler.outputs import make_output
from tests.scheduler.views import View


@dataclass(frozen=True)
class Answer:
    """What is known of one frame when it has been computed: the rows and vectors to be returned."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    pooled: dict[str, list[int]] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    invalid_blocks: set[int] = field(default_factory=set)
    prompt_logprobs: dict[str, int] = field(default_factory=dict)


class SimulatedWorker:
    """Computes frames on `device` as `view` understands them.

    `bogus_share` of the rows of unfinished prefills get a token that must not be delivered; `seed`
    says which. `surplus` tokens too many are in each row that delivers, but for those with rejected
    drafts: there they could not be told from accepted ones. The next `failing_loads` loads of KV
    end in the middle; `failed_loads` are the requests that this has met.
    """

    def __init__(self, view: View, device: Device, seed: int) -> None:
        self.view = view
        self.device = device
        self.bogus_share = 0.0
        self.surplus = 0
        self.failing_loads = 0
        self.failed_loads: set[str] = set()
        self.bogus_rows = 0
        self._random = random.Random(seed)
        self._in_flight: deque[Answer] = deque()

    def compute(self, output: Any) -> None:
        """Take a frame in and compute it."""
        self.view.take_in(output)
        drafts = output.scheduled_spec_decode_tokens
        answer = Answer()
        for load in getattr(output.kv_connector_metadata, "loads", ()):
            self._load(load, answer)
        for request_id, scheduled in output.num_scheduled_tokens.items():
            work = self.view.work(request_id, scheduled, len(drafts.get(request_id, ())))
            tokens = self.device.run(work)
            if self.view.requests[request_id].pooled:
                answer.pooled[request_id] = tokens
                tokens = []
            self.view.sampled(work, tokens)
            answer.rows[request_id] = tokens + self._invented(work, tokens)
            label = self._logprobs(work, bool(answer.rows[request_id]))
            if label is not None:
                answer.prompt_logprobs[request_id] = label
        self.view.end_frame()
        self._in_flight.append(answer)

    def answer(self) -> Any:
        """Return the oldest frame in flight as a ModelRunnerOutput."""
        answer = self._in_flight.popleft()
        return make_output(
            [*answer.rows],
            [*answer.rows.values()],
            answer.prompt_logprobs,
            pooled=answer.pooled,
            loaded=answer.loaded,
            invalid_blocks=answer.invalid_blocks,
        )

    def _load(self, load: Any, answer: Answer) -> None:
        """Load KV, or what comes of it before it fails."""
        end = load.end
        if self.failing_loads:
            self.failing_loads -= 1
            self.failed_loads.add(load.request_id)
            failing = range(load.start // BLOCK_SIZE, load.end // BLOCK_SIZE)
            first = self._random.choice(failing)
            answer.invalid_blocks.update(load.blocks[first : failing.stop])
            end = first * BLOCK_SIZE
            if not load.waits:
                self.device.excused.add(load.request_id)
        self.device.load(load.key, load.blocks, load.start, end)
        if load.waits:
            answer.loaded.add(load.request_id)

    def _invented(self, work: Work, tokens: list[int]) -> list[int]:
        """Tokens that a row has and must not have, behind the right `tokens`."""
        if work.finishes_prefill:
            surplus = self.surplus if len(tokens) > work.drafts else 0
        else:
            surplus = int(self._random.random() < self.bogus_share)
        self.bogus_rows += bool(surplus)
        return [BOGUS_TOKEN] * surplus

    def _logprobs(self, work: Work, delivers: bool) -> int | None:
        """The label of the prompt logprobs that ride on a row: they end with the prompt."""
        known = self.view.requests[work.request_id]
        if not known.wants_prompt_logprobs:
            return None
        if work.certain_end >= known.prompt_length:
            known.wants_prompt_logprobs = False
            return FINAL_LOGPROBS
        # A worker that takes a chunk for the last one sends what it has with the bogus token.
        return EARLY_LOGPROBS if delivers else None
