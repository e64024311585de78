"""Errors of our own, at each line of the embeddings guard: vLLM must not notice one of them.

Each line raises once, in a run of its own: the first time that it runs, and the last. Where every
item is healthy the result has to be that of vLLM without us, bit for bit. Where one is bad, vLLM
may fail in its own way, but not with our error, nor because of what we left behind half done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

import vllm_guard
from tests.embeddings import media, merges
from tests.embeddings.cases import GOOD
from tests.embeddings.step import Item, Merged, Placed, Prompt, RunnerV1, RunnerV2, load_modules
from tests.embeddings.step import run as prefill
from tests.runtime.raising_lines import Injected, Line, OwnLines, name_of, swallowing_problem
from tests.scheduler.arms import unpatched_afterwards
from vllm_guard import runtime
from vllm_guard.states import Mode

MODULES = ("embeddings", "gather_repair", "merge_net", "reused_keys")
CANNOT_FAIL = re.compile(
    # vLLM's own function, whose errors have to pass, and what ours are caught by.
    r"wrapped\(|failing_open|"
    # What a wrapper does outside of that: it asks whether there is anything to do, and returns.
    r"self\._run\(V\dGather, |given = None$|if self\._guard\.active:|if given is None:|with given:|"
    r"for request_id, \(features, private\) in|"
    # What stands in for the scheduler's method has vLLM book the frame.
    r"self\._book\(|return result$"
)
OWN_LINES = OwnLines(MODULES, CANNOT_FAIL)

CHUNK = 11
"""Tokens of each prompt in a step: a step that goes wrong may leave something to the next."""

GAPS = Item("v", 6, 6, gaps=True)
HEALTHY = (*GOOD, Prompt("text", ()), Prompt("video", (GAPS,)))
"""With a request without media, and an item that has fewer placeholders than positions."""

BAD = (
    GOOD[0],
    Prompt("middle", (Item("m", 4, 4), Item("bad", 18, 20), Item("gross", 5, 20))),
    Prompt("other", (Item("worse", 8, 10),)),
)

SCENES = ("healthy-shared-key", "owner-runs-30-then-90-1", "second-runs-30-then-90")


class Traffic(NamedTuple):
    """What is run.

    Args:
        run: Runs it once, on whatever is patched, and returns what came of it.
        accepts: Told what comes of it without us, with us, and with us and our error: whether the
            last is as it may be.
        mode: Of the guard.
    """

    run: Callable[[], Any]
    accepts: Callable[[Any, Any, Any], bool]
    mode: Mode = Mode.AUTO


def fails_as(unguarded: Merged, got: Merged) -> bool:
    """Whether a step failed in the way that it fails in without us."""
    kind, *words = unguarded.error.split()[:4]
    return got.error.split()[:4] == [kind, *words] and not _is_ours(got.error)


def _is_ours(error: str) -> bool:
    return Injected.__name__ in error or "vllm-guard" in error


def accepts_merged(unguarded: Merged, guarded: Merged, got: Merged) -> bool:
    """All is as without us, or as with us; a step that fails without us may fail all the same."""
    if unguarded.error == guarded.error:
        return not got.changed and _same(got, guarded)
    # An error while a request's items are put back leaves it what is right: its repaired ones.
    if len({name.removeprefix("vllm-guard/").partition("/")[0] for name in got.changed}) > 1:
        return False
    if got.error:
        return fails_as(unguarded, got)
    return any(_same(got, expected) for expected in (unguarded, guarded))


def _same(one: Merged, other: Merged) -> bool:
    if one.prompts is None or other.prompts is None:
        return one.error == other.error
    return all(torch.equal(rows, other.prompts[name]) for name, rows in one.prompts.items())


def decoding(runner: str) -> Merged:
    """Gather for requests whose prompts are computed."""
    placed = [Placed(prompt) for prompt in HEALTHY]
    v1, v2, _ = load_modules()
    gather = RunnerV1(v1, placed, {}) if runner == "v1" else RunnerV2(v2, placed, {})
    longest = max(one.length for one in placed)
    embeddings, mask = gather(placed, longest, [1] * len(placed))
    return Merged(prompts={"mask": mask, "count": torch.tensor(len(embeddings))})


def accepts_singles(unguarded: Any, guarded: Any, got: Any) -> bool:
    """Each merge is as without us, or as with us, whatever was counted."""
    return all(
        _uncounted(found) in (_uncounted(unguarded[name]), _uncounted(guarded[name]))
        for name, found in got.items()
    )


def _uncounted(merge: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in merge.items() if name != "triggers"}


def accepts_served(unguarded: Any, guarded: Any, got: Any) -> bool:
    """Whom the bad key does not concern gets every token; who has it gets an answer, or an end."""
    if unguarded == guarded:
        return bool(got == unguarded)
    victims = set(guarded["wrong"])
    others = {name: end for name, end in got["finished"].items() if name not in victims}
    return (
        got["error"] is None
        and set(got["wrong"]) <= victims
        and set(others.values()) == {"length"}
        and all(got["finished"].get(name) in ("error", "length") for name in victims)
        and (got["leaked"], got["left"]) == (0, 0)
    )


def traffic() -> Iterator[tuple[str, Traffic]]:
    """Steps on each runner, merges without a gather step, and requests on a scheduler."""
    for runner in ("v1",) if load_modules()[1] is None else ("v1", "v2"):
        for name, prompts in (("healthy", HEALTHY), ("bad", BAD)):
            yield (
                f"{runner} {name}",
                Traffic(partial(prefill, runner, prompts, CHUNK), accepts_merged),
            )
        yield f"{runner} decoding", Traffic(partial(decoding, runner), accepts_merged)
        observed = partial(prefill, runner, BAD, CHUNK)
        yield f"{runner} observed", Traffic(observed, accepts_merged, Mode.OBSERVE)
    yield "merges", Traffic(merges.singles, accepts_singles)
    yield "observed merges", Traffic(merges.singles, accepts_singles, Mode.OBSERVE)
    for scene in (scene for scene in media.scenes() if scene.name in SCENES):
        yield scene.name, Traffic(partial(media.run_scene, scene), accepts_served)


@contextmanager
def guarded(mode: Mode) -> Iterator[Callable[[], None]]:
    """Register the guard; gives what makes it forget the errors that it has swallowed."""
    with unpatched_afterwards("mm_merge", mode):
        vllm_guard.register()
        # Registering afresh for each line would take most of the time.
        guard = runtime._process.guards["mm_merge"]  # type: ignore[union-attr]

        def forget() -> None:
            guard.error_count = 0
            runtime.internal_errors.clear()

        yield forget


def problems(one: Traffic) -> Iterator[tuple[Line, str]]:
    """Try each line that the traffic runs; yields it and what went wrong, empty if nothing."""
    unguarded = one.run()
    with guarded(one.mode) as forget:
        with OWN_LINES.noted() as lines:
            as_guarded = one.run()
        for line, times in lines.items():
            for before in sorted({0, times - 1}):
                forget()
                yield line, _outcome(one, line, before, (unguarded, as_guarded))


def _outcome(one: Traffic, line: Line, before: int, expected: tuple[Any, Any]) -> str:
    try:
        with OWN_LINES.raising(line, before) as raised:
            got = one.run()
    except Injected:
        return f"run {before + 1}: it was not caught"
    if not one.accepts(*expected, got):
        return f"run {before + 1}: {got}, expected one of {expected}"
    return swallowing_problem(raised)


def outcomes() -> dict[str, Any]:
    """Try all lines on the imported vLLM; how many there were, and what went wrong with which."""
    failures: dict[str, str] = {}
    tried: set[Line] = set()
    for name, one in traffic():
        for line, problem in problems(one):
            tried.add(line)
            if problem:
                failures[f"{name_of(line)} ({name})"] = problem
    return {"lines": len(tried), "failures": failures}
