"""What a process writes down, and what becomes of files that hold something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.private_folder import MAX_BYTES
from vllm_guard.process_report import GuardReport, ProcessReport, Trigger, encode
from vllm_guard.report_reader import decode

TRIGGER = Trigger("prefill-token", "blanked", 3, 1796030990.25)
GUARD = GuardReport("needed", "applied", True, "", (TRIGGER,), 1)
REPORT = ProcessReport(1234, 56789, "EngineCore_DP0", {"clamp": GUARD})


def changed(*path: str | int, value: Any) -> bytes:
    """Return the report's file with one value exchanged."""
    found = json.loads(encode(REPORT))
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(found).encode()


def test_what_is_written_is_read() -> None:
    assert decode(encode(REPORT)) == REPORT
    assert json.loads(encode(REPORT))["schema"] == 1


def test_only_triggers_and_errors_are_counts() -> None:
    quiet = GUARD._replace(triggers=(), internal_errors=0)
    assert REPORT.has_counts
    assert REPORT._replace(guards={"clamp": quiet._replace(internal_errors=1)}).has_counts
    assert not REPORT._replace(guards={"clamp": quiet}).has_counts


def test_an_obstacle_cannot_write_to_a_terminal_nor_fill_the_file() -> None:
    loud = GUARD._replace(obstacle="\x1b[2J replaced by üvendor\n" + "x" * 10 * MAX_BYTES)
    content = encode(REPORT._replace(guards={"clamp": loud}))
    assert len(content) < MAX_BYTES
    obstacle = decode(content).guards["clamp"].obstacle
    assert obstacle.isprintable()
    assert obstacle.startswith("?[2J replaced by üvendor?x")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * MAX_BYTES,
        changed("schema", value=2),
        changed("schema", value=True),
        changed("pid", value="1234"),
        changed("pid", value=0),
        changed("pid", value=-1),
        changed("pid", value=2**31),
        changed("started", value=1.5),
        changed("role", value="two\nlines"),
        changed("role", value=""),
        changed("role", value="x" * 65),
        changed("guards", value=[]),
        changed("guards", value={f"g{n}": {} for n in range(33)}),
        changed("guards", value={'a"} 1\n': json.loads(encode(REPORT))["guards"]["clamp"]}),
        changed("guards", "clamp", value=None),
        changed("guards", "clamp", "state", value=1),
        changed("guards", "clamp", "effective", value="yes"),
        changed("guards", "clamp", "effective", value=1),
        changed("guards", "clamp", "obstacle", value=None),
        changed("guards", "clamp", "internal_errors", value=-1),
        changed("guards", "clamp", "triggers", value={}),
        changed("guards", "clamp", "triggers", value=[{}] * 257),
        changed("guards", "clamp", "triggers", 0, "times", value=True),
        changed("guards", "clamp", "triggers", 0, "times", value=2**63),
        changed("guards", "clamp", "triggers", 0, "times", value=1.0),
        changed("guards", "clamp", "triggers", 0, "last", value=float("nan")),
        changed("guards", "clamp", "triggers", 0, "last", value=float("inf")),
        changed("guards", "clamp", "triggers", 0, "last", value=True),
        changed("guards", "clamp", "triggers", 0, "reason", value="{}"),
    ],
)
def test_a_file_that_is_no_report_is_refused_with_the_reason(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(content)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_else(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.sampled_from(sorted(json.loads(encode(REPORT)))), JSON)
def test_no_value_does_anything_else(key: str, value: Any) -> None:
    try:
        report = decode(changed(key, value=value))
    except ValueError:
        return
    assert 0 < report.pid < 2**31
    assert report.role.isprintable()
