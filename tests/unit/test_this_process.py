"""What a process is to vLLM, and which server it belongs to, however it was started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_guard.this_process import RUN_VARIABLE, is_alive, is_run, start_time

REPOSITORY = Path(__file__).resolve().parents[2]

# Prints run and role of a process and of children that it starts in every way there is.
PROGRAM = """
import json, multiprocessing, os, runpy, subprocess, sys
from vllm_guard import this_process

def tell():
    run = this_process.join_run()
    is_first = run.startswith(f"{os.getpid()}-")
    print(json.dumps([sys.argv[1], this_process.role(), run, is_first]), flush=True)

if __name__ == "__main__":
    joins, how, name = sys.argv[1:4]
    if joins == "parent":
        tell()
    sys.argv[1] = "child"
    if how == "program":
        if joins == "parent" and name == "again":
            sys.exit()
        subprocess.run([sys.executable, __file__, "parent", "program", "again"], check=True)
    elif how == "module":
        subprocess.run([sys.executable, "-m", name], check=True)
    else:
        child = multiprocessing.get_context(how).Process(target=tell, name=name)
        child.start()
        child.join()
"""
MODULE = """
import sys
sys.path.insert(0, {repository!r})
from vllm_guard import this_process
import json
print(json.dumps(["child", this_process.role(), this_process.join_run(), None]), flush=True)
"""


def run(
    tmp_path: Path, joins: str, how: str, name: str, **environment: str
) -> list[tuple[str, str, str, bool]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(program), joins, how, name],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"} | environment,
    )
    return [tuple(json.loads(line)) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    ("how", "name", "role"),
    [
        ("fork", "EngineCore", "EngineCore"),
        ("forkserver", "EngineCore_DP1", "EngineCore_DP1"),
        ("spawn", "VllmWorker-3", "Worker_3"),
        ("spawn", "ApiServer_1", "APIServer_1"),
        ("fork", "VLLM_DP_Coordinator", "DPCoordinator"),
        ("fork", "Process-1", "unknown"),
    ],
)
def test_a_child_belongs_to_its_parent_s_run_and_is_known_by_its_name(
    tmp_path: Path, how: str, name: str, role: str
) -> None:
    parent, child = run(tmp_path, "parent", how, name)
    assert is_run(parent[2])
    assert parent[3] is True
    assert child == ("child", role, parent[2], False)


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_two_children_of_a_program_without_guards_are_two_servers(tmp_path: Path, how: str) -> None:
    (first,), (second,) = (run(tmp_path, "nobody", how, "EngineCore") for _ in range(2))
    assert first[3] is second[3] is True
    assert first[2] != second[2]


def test_a_program_started_by_a_server_is_another_server(tmp_path: Path) -> None:
    first, second = run(tmp_path, "parent", "program", "once")
    assert first[2] != second[2]


@pytest.mark.parametrize(
    ("module", "role", "is_part"),
    [
        ("vllm.model_executor.models.registry", "RegistryInspection", True),
        ("vllm.entrypoints.openai.api_server", "APIServer", False),
    ],
)
def test_a_module_that_is_run_is_known_by_its_name(
    tmp_path: Path, module: str, role: str, is_part: bool
) -> None:
    path = tmp_path / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(parents=True)
    for package in path.relative_to(tmp_path).parents[:-1]:
        (tmp_path / package / "__init__.py").touch()
    path.write_text(MODULE.format(repository=str(REPOSITORY)))
    parent, child = run(tmp_path, "parent", "module", module)
    assert child[1] == role
    assert (child[2] == parent[2]) is is_part


@pytest.mark.parametrize("inherited", ["", "../../etc", "12-short", "12-" + "0" * 17, "x" * 10_000])
def test_a_run_that_is_none_is_not_joined(tmp_path: Path, inherited: str) -> None:
    (child,) = run(tmp_path, "nobody", "spawn", "EngineCore", **{RUN_VARIABLE: inherited})
    assert is_run(child[2])
    assert child[2] != inherited


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    pid = os.getpid()
    assert is_alive(pid, start_time(pid))
    assert is_alive(pid, 0)
    if start_time(pid):  # Linux
        assert not is_alive(pid, start_time(pid) + 1)


def test_a_process_that_has_ended_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = start_time(child.pid)
        assert is_alive(child.pid, started)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if started:
            assert not is_alive(child.pid, started)
    assert not is_alive(child.pid, started)
    assert start_time(child.pid) == 0


def test_a_process_of_somebody_else_is_alive() -> None:
    assert is_alive(1, 0)
