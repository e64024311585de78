"""The model on the device: it writes KV and samples, and notices when what it reads is wrong.

The token it samples is the right one only if all that it attends to is: the KV of every earlier
position and the tokens fed in. Otherwise it samples garbage, as a real model would.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.scheduler.experiment import BLOCK_SIZE
from tests.scheduler.oracle import BOGUS_TOKEN
from tests.scheduler.truth import Truth

Token = int | None
"""A token id; none where a worker has a placeholder and not the token."""


@dataclass(frozen=True)
class Work:
    """One request's share of a frame, as the worker's view understands it.

    `key` is the segment that it answers. `tokens` are fed in from position `start` on; the last
    `drafts` of them are guesses. `blocks` are its KV blocks. `finishes_prefill` says that nothing
    known beforehand remains to be computed, so that the row delivers. `drafts_exist` is false where
    the request has drafts and the worker has none for it.
    """

    request_id: str
    key: int
    start: int
    tokens: list[Token]
    drafts: int
    blocks: list[int]
    finishes_prefill: bool
    drafts_exist: bool = True

    @property
    def certain_end(self) -> int:
        """One past the last position whose token is no guess."""
        return self.start + len(self.tokens) - self.drafts


@dataclass
class Device:
    """KV blocks and the model.

    `truth` knows the right tokens, `seed` decides which drafts are accepted. `wrong_reads` are
    requests that attended to wrong KV, with what was found, each once. `excused` are requests that
    had to, as theirs could not be loaded: what they sample is garbage, and is judged where it ends.
    """

    truth: Truth
    seed: int
    blocks: dict[int, list[Token]] = field(default_factory=dict)
    wrong_reads: dict[str, str] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)

    def run(self, work: Work) -> list[int]:
        """Compute `work` and return what is sampled; empty for an unfinished prefill."""
        accepted = self._accepted(work)
        self._write(work, accepted)
        is_right = self._reads_right(work)
        if not work.finishes_prefill:
            return []
        if not is_right:
            return [BOGUS_TOKEN]
        first = work.certain_end
        return [self.truth.token(work.key, first + step) for step in range(accepted + 1)]

    def load(self, key: int, blocks: list[int], start: int, end: int) -> None:
        """Have right KV from elsewhere at the positions from `start` to `end` of segment `key`."""
        for position in range(start, end):
            self._put(blocks, position, self.truth.token(key, position))

    def _accepted(self, work: Work) -> int:
        if not work.drafts:
            return 0
        if not work.drafts_exist:
            # A request that was left out of a frame loses its drafts in the real runner V1, and
            # none is accepted. On a prefill there cannot have been any.
            if len(work.tokens) - work.drafts > 1:
                self._blame(work, f"{work.drafts} drafts that nobody proposed")
            return 0
        # By position, not by frame: the arms may cut frames differently.
        generator = random.Random(f"{self.seed}/{work.key}/{work.certain_end}")
        return generator.randint(0, work.drafts)

    def _write(self, work: Work, accepted: int) -> None:
        guesses: list[Token] = [
            self.truth.token(work.key, work.certain_end + step) if step < accepted else None
            for step in range(work.drafts)
        ]
        certain = work.tokens[: len(work.tokens) - work.drafts]
        for position, token in enumerate(certain + guesses, work.start):
            if position // BLOCK_SIZE >= len(work.blocks):
                self._blame(work, f"position {position} has no KV block")
                return
            self._put(work.blocks, position, token)

    def _put(self, blocks: list[int], position: int, token: Token) -> None:
        index, offset = divmod(position, BLOCK_SIZE)
        self.blocks.setdefault(blocks[index], [None] * BLOCK_SIZE)[offset] = token

    def _reads_right(self, work: Work) -> bool:
        found: list[Token] = []
        for block in work.blocks[: -(-work.certain_end // BLOCK_SIZE)]:
            found += self.blocks.get(block, [None] * BLOCK_SIZE)
        found = found[: work.certain_end]
        expected = self.truth.tokens(work.key, work.certain_end)
        if found == expected:
            return True
        # A block that is missing has been blamed already.
        for position, (seen, right) in enumerate(zip(found, expected, strict=False)):
            if seen != right:
                where = "fed in" if position >= work.start else "in its KV"
                self._blame(work, f"position {position} {where} is {seen}, not {right}")
                break
        return False

    def _blame(self, work: Work, problem: str) -> None:
        if work.request_id not in self.excused:
            self.wrong_reads.setdefault(work.request_id, problem)
