"""`vllm-guard audit`: trees and wheels; bad input; formats; what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.site_folder import REPOSITORY, SCHEDULER, Site, alone
from vllm_guard.cli import main
from vllm_guard.guards import DEFINITIONS

Captured = pytest.CaptureFixture[str]

FAULTS = [fault for definition in DEFINITIONS for fault in definition.faults]
FIXED = SCHEDULER.replace("request.append_output_token_ids(token)", "pass")
VERSION = "0.20.0+das.dtk2604"


def audit(*arguments: object) -> int:
    """Run the command."""
    return main(["audit", *map(str, arguments)])


def test_one_build_is_shown_with_its_evidence(tree: Path, capsys: Captured) -> None:
    """File, line, symbol, and what was found."""
    assert audit(tree) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    first, *lines = captured.out.splitlines()
    assert first == f"vLLM {VERSION} (release 0.20.0, Hygon DCU) in {tree}"
    shown = {line.split()[0]: line for line in lines}
    assert shown["clamp"].split() == ["clamp", "needed"]
    assert (
        "needed   a token of an unfinished prefill is delivered"
        " (vllm/v1/core/sched/scheduler.py:8 Scheduler._update_request_with_output)"
    ) in shown["prefill-token"]
    assert "absent   there is no Scheduler._preempt_request" in shown["resume-early"] or (
        "does not exist" in shown["resume-early"]
    )
    assert set(FAULTS) <= set(shown)


def test_the_package_itself_may_be_named(tree: Path, capsys: Captured) -> None:
    """As well as the folder that holds it."""
    assert audit(tree / "vllm") == 0
    assert f"vLLM {VERSION}" in capsys.readouterr().out


@pytest.mark.parametrize("prefix", ["", "vllm-0.20.0.data/purelib/"])
def test_a_wheel_says_what_its_tree_says(
    tree: Path, make_wheel: Callable[..., Path], prefix: str, capsys: Captured
) -> None:
    """Wherever in the wheel pip takes the files from."""
    audit(tree)
    expected = capsys.readouterr().out.splitlines()[1:]
    assert audit(make_wheel(prefix=prefix)) == 0
    assert capsys.readouterr().out.splitlines()[1:] == expected


def test_several_builds_are_a_table_with_an_answer(tree: Path, capsys: Captured) -> None:
    """Builds that say the same version are told by their names."""
    other = tree.parent / "other"
    site = Site(other)
    other.mkdir()
    site.add_vllm("")
    assert audit(tree, other) == 0
    guards, header, *rows, _, answer = capsys.readouterr().out.splitlines()
    assert guards.split() == [definition.name for definition in DEFINITIONS]
    assert header.split() == FAULTS
    assert [row.split()[0] for row in rows] == ["site", "other"]
    assert rows[0].split()[1:3] == ["needed", "needed"]
    assert set(rows[1].split()[1:]) == {"absent"}
    assert answer == "no guard is needed on: other"


def test_where_each_needs_a_guard_the_best_is_named(tree: Path, capsys: Captured) -> None:
    """By the number of faults that are fixed."""
    other = Site(tree.parent / "other")
    other.folder.mkdir()
    other.add_vllm(FIXED)
    other.write("vllm/_version.py", "__version__ = '0.34.0'\n")
    assert audit(tree, other.folder) == 0
    answer = capsys.readouterr().out.splitlines()[-1]
    assert answer == (
        "each of these needs a guard; the most fixes are in 0.34.0; left there: last-chunk,"
        " id-reuse"
    )


def test_json_is_the_documented_schema(tree: Path, capsys: Captured) -> None:
    """Inputs that failed included, and it is valid JSON then too."""
    assert audit("--format", "json", tree, tree / "nothing") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    [build] = document["builds"]
    assert (build["input"], build["version"]) == (str(tree), VERSION)
    assert [guard["guard"] for guard in build["guards"]] == [d.name for d in DEFINITIONS]
    clamp = build["guards"][0]
    assert clamp["verdict"] == "needed"
    assert [fault["fault"] for fault in clamp["faults"]] == list(DEFINITIONS[0].faults)
    assert set(clamp["faults"][0]) == {"fault", "verdict", "evidence"}
    [error] = document["errors"]
    assert error["input"] == str(tree / "nothing")
    assert "No such file" in error["error"]


def test_github_annotations_are_one_line_each(tree: Path, capsys: Captured) -> None:
    """A warning for what is needed, a notice for the rest, an error for bad input."""
    assert audit("--format", "github", tree, "50%\nnot:a,requirement") == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("::warning title=vllm-guard%3A clamp needed::")
    assert lines[1].startswith("::notice title=vllm-guard%3A stale absent::")
    assert "%0Aprefill-token needed: " in lines[0]
    assert lines[-1].startswith("::error title=vllm-guard audit::50%25%0Anot:a,requirement: ")
    assert len(lines) == len(DEFINITIONS) + 1


def truncated(wheel: Path) -> Path:
    """Cut a wheel in half, as a download that broke off."""
    wheel.write_bytes(wheel.read_bytes()[: wheel.stat().st_size // 2])
    return wheel


def damaged(wheel: Path) -> Path:
    """Overwrite the beginning of the first file in a wheel."""
    content = bytearray(wheel.read_bytes())
    content[60:120] = b"\xff" * 60
    wheel.write_bytes(bytes(content))
    return wheel


def test_bad_wheels_are_one_clear_line(
    make_wheel: Callable[..., Path], tmp_path: Path, capsys: Captured
) -> None:
    """What, where, what was found; exit code 2 and no traceback."""
    text = tmp_path / "text.whl"
    text.write_text("not a zip file")
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("other/__init__.py", "")
    expected = {
        text: "not a wheel, or only a part of one",
        truncated(make_wheel("half.whl")): "not a wheel, or only a part of one",
        damaged(make_wheel("damaged.whl")): "is damaged",
        other: "no vLLM in this wheel (no vllm/__init__.py)",
        tmp_path / "nothing.whl": "No such file",
        Path("/dev/null"): "neither a folder nor a file",
    }
    for path, reason in expected.items():
        assert audit(path) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        [line] = captured.err.splitlines()
        assert line.startswith(f"vllm-guard: {path}")
        assert reason in line


def test_bad_folders_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Without a vLLM, or one that may not be read."""
    assert audit(tmp_path) == 2
    assert "no vLLM in this folder" in capsys.readouterr().err

    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert audit(tmp_path) == 2
    assert capsys.readouterr().err == (
        f"vllm-guard: {tmp_path}: cannot be read (Permission denied)\n"
    )


