"""Acts 5 to 7: an image yields too few embeddings, on vLLM 0.23.0; no fault is injected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from demo.claims import Claim, death, same_tokens, service
from demo.report import answered, engine, show_act, show_table
from tests.engine.arms import IMAGES_GUARDED, IMAGES_UNGUARDED
from tests.engine.experiment import image_experiment
from tests.engine.minicpm import make_minicpm
from tests.engine.outcome import Outcome
from tests.engine.questions import FIFTH_STEP, five, four
from tools.cache import cache_folder
from tools.engines import ENGINES
from tools.environment import Environment

RELEASE = "0.23.0"
BAD_SIZE = (365, 211)
REFERENCE = 5
INTRODUCTION = f"""
A real vLLM {RELEASE} engine with a tiny MiniCPM-V 4.6, as they are: no fault is injected.
Four good questions, one of them without an image. While they are answered (from step {FIFTH_STEP} \
on) a fifth one comes,
about an image of {BAD_SIZE[0]}x{BAD_SIZE[1]} pixels: its prompt has more placeholders than the \
encoder yields embeddings.
"""
HEADINGS = ("", "answered", "/health", "EngineCore", "repaired", f"the four as in act {REFERENCE}")


def play(folder: Path) -> list[Claim]:
    """Play the acts and print what happens.

    Args:
        folder: For model, logs and records.

    Returns:
        All that was claimed.
    """
    print(INTRODUCTION, flush=True)
    environment = Environment(cache_folder(), ENGINES[RELEASE])
    environment.prepare()
    model = make_minicpm(folder / "minicpm")
    acts = (
        ("four good questions, no guard", IMAGES_UNGUARDED, four()),
        ("and a bad image, no guard", IMAGES_UNGUARDED, five(BAD_SIZE)),
        ("and a bad image, guard", IMAGES_GUARDED, five(BAD_SIZE)),
    )
    outcomes: list[Outcome] = []
    all_claims: list[Claim] = []
    for number, (name, arm, questions) in enumerate(acts, start=REFERENCE):
        print(f"{number}. {name}", flush=True)
        experiment = image_experiment(model, environment.python, [questions])
        outcome = experiment.run(arm, folder / f"act-{number}")
        outcomes.append(outcome)
        act_claims = list(_claims(outcome, outcomes[0]))
        all_claims += act_claims
        show_act(outcome, act_claims)
    names = [name for name, *_ in acts]
    rows = [_row(*named, outcomes[0]) for named in zip(names, outcomes, strict=True)]
    show_table([HEADINGS, *rows])
    return all_claims


def _claims(outcome: Outcome, reference: Outcome) -> Iterator[Claim]:
    """Yield what is claimed about an act.

    Args:
        outcome: Of the act.
        reference: Of the act without the fifth question.
    """
    replaced = [runner["replaced"] for runner in outcome.recorded("runner")]
    if outcome.arm.guard:
        yield from service(outcome)
        yield Claim("the workers are the same processes throughout", bool(outcome.kept_workers))
        yield Claim("the guard was in the worker's model runner", any(replaced))
        yield Claim("it acted on one image, and on nothing else", outcome.triggers == 1)
        yield same_tokens("each of the four", _different(outcome, reference), act=REFERENCE)
        return
    if outcome is reference:
        yield from service(outcome)
    else:
        message = outcome.worker_crash.exception if outcome.worker_crash else ""
        yield Claim("the worker failed to merge the embeddings", "Attempted to assign" in message)
        yield Claim("no request was answered, text alone included", outcome.answered == 0)
        yield from death(outcome)
    yield Claim("nothing was wrapped in the worker's model runner", replaced == [[]])


def _different(outcome: Outcome, reference: Outcome) -> list[str]:
    """Name the good questions that did not get the tokens they get without the fifth."""
    return [
        answer.name
        for answer, alone in zip(outcome.answers, reference.answers, strict=False)
        if answer.tokens != alone.tokens
    ]


def _row(name: str, outcome: Outcome, reference: Outcome) -> tuple[str, ...]:
    good = len(reference.answers)
    same = good - len(_different(outcome, reference))
    return (
        name,
        answered(outcome),
        outcome.health,
        engine(outcome),
        str(outcome.triggers) if outcome.arm.guard else "-",
        "-" if outcome is reference else f"{same} of {good}",
    )
