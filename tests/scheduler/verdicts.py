"""Judges a run of the simulator: what each client got against what it should have got."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.scheduler.record import Conversation, Run

LOST_LOGPROBS = "prompt logprobs"


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a run, by kind; all empty if nothing is."""

    crash: str | None = None
    wrong: list[str] = field(default_factory=list)
    lost_logprobs: list[str] = field(default_factory=list)
    stalled: bool = False
    leaked: int = 0
    wrong_reads: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The kinds of failure that the run shows."""
        found = {
            "crash": self.crash,
            "wrong": self.wrong,
            LOST_LOGPROBS: self.lost_logprobs,
            "stall": self.stalled,
            "leak": self.leaked,
            "wrong KV": self.wrong_reads,
            "invariant": self.problems,
        }
        return [kind for kind, value in found.items() if value]


def judge(run: Run, so_far: bool = False) -> Verdict:
    """Look at everything that `run` recorded; `so_far` if it has not come to its end yet."""
    is_cut_short = so_far or bool(run.crash) or run.stalled
    return Verdict(
        crash=run.crash,
        wrong=[talk.client.name for talk in run.conversations if not _is_right(talk, is_cut_short)],
        lost_logprobs=[
            talk.client.name
            for talk in run.conversations
            if not (talk.aborted or is_cut_short or _prompt_logprobs_came(talk))
        ],
        stalled=run.stalled,
        leaked=run.leaked_blocks,
        wrong_reads=[f"{name}: {problem}" for name, problem in run.wrong_reads.items()],
        problems=run.problems,
    )


def _is_right(talk: Conversation, is_cut_short: bool) -> bool:
    expected = talk.client.expected()
    answers = talk.answers if not talk.tokens else [*talk.answers, (talk.tokens, "")]
    if not talk.aborted and not is_cut_short:
        return answers == expected
    return all(
        given == right or (not given[1] and given[0] == right[0][: len(given[0])])
        for given, right in zip(answers, expected, strict=False)
    ) and len(answers) <= len(expected)


def _prompt_logprobs_came(talk: Conversation) -> bool:
    """With the first token, where they were wanted; a request that starts over sends them again."""
    wanted = talk.client.segments[0].plan.prompt_logprobs
    return bool(talk.prompt_logprobs) == wanted and all(
        place == 0 for _, place in talk.prompt_logprobs[:1]
    )
