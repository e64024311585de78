"""`vllm-guard status` on running servers, and its warnings about switches that Ray loses."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.server import another_server
from tests.unit.site_folder import Site
from vllm_guard.cli import processes
from vllm_guard.cli.formats.standing import running_lines
from vllm_guard.process_report import GuardReport, ProcessReport, Trigger, encode
from vllm_guard.this_process import start_time

RUN = f"{os.getpid()}-{'0' * 16}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    (made / RUN).mkdir(parents=True, mode=0o700)
    made.chmod(0o700)
    return made


def add(folder: Path, role: str, guard: GuardReport, pid: int | None = None) -> None:
    number = pid or os.getpid()
    report = ProcessReport(number, start_time(number), role, {"clamp": guard})
    (folder / RUN / f"{number}-{report.started}.json").write_bytes(encode(report))


def shown(folder: Path) -> list[str]:
    return [line.strip() for line in running_lines(processes.read(folder))]


def test_a_process_is_shown_with_its_guards_and_counts(folder: Path) -> None:
    now = time.time()
    triggers = (Trigger("prefill-token", "blanked", 12, now), Trigger("id-reuse", "cut", 1, now))
    add(folder, "EngineCore", GuardReport("needed", "applied", True, "", triggers, 0))
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    assert shown(folder) == [
        f"server {os.getpid()}:",
        f"pid {os.getpid()} EngineCore",
        "clamp      verdict needed    state applied   effective",
        f"prefill-token: blanked 12, last {clock}",
        f"id-reuse: cut 1, last {clock}",
    ]


def test_what_is_wrong_is_shown(folder: Path) -> None:
    guard = GuardReport("foreign", "applied", False, "Scheduler.schedule was replaced", (), 3)
    add(folder, "EngineCore", guard)
    assert shown(folder)[2:] == [
        "clamp      verdict foreign   state applied   NOT EFFECTIVE, 3 internal errors",
        "Scheduler.schedule was replaced",
    ]


def test_a_process_that_has_ended_is_said_to(folder: Path) -> None:
    guard = GuardReport("needed", "applied", None, "", (Trigger("r", "a", 1, 0.0),), 0)
    add(folder, "EngineCore", guard, pid=2**31 - 1)
    assert shown(folder)[1] == f"pid {2**31 - 1} EngineCore, ended"


def test_two_servers_are_told_apart(tmp_path: Path) -> None:
    with another_server(tmp_path / "state") as one, another_server(tmp_path / "state") as other:
        lines = shown(tmp_path / "state")
    assert {line for line in lines if line.startswith("server")} == {
        f"server {one}:",
        f"server {other}:",
    }


def test_nothing_running_is_one_line(tmp_path: Path) -> None:
    (line,) = shown(tmp_path / "nothing")
    assert line.startswith("no process of this user runs with guards")
    assert str(tmp_path / "nothing") in line


def test_a_folder_that_cannot_be_trusted_is_one_warning(folder: Path) -> None:
    folder.chmod(0o777)
    (line,) = shown(folder)
    assert line.startswith("warning: what running processes do cannot be read: others may write")


def test_a_hostile_file_is_one_warning_and_hides_nothing(folder: Path) -> None:
    add(folder, "EngineCore", GuardReport("needed", "applied", True, "", (), 0))
    (folder / RUN / "12-0.json").symlink_to("/etc/passwd")
    (folder / RUN / "13-0.json").write_text("\x1b[2J")
    (folder / f"14-{'0' * 16}").symlink_to("/etc")
    lines = shown(folder)
    assert f"pid {os.getpid()} EngineCore" in lines
    assert len([line for line in lines if line.startswith("warning:")]) == 3
    assert not any("root:" in line or "\x1b" in line for line in lines)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.add_vllm()
    made.add_distribution("vllm-guard", "", "[vllm.general_plugins]\nvllm_guard = vllm_guard:x\n")
    return made


def test_status_ends_with_the_running_servers(site: Site) -> None:
    with another_server(site.folder / "state") as pid:
        lines = site.run("status").stdout.splitlines()
    at = lines.index(f"server {pid}:")
    assert lines[at + 1] == f"  pid {pid} unknown"
    assert "prefill-token: blanked 3" in lines[at + 3]


def test_json_has_the_same_and_a_version(site: Site) -> None:
    with another_server(site.folder / "state") as pid:
        (site.folder / "state" / f"14-{'0' * 16}").symlink_to("/etc")
        document = json.loads(site.run("status", "--format", "json").stdout)
    assert document["schema_version"] == 1
    assert document["build"] == {
        "version": "0.20.0+das.dtk2604",
        "folder": str(site.folder / "vllm"),
    }
    guards = {guard["guard"]: guard for guard in document["new_process"]}
    assert (guards["clamp"]["mode"], guards["clamp"]["state"]) == ("auto", "applied")
    assert guards["clamp"]["faults"][0] == {
        "fault": "prefill-token",
        "verdict": "needed",
        "evidence": "a token of an unfinished prefill is delivered",
    }
    (server,) = document["servers"]
    (process,) = server["processes"]
    assert (server["pid"], process["pid"], process["alive"]) == (pid, pid, True)
    (guard,) = process["guards"]
    (trigger,) = guard.pop("triggers")
    assert guard == {
        "guard": "clamp",
        "verdict": "needed",
        "state": "applied",
        "effective": True,
        "obstacle": "",
        "internal_errors": 0,
    }
    assert 0 <= time.time() - trigger.pop("last") < 60
    assert trigger == {"reason": "prefill-token", "action": "blanked", "times": 3}
    assert any("is passed over" in warning for warning in document["warnings"])


def test_status_itself_leaves_nothing_in_the_folder(site: Site) -> None:
    assert "no process of this user runs with guards" in site.run("status").stdout
    assert list((site.folder / "state").iterdir()) == []


def ray_warnings(ended: subprocess.CompletedProcess[str]) -> list[str]:
    assert ended.returncode == 0, ended.stderr
    return [line for line in ended.stdout.splitlines() if "Ray is installed" in line]


@pytest.mark.parametrize(
    ("copied", "lost"),
    [
        ({}, "VLLMGUARD_CLAMP, VLLMGUARD_STATE_DIR"),
        ({"VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "A, VLLMGUARD_CLAMP"}, "VLLMGUARD_STATE_DIR"),
        ({"VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "VLLMGUARD_CLAMP,VLLMGUARD_STATE_DIR"}, ""),
        ({"VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "A_, VLLMGUARD"}, ""),
    ],
)
def test_switches_that_workers_of_ray_do_not_get_are_a_warning(
    site: Site, copied: dict[str, str], lost: str
) -> None:
    site.write("ray/__init__.py", "")
    found = ray_warnings(site.run("status", VLLMGUARD_CLAMP="off", **copied))
    assert len(found) == bool(lost)
    assert f"would not get {lost}: set" in "".join(found) or not lost


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_there_is_nothing_to_warn_of(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_vllm()
    assert ray_warnings(site.run("status", VLLMGUARD_CLAMP="off")) == []
