"""Guards, their documents in ``patches/`` and the README say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.test_settings import VARIABLES
from tools.patches import MEASURED, PATCHES, page
from vllm_guard import booking, merge_net, patches, placeholder_net
from vllm_guard.definition import Definition
from vllm_guard.guards import DEFINITIONS, clamp
from vllm_guard.settings import GUARD_NAMES
from vllm_guard.states import Mode, State, Verdict

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"

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
    texts = ("title", "origin", "description", "changes", "forwarded", "applied-upstream")
    for field in (*texts, "retirement"):
        assert document[field].strip()
    for field in ("symptom", "bug", "avoid", "limits", "field-evidence"):
        assert document[field]
        assert all(text.strip() for text in document[field])
    assert all(url.startswith("https://") for url in document["bug"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["last-update"])


@EACH_GUARD
def test_a_document_says_of_each_fault_when_it_is_fixed_and_names_the_test(
    guard: Definition,
) -> None:
    """Sentence by sentence; the test is there."""
    sentences = patches.read(guard.name)["fixed-where"]
    assert {entry["fault"] for entry in sentences} == set(guard.faults)
    for entry in sentences:
        assert entry["sentence"].endswith(".")
        file, _, name = entry["test"].partition("::")
        assert f"def {name}(" in (REPOSITORY / file).read_text(encoding="utf-8")
    assert set(patches.read(guard.name)["fixed-by"]) <= set(guard.faults)


@EACH_GUARD
def test_a_document_names_the_targets_of_its_guard(guard: Definition) -> None:
    """All of them; `tests/releases` looks whether they are where the document says."""
    named = [(target["module"], target["symbol"]) for target in patches.read(guard.name)["targets"]]
    assert named == [(target.module, target.path) for target in guard.targets]


def test_the_page_about_the_patches_is_up_to_date() -> None:
    """``make patches`` writes it."""
    assert PATCHES.read_text(encoding="utf-8") == page()


def test_the_measured_verdicts_are_about_these_guards_and_faults() -> None:
    """For every release."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    expected = {guard.name: list(guard.faults) for guard in DEFINITIONS}
    for release, faults in measured.items():
        assert (release, {guard: list(found) for guard, found in faults.items()}) == (
            release,
            expected,
        )


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