@pytest.mark.parametrize("given", ["nonsense=1", "==1.0", "vllm==", ""])
def test_what_is_no_requirement_either_is_one_clear_line(given: str, capsys: Captured) -> None:
    """With an example of one."""
    assert audit(given) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("neither a file nor a folder nor a requirement such as vllm==0.31.0")


def test_the_others_are_still_judged(tree: Path, capsys: Captured) -> None:
    """A bad input keeps nothing else from being shown."""
    assert audit("/nonexistent", tree, "/dev/null") == 2
    captured = capsys.readouterr()
    assert f"in {tree}" in captured.out
    assert len(captured.err.splitlines()) == 2


def test_source_that_cannot_be_parsed_is_unknown(tree: Path, capsys: Captured) -> None:
    """That is a verdict, no error: the rest can be judged."""
    (tree / "vllm/v1/core/sched/scheduler.py").write_text("def broken(:\n")
    assert audit(tree) == 0
    shown = capsys.readouterr().out
    assert "unknown  vllm/v1/core/sched/scheduler.py cannot be parsed" in shown


def test_a_version_that_lies_changes_no_verdict(tree: Path, capsys: Captured) -> None:
    """It is shown, and that is all."""
    audit(tree)
    before = capsys.readouterr().out.splitlines()
    (tree / "vllm/_version.py").write_text("__version__ = '9.9.9'\n")
    audit(tree)
    after = capsys.readouterr().out.splitlines()
    assert after[0].startswith("vLLM 9.9.9 ")
    assert before[1:] == after[1:]


def test_the_version_of_a_wheel_may_be_in_its_metadata(
    tree: Path, tmp_path: Path, capsys: Captured
) -> None:
    """Where there is no ``_version.py``."""
    wheel = tmp_path / "vllm.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm-0.31.0.dist-info/METADATA", "Name: vllm\nVersion: 0.31.0\n\nText")
    assert audit(wheel) == 0
    assert capsys.readouterr().out.startswith("vLLM 0.31.0 ")


def test_nothing_of_the_build_is_run(tree: Path, capsys: Captured) -> None:
    """Not its package, not its modules."""
    trace = tree / "ran"
    for path in tree.rglob("*.py"):
        path.write_text(f"open({str(trace)!r}, 'w')\n{path.read_text()}")
    assert audit(tree) == 0
    assert not trace.exists()
    assert "vllm.v1" not in sys.modules


def test_loading_the_plugin_loads_nothing_of_it() -> None:
    """A server that starts has no use for it."""
    code = (
        "import sys, vllm_guard; vllm_guard.register();"
        "print([name for name in sys.modules if name.startswith('vllm_guard.probes.static')])"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=REPOSITORY
    )
    assert ended.stdout == "[]\n"


def test_a_large_wheel_takes_no_more_memory_than_a_small_one(
    make_wheel: Callable[..., Path], capsys: Captured
) -> None:
    """Of 500 MB only the Python files are read, one at a time."""
    small, large = make_wheel("small.whl"), make_wheel("large.whl", hole=500_000_000)
    audit(small)
    peaks = []
    for wheel in (small, large):
        tracemalloc.start()
        assert audit(wheel) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2_000_000


def test_the_installed_build_can_be_asked_for(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """By the word; without one it is a clear line."""
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.chdir(tree.parent)
    monkeypatch.setattr(sys, "path", alone(tree))
    assert audit("installed") == 0
    assert f"vLLM {VERSION}" in capsys.readouterr().out
    monkeypatch.setattr(sys, "path", alone(tree.parent))
    assert audit("installed") == 2
    assert "no vLLM is installed for this Python" in capsys.readouterr().err
