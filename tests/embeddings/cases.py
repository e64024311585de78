"""Steps with a bad item among good ones, without the guard and with it.

The oracle: the rows of every other item equal, bit for bit, those of a step in which the bad item
is replaced by a healthy one with as many placeholders; and no row stands where it does not belong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_guard
from tests.embeddings.places import TEXT
from tests.embeddings.step import Item, Merged, Placed, Prompt, load_modules, run
from tests.scheduler.arms import report

GOOD = (Prompt("first", (Item("a", 10, 10), Item("b", 7, 7))), Prompt("last", (Item("z", 9, 9),)))
BAD = {
    "short": Item("bad", 18, 20),
    "empty": Item("bad", 0, 12),
    "one-row": Item("bad", 1, 12),
    "gross": Item("bad", 5, 20),
    "long": Item("bad", 25, 20),
    "masked": Item("bad", 18, 20, gaps=True),
}
EVERY_BORDER = ("short", "masked")
A = Item("mine", 138, 138, key="same")
B = Item("yours", 638, 638, key="same")
MAX_DELTA, LEAST_DELTA = 0.25, 4


def scenes() -> Iterator[tuple[str, tuple[Prompt, ...], tuple[int, ...]]]:
    """Name, requests and sizes of prefill chunks: whole, and with a border at every position."""
    for name, bad in BAD.items():
        prompts = (GOOD[0], Prompt("middle", (Item("m", 4, 4), bad, Item("n", 5, 5))), GOOD[1])
        yield name, prompts, (1000, *(range(1, 24) if name in EVERY_BORDER else (3, 11)))
    two = (Prompt("p", (Item("x", 8, 10), Item("y", 6, 6))), Prompt("q", (Item("w", 5, 7),)))
    yield "two-bad", (*two, GOOD[0]), (1000, 3, 5)
    video = (Item("v", 6, 6, gaps=True), Item("s", 6, 6, gaps=True, overlaps=True))
    yield "overlap", (GOOD[0], Prompt("video", video), Prompt("q", (Item("bad", 5, 6),))), (1000, 4)
    yield "other-user", (Prompt("a", (A,)), Prompt("b", (B,))), (1000, 100)
    yield "alone", (Prompt("p", (Item("one", 1, 12),)),), (1000, 5)
    yield "healthy", (*GOOD, Prompt("video", video)), (1000, 4, 7)


def healthy(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """The same requests with a full item, under a key of its own, in the place of each bad one."""
    return tuple(
        replace(
            prompt,
            items=tuple(
                replace(item, rows=item.placeholders, key="")
                if _cached(prompts, item) < item.placeholders
                else item
                for item in prompt.items
            ),
        )
        for prompt in prompts
    )


def _cached(prompts: tuple[Prompt, ...], item: Item) -> int:
    same = [i for p in prompts for i in p.items if (i.key or i.name) == (item.key or item.name)]
    return same[0].rows


def problems(prompts: tuple[Prompt, ...], got: Merged, right: Merged) -> list[str]:
    """What is wrong with a guarded step."""
    if got.prompts is None or right.prompts is None:
        return [got.error or right.error]
    found = [f"{name} of the runner was changed" for name in got.changed]
    for prompt in prompts:
        places = Placed(prompt).places
        rest = torch.ones(len(got.prompts[prompt.name]), dtype=torch.bool)
        for item in prompt.items:
            rows = got.prompts[prompt.name][places[item.name]]
            rest[places[item.name]] = False
            cached = _cached(prompts, item)
            expected = right.prompts[prompt.name][places[item.name]].clone()
            if cached < item.placeholders:
                missing = item.placeholders - cached
                padded = 0 < missing <= max(LEAST_DELTA, MAX_DELTA * item.placeholders) and cached
                expected[cached if padded else 0 :] = 0
            if not torch.equal(rows, expected):
                found.append(f"{prompt.name}/{item.name} differs")
        if not bool((got.prompts[prompt.name][rest] == TEXT).all()):
            found.append(f"{prompt.name}: text was written to")
    return found


def _is_right(prompts: tuple[Prompt, ...], got: Merged, dtype: torch.dtype) -> bool:
    """Whether each item's rows, cut to its placeholders, are where they belong."""
    return got.prompts is not None and all(
        torch.equal(
            got.prompts[prompt.name][Placed(prompt).places[item.name]],
            item.embeddings(dtype)[: item.placeholders],
        )
        for prompt in prompts
        for item in prompt.items
    )


