"""Reading the switches: every variable, and what becomes of values that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard import settings
from vllm_guard.settings import GUARD_NAMES, Settings, guard_variable
from vllm_guard.states import Mode

VARIABLES = (
    "VLLMGUARD",
    *map(guard_variable, GUARD_NAMES),
    "VLLMGUARD_MM_MAX_DELTA",
    "VLLMGUARD_STRICT",
    "VLLMGUARD_STATE_DIR",
)


def values(chosen: Settings) -> tuple[object, ...]:
    """Return what is set, without what is said about it."""
    return (
        chosen.enabled,
        chosen.modes,
        chosen.mm_max_delta,
        chosen.strict,
        chosen.state_dir,
    )


def test_nothing_set_gives_the_defaults() -> None:
    """Without a variable every guard is on auto, nothing is strict and nothing is a problem."""
    assert settings.read({"PATH": "/bin"}) == Settings()
    assert settings.read({}).mode("clamp") is Mode.AUTO


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("guard", GUARD_NAMES)
def test_each_guard_has_a_mode_of_its_own(guard: str, mode: Mode) -> None:
    """A guard's variable changes that guard and no other."""
    chosen = settings.read({guard_variable(guard): mode.value})
    assert chosen.mode(guard) is mode
    assert {chosen.mode(other) for other in GUARD_NAMES if other != guard} == {Mode.AUTO}
    assert not chosen.problems


@pytest.mark.parametrize("guard", GUARD_NAMES)
def test_the_main_switch_beats_a_forced_guard(guard: str) -> None:
    """VLLMGUARD=off is off, whatever else is asked for."""
    chosen = settings.read({"VLLMGUARD": "off", guard_variable(guard): "force"})
    assert not chosen.enabled
    assert chosen.mode(guard) is Mode.OFF


@pytest.mark.parametrize(
    ("variable", "value", "attribute", "expected"),
    [
        ("VLLMGUARD", "on", "enabled", True),
        ("VLLMGUARD_MM_MAX_DELTA", "0", "mm_max_delta", 0.0),
        ("VLLMGUARD_MM_MAX_DELTA", "0.5", "mm_max_delta", 0.5),
        ("VLLMGUARD_MM_MAX_DELTA", "1", "mm_max_delta", 1.0),
        ("VLLMGUARD_STRICT", "1", "strict", True),
        ("VLLMGUARD_STRICT", "0", "strict", False),
        ("VLLMGUARD_STATE_DIR", "/run/guard", "state_dir", Path("/run/guard")),
        ("VLLMGUARD_STATE_DIR", "~/guard", "state_dir", Path.home() / "guard"),
    ],
)
def test_other_variables_are_read(
    variable: str, value: str, attribute: str, expected: object
) -> None:
    """Each variable sets the field of its name."""
    chosen = settings.read({variable: value})
    assert getattr(chosen, attribute) == expected
    assert not chosen.problems


@pytest.mark.parametrize("text", ["OFF", "Off", " off ", "off\n"])
def test_case_and_blanks_around_a_value_do_not_matter(text: str) -> None:
    """What people type in unit files and YAML is understood."""
    assert settings.read({"VLLMGUARD_CLAMP": text}).mode("clamp") is Mode.OFF


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_value_is_the_default(variable: str, text: str) -> None:
    """``VARIABLE=`` in a shell script means: not set."""
    assert settings.read({variable: text}) == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("VLLMGUARD", "yes", ["on", "off"]),
        ("VLLMGUARD_CLAMP", "on", ["auto", "off", "observe", "force"]),
        ("VLLMGUARD_STALE", "0", ["auto", "off", "observe", "force"]),
        ("VLLMGUARD_MM_MERGE", "fource", ["auto", "off", "observe", "force"]),
        ("VLLMGUARD_MM_MAX_DELTA", "25%", ["0 to 1"]),
        ("VLLMGUARD_MM_MAX_DELTA", "1.01", ["0 to 1"]),
        ("VLLMGUARD_MM_MAX_DELTA", "-0.1", ["0 to 1"]),
        ("VLLMGUARD_MM_MAX_DELTA", "nan", ["0 to 1"]),
        ("VLLMGUARD_STRICT", "true", ["1", "0"]),
        ("VLLMGUARD_STATE_DIR", "here/guard", ["absolute path"]),
        ("VLLMGUARD_STATE_DIR", "~nobody-of-this-name/guard", ["absolute path"]),
    ],
)
def test_a_bad_value_is_one_line_and_the_default(
    variable: str, value: str, accepted: list[str]
) -> None:
    """The line names the variable, the value and what is accepted; nothing else changes."""
    chosen = settings.read({variable: value})
    (line,) = chosen.problems
    assert "\n" not in line
    assert line.startswith(f"{variable}={value!r} ")
    for word in accepted:
        assert word in line.removeprefix(f"{variable}={value!r}")
    assert values(chosen) == values(Settings())


def test_a_bad_value_does_not_hide_the_others() -> None:
    """Every variable is judged by itself."""
    chosen = settings.read({"VLLMGUARD_CLAMP": "x", "VLLMGUARD_STALE": "off", "VLLMGUARD": "x"})
    assert len(chosen.problems) == 2
    assert chosen.mode("stale") is Mode.OFF


def test_an_unknown_variable_of_ours_is_reported_with_those_there_are() -> None:
    """A misspelt switch must not be silently without effect."""
    (line,) = settings.read({"VLLMGUARD_CLAMPS": "off", "VLLM_PLUGINS": "x"}).problems
    assert line.startswith("VLLMGUARD_CLAMPS ")
    for variable in VARIABLES:
        assert variable in line


def test_no_variable_begins_like_those_of_vllm() -> None:
    """vLLM warns about unknown VLLM_ variables, and fails on them when told to."""
    assert not [variable for variable in VARIABLES if variable.startswith("VLLM_")]


@given(st.dictionaries(st.sampled_from([*VARIABLES, "VLLMGUARD_NEW"]), st.text()))
def test_reading_never_raises(environ: dict[str, str]) -> None:
    """Whatever the environment holds, there are settings, and one line a problem."""
    chosen = settings.read(environ)
    assert all(isinstance(chosen.mode(guard), Mode) for guard in GUARD_NAMES)
    assert 0 <= chosen.mm_max_delta <= 1
    assert all(len(line.splitlines()) == 1 for line in chosen.problems)
