"""What happens in one run of the simulator: who asks for what, when, and what disturbs them.

Nothing here imports vLLM.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.scheduler.experiment import BLOCK_SIZE, Setup
from tests.scheduler.oracle import RequestPlan

SHARED_PREFIX = 8


@dataclass(frozen=True)
class Segment:
    """One turn of a client: what it asks for, and when.

    `plan` is numbered from the segment's own start; its `arrives_at` is not used. `delay` is in
    engine steps: after the previous segment was sent if `early` (it may still be running), else
    after the previous one was answered. The first segment's delay counts from step 0.
    """

    plan: RequestPlan
    delay: int
    early: bool = False


@dataclass(frozen=True)
class Client:
    """Somebody who sends one request, or a resumable session of several segments.

    `aborts_after` is the number of steps after which the client hangs up. `closes_early` says that
    a session announces its end while its last segment may still be running.
    """

    segments: tuple[Segment, ...]
    resumable: bool = False
    priority: int = 0
    aborts_after: int | None = None
    closes_early: bool = False

    @property
    def request_id(self) -> str:
        """The id that all its segments have."""
        return self.segments[0].plan.request_id

    @property
    def name(self) -> str:
        """What results call it; an id may be used again by another client."""
        return self.segments[0].plan.name

    def expected(self) -> list[tuple[list[int], str]]:
        """The tokens and the finish reason of each segment, as a right engine delivers them."""
        plans = [segment.plan for segment in self.segments]
        return [(plan.expected_tokens(), plan.expected_finish_reason()) for plan in plans]


@dataclass(frozen=True)
class Workload:
    """All that happens in one run.

    `resets` are the steps before which the prefix cache is reset, running requests included.
    `bogus_share` is the share of unfinished prefill rows for which the worker invents a token.
    `early_return_share` is how often the oldest frame is home before the queue is full.
    """

    setup: Setup
    clients: tuple[Client, ...]
    resets: frozenset[int] = frozenset()
    bogus_share: float = 0.0
    early_return_share: float = 0.0


class Builder:
    """A workload in the making.

    `rng` decides everything; `clients` is filled by `add`.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.clients: list[Client] = []
        self._keys = 0

    def segment(
        self,
        name: str,
        prompt: tuple[int, int],
        outputs: tuple[int, int],
        delay: int,
        **options: object,
    ) -> Segment:
        """A segment with random lengths within `prompt` and `outputs`; about half stop early."""
        rng = self.rng
        self._keys += 1
        max_tokens = rng.randint(*outputs)
        # Not on the last token allowed: which reason is given then depends on the release.
        stops = rng.random() < 0.5 and max_tokens > 1
        plan = RequestPlan(
            key=self._keys,
            name=name,
            prompt_length=rng.randint(*prompt),
            max_tokens=max_tokens,
            stops_after=rng.randint(1, max_tokens - 1) if stops else None,
        )
        return Segment(replace(plan, **options), delay)  # type: ignore[arg-type]

    def add(
        self,
        count: int,
        prompt: tuple[int, int],
        outputs: tuple[int, int],
        latest: int = 20,
        **options: object,
    ) -> None:
        """Add `count` plain requests that arrive up to step `latest`."""
        for _ in range(count):
            name = f"request-{len(self.clients) + 1}"
            delay = self.rng.randint(0, latest)
            self.clients.append(Client((self.segment(name, prompt, outputs, delay, **options),)))

    def add_session(self, prompt: tuple[int, int], outputs: int, priority: int = 0) -> None:
        """Add a resumable session; all its segments have the same limit of `outputs` tokens.

        (Before 0.24 vLLM goes on with the limit of the first.)
        """
        rng = self.rng
        name = f"session-{len(self.clients) + 1}"
        segments = []
        for _ in range(rng.randint(2, 4)):
            segment = self.segment(name, prompt, (outputs, outputs), rng.randint(0, 12))
            segments.append(replace(segment, early=rng.random() < 0.5))
        self.clients.append(
            Client(
                tuple(segments),
                resumable=True,
                priority=priority,
                closes_early=rng.random() < 0.5,
            )
        )

    def share_prefixes(self) -> None:
        """Let requests whose prompt is long enough begin alike, for hits in the prefix cache."""
        for index, client in enumerate(self.clients):
            plan = client.segments[0].plan
            if not client.resumable and plan.prompt_length > SHARED_PREFIX:
                shared = replace(plan, shared_prefix=SHARED_PREFIX)
                first = replace(client.segments[0], plan=shared)
                self.clients[index] = replace(client, segments=(first,))

    def prioritise(self) -> None:
        """Give each client a random priority."""
        self.clients = [replace(client, priority=self.rng.randint(0, 3)) for client in self.clients]

    def abort_some(self, share: float) -> None:
        """Let some clients hang up; half of the ids are used again at once, by somebody else."""
        for client in list(self.clients):
            if self.rng.random() >= share:
                continue
            steps = self.rng.randint(1, 12)
            self.clients[self.clients.index(client)] = replace(client, aborts_after=steps)
            if self.rng.random() < 0.5:
                again = self.segment(
                    f"{client.name}-again",
                    (3, 24),
                    (2, 12),
                    client.segments[0].delay + steps + self.rng.choice((0, 0, 0, 1, 2)),
                    request_id=client.request_id,
                )
                self.clients.append(Client((again,)))

    def tight_cache(self, drafts: int, spare: tuple[int, int]) -> int:
        """KV blocks for the largest request and some `spare` ones: all together do not fit.

        Each session has its own: vLLM never takes the blocks of one that waits, so those of
        several could block each other for ever.
        """
        lookahead = 3 * (drafts + 1)
        needed = {True: [0], False: [0]}
        for client in self.clients:
            plans = [segment.plan for segment in client.segments]
            tokens = sum(plan.prompt_length + plan.max_tokens for plan in plans) + lookahead
            needed[client.resumable].append(-(-tokens // BLOCK_SIZE))
        return sum(needed[True]) + max(needed[False]) + 2 + self.rng.randint(*spare)
