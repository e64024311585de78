"""What counts as a soak that went wrong: one that went well, altered in one place each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.scrape import Scrape
from tests.engine.soaked import ROLES, STATE_FILE_BYTES, Soaked, StateSize, Tally
from tests.engine.steadiness import Course, Sample

LIMITS = dict.fromkeys(ROLES, 100.0)
TRIGGER = ("clamp", "prefill-token", "blanked")


def scrape(triggers: int) -> Scrape:
    return Scrape(triggers=Counter({TRIGGER: triggers}))


def tally() -> Tally:
    good = Tally()
    for _ in range(2):
        good.count("long", (1, 2, 3), None)
    good.count_hang_up("long", None)
    return good


def course(growth: int = 0) -> Course:
    return Course(
        "one", [Sample(second, 1000 + growth * second, 0, 0, 5, 5) for second in range(60)]
    )


def good() -> Soaked:
    return Soaked(
        guard=True,
        fault=True,
        minutes=1.5,
        tally=tally(),
        courses={role: course() for role in ROLES},
        not_lasting=[],
        unfinished=400,
        injected=20,
        gone=1,
        scrapes=[scrape(0), scrape(10), scrape(19)],
        state=[StateSize(3, 900)],
        left=[],
        log_lines=8,
    )


def test_nothing_is_wrong_with_a_good_one() -> None:
    assert good().complaints(LIMITS) == []


def test_without_guard_and_fault_nothing_may_be_counted() -> None:
    unguarded = replace(good(), guard=False, fault=False, injected=0, gone=0)
    assert unguarded.complaints(LIMITS) == ["guards acted 19 times, not 0"]
    assert replace(unguarded, scrapes=[Scrape()], log_lines=6).complaints(LIMITS) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"injected": 21}, "guards acted 19 times, not 20"),
        ({"gone": 0}, "guards acted 19 times, not 20"),
        ({"injected": 0, "gone": 0, "scrapes": [Scrape()]}, "0 tokens were injected"),
        ({"scrapes": [scrape(10), scrape(5), scrape(19)]}, "went back: [10, 5, 19]"),
        (
            {"scrapes": [replace(scrape(19), internal_errors=Counter(clamp=2))]},
            "errors in the guards themselves: 2",
        ),
        ({"courses": {"APIServer": course(), "Worker": course()}}, "last moment: EngineCore"),
        ({"courses": dict.fromkeys(ROLES, course(2))}, "memory grows by 120 KiB a minute"),
        ({"courses": dict.fromkeys([*ROLES, "other"], course(1))}, "more than 0"),
        ({"not_lasting": ["EngineCore (pid 9)"]}, "came or went: EngineCore (pid 9)"),
        ({"state": [StateSize(7, 1), StateSize(3, 1)]}, "7 state files"),
        ({"state": [StateSize(3, STATE_FILE_BYTES + 1)]}, f"of {STATE_FILE_BYTES + 1} bytes"),
        ({"left": [Path("state/9-1.json")]}, "left behind: 9-1.json"),
        # Three processes say two lines each, and one reason has one for each of four moments.
        ({"log_lines": 11}, "logged 11 lines, more than 10"),
    ],
)
def test_each_alteration_is_noticed(changes: dict[str, object], complaint: str) -> None:
    assert any(complaint in found for found in replace(good(), **changes).complaints(LIMITS))


@pytest.mark.parametrize(
    ("alter", "complaint"),
    [
        (lambda tally: tally.count("long", (1,), "1 of 3 tokens came"), "1 requests failed"),
        (lambda tally: tally.count_hang_up("long", "status 500"), "to be given up: status 500"),
        (lambda tally: tally.count("long", (1, 9, 3), None), "first one to their prompt: long"),
        (lambda tally: setattr(tally, "hung_up", 0), "too little traffic"),
        (lambda tally: setattr(tally, "compared", 0), "too little traffic"),
    ],
)
def test_each_bad_answer_is_noticed(alter: Callable[[Tally], None], complaint: str) -> None:
    soaked = good()
    alter(soaked.tally)
    (found,) = soaked.complaints(LIMITS)
    assert complaint in found
