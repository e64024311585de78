"""Guards, their documents in ``patches/`` and the README say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_settings import VARIABLES
from vllm_guard import booking, merge_net, patches, placeholder_net
from vllm_guard.definition import Definition
from vllm_guard.guards import DEFINITIONS, clamp
from vllm_guard.settings import GUARD_NAMES
from vllm_guard.states import Mode, State, Verdict

README = Path(__file__).resolve().parents[2] / "README.md"

EACH_GUARD = pytest.mark.parametrize("guard", DEFINITIONS, ids=lambda guard: guard.name)
COUNTED_BESIDE_FAULTS = {
    "clamp": {clamp.OVERLONG_ROW, booking.PROMPT_LOGPROBS, placeholder_net.SURPLUS},
    "stale": {booking.PROMPT_LOGPROBS},
    "mm_merge": {merge_net.UNGATHERED},
}


def test_each_guard_has_a_document_and_each_document_a_guard() -> None:
    """Neither is forgotten when the other is added or removed."""
    assert patches.names() == sorted(guard.name for guard in DEFINITIONS)


@EACH_GUARD
def test_a_document_is_about_the_faults_and_reasons_of_its_guard(guard: Definition) -> None:
    """The same names as in counters, logs and status."""
    document = patches.read(guard.name)
    assert document["guard"] == guard.name
    assert list(document["faults"]) == list(guard.faults)
    assert set(document["reasons"]) == COUNTED_BESIDE_FAULTS[guard.name]


@EACH_GUARD
def test_a_document_has_every_field_filled(guard: Definition) -> None:
    """What `explain` prints, and who looked at it last."""
    document = patches.read(guard.name)
    for field in ("title", "description", "changes", "applied-upstream", "retirement"):
        assert document[field].strip()
    for field in ("symptom", "bug", "avoid", "limits"):
        assert document[field]
        assert all(text.strip() for text in document[field])
    assert all(url.startswith("https://") for url in document["bug"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["last-update"])


@EACH_GUARD
def test_each_guard_can_be_switched(guard: Definition) -> None:
    """Its name is one of those that the settings know."""
    assert guard.name in GUARD_NAMES


def test_reading_an_unknown_document_is_an_error() -> None:
    """Not an empty one."""
    with pytest.raises(FileNotFoundError):
        patches.read("no-such-guard")


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_readme_names_every_switch(variable: str) -> None:
    """Whoever reads one page can switch everything."""
    assert f"`{variable}`" in README.read_text(encoding="utf-8")


def test_the_readme_names_every_mode_and_guard() -> None:
    """In the words of the code."""
    words = set(re.findall(r"`([\w-]+)`", README.read_text(encoding="utf-8")))
    assert {mode.value for mode in Mode} <= words
    assert {guard.name for guard in DEFINITIONS} <= words
    stay_away = {State.RETIRED.value, Verdict.UNKNOWN.value, Verdict.FOREIGN.value}
    assert stay_away <= words
