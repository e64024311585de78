"""The words, and which verdict counts where several faults have one each."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from vllm_guard.states import Finding, Mode, State, Verdict, worse, worst

BY_ALARM = [Verdict.ABSENT, Verdict.FIXED, Verdict.NEEDED, Verdict.UNKNOWN, Verdict.FOREIGN]


@pytest.mark.parametrize("pair", [*permutations(BY_ALARM, 2)], ids="-".join)
def test_the_worst_of_two_does_not_depend_on_their_order(pair: tuple[Verdict, Verdict]) -> None:
    """The more alarming one is the guard's own."""
    assert worst(pair) is max(pair, key=BY_ALARM.index)


def test_without_a_finding_the_verdict_is_unknown() -> None:
    """A probe that says nothing has not found the fix."""
    assert worst([]) is Verdict.UNKNOWN


def test_every_verdict_has_a_rank() -> None:
    """A new word cannot be forgotten."""
    assert set(BY_ALARM) == set(Verdict)


@pytest.mark.parametrize("word", [*Verdict, *State, *Mode], ids=str)
def test_a_word_is_the_same_in_text_and_json(word: Verdict | State | Mode) -> None:
    """Logs, JSON and documents show the value, not the name of an enum."""
    assert f"{word}" == str(word) == word.value == json.loads(json.dumps(word))


def test_of_two_findings_the_worse_is_kept() -> None:
    """The first one where they are alike."""
    fixed, needed = Finding(Verdict.FIXED, "one"), Finding(Verdict.NEEDED, "two")
    assert worse(fixed, needed) is needed
    assert worse(needed, fixed) is needed
    assert worse(needed, Finding(Verdict.NEEDED, "three")) is needed