def triggers() -> int:
    """How often the guard has counted a short item."""
    counted = vllm_guard.status()["guards"]["mm_merge"]["triggers"]
    return sum(sum(actions.values()) for actions in counted.values())


class Step(NamedTuple):
    """What is run in all arms: requests prefilled together, in chunks of so many tokens."""

    scene: str
    runner: str
    prompts: tuple[Prompt, ...]
    chunk: int
    dtype: torch.dtype

    def run(self, prompts: tuple[Prompt, ...]) -> Merged:
        """Prefill ``prompts`` as this step would its own."""
        return run(self.runner, prompts, self.chunk, self.dtype)


def judge(steps: list[Step]) -> list[dict[str, Any]]:
    """Run each step in all arms, those without the guard first: registering is what takes long."""
    vllm_guard.unpatch()
    right = [step.run(healthy(step.prompts)) for step in steps]
    unguarded = [step.run(step.prompts) for step in steps]
    vllm_guard.register()
    return [_judge(*arms) for arms in zip(steps, right, unguarded, strict=True)]


def _judge(step: Step, right: Merged, unguarded: Merged) -> dict[str, Any]:
    where = {"scene": step.scene, "chunk": step.chunk}
    prompts = step.prompts
    if not _is_right(healthy(prompts), right, step.dtype):
        # V2 up to 0.23, and V1 up to 0.14, do not take items that overlap, full ones neither.
        return {**where, "unsupported": True}
    before = triggers()
    found = problems(prompts, step.run(prompts), right)
    bad = sum(_cached(prompts, i) < i.placeholders for p in prompts for i in p.items)
    if triggers() - before != bad:
        found.append(f"{triggers() - before} triggers for {bad} bad items")
    silent = unguarded.prompts is not None and bool(problems(prompts, unguarded, right))
    return {**where, "error": unguarded.error, "silent": silent, "found": found}


def failing_step(runner: str) -> dict[str, Any]:
    """A step in which vLLM itself raises, since an item is lost, while another is repaired."""
    prompts = (
        Prompt("p", (Item("bad", 18, 20), Item("gone", 5, 5, cached=False))),
        Prompt("q", (Item("good", 5, 5),)),
    )
    vllm_guard.unpatch()
    unguarded = run(runner, prompts, 1000)
    vllm_guard.register()
    guarded = run(runner, prompts, 1000)
    return {"unguarded": unguarded.error, "guarded": guarded.error, "changed": guarded.changed}


def random_steps(runner: str, examples: int) -> list[Step]:
    """Random requests with random shortages."""
    steps: list[Step] = []
    item = st.tuples(st.integers(0, 12), st.integers(1, 12), st.booleans(), st.integers(0, 3))
    prompt = st.lists(item, min_size=1, max_size=3)

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(st.lists(prompt, min_size=1, max_size=4), st.integers(1, 40))
    def collect(batch: list[Any], chunk: int) -> None:
        prompts = tuple(
            Prompt(
                f"request-{number}",
                tuple(
                    Item(f"{number}-{place}", min(rows, count), count, gaps, after=after)
                    for place, (rows, count, gaps, after) in enumerate(items)
                ),
            )
            for number, items in enumerate(batch)
        )
        steps.append(Step("random", runner, prompts, chunk, torch.float32))

    collect()
    return steps


def failures(steps: list[Step]) -> list[str]:
    """The first steps that do not go as they should with the guard."""
    judged = zip(steps, judge(steps), strict=True)
    return [f"{step}: {verdict['found']}" for step, verdict in judged if verdict["found"]][:3]


def outcomes(examples: int) -> dict[str, Any]:
    """Run everything on the imported vLLM."""
    runners = ["v1"] if load_modules()[1] is None else ["v1", "v2"]
    results = {
        f"{runner} {dtype}".replace("torch.", ""): judge(
            [
                Step(name, runner, prompts, chunk, dtype)
                for name, prompts, chunks in scenes()
                for chunk in chunks
            ]
        )
        for runner in runners
        for dtype in (torch.float32, torch.bfloat16)
    }
    found = {
        "results": results,
        "random": {runner: failures(random_steps(runner, examples)) for runner in runners},
        "failing": {runner: failing_step(runner) for runner in runners},
        "guard": report("mm_merge"),
    }
    vllm_guard.unpatch()
    return found
