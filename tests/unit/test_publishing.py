"""Files of processes: written after triggers only, kept after a SIGKILL, cleaned up in the end."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.server import (
    Process,
    act_and_be_killed,
    act_and_end,
    another_server,
    child,
    idle_and_end,
    reports,
    total,
    wait_until,
)
from vllm_guard import runs
from vllm_guard.private_folder import PrivateFolder
from vllm_guard.publishing import INTERVAL
from vllm_guard.this_process import leave_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def process(folder: Path) -> Iterator[Process]:
    started = Process(folder)
    started.publisher.begin()
    yield started
    started.publisher.end()
    leave_run(started.publisher.run)
    assert started.errors == []


def file_of(process: Process, folder: Path) -> Path:
    (file,) = (folder / process.publisher.run).iterdir()
    return file


def test_a_process_is_there_before_it_acts(process: Process, folder: Path) -> None:
    (report,) = reports(folder)
    assert report == process.report()
    assert report.pid == os.getpid()


def test_nothing_is_written_while_nothing_changes(process: Process, folder: Path) -> None:
    before = file_of(process, folder).stat()
    for _ in range(10):
        process.publisher.publish()
    assert file_of(process, folder).stat() == before


def test_ten_thousand_triggers_are_all_written_with_few_writes(
    process: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    write = PrivateFolder.write

    def counted(self: PrivateFolder, name: str, content: bytes) -> None:
        writes.append(name)
        write(self, name, content)

    monkeypatch.setattr(PrivateFolder, "write", counted)
    begin = time.monotonic()
    process.trigger(10_000)
    seconds = time.monotonic() - begin
    wait_until(lambda: total(folder) == 10_000)
    assert 1 <= len(writes) <= 3 + seconds / INTERVAL


def test_the_first_trigger_is_written_at_once_and_by_another_thread(
    process: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    write = PrivateFolder.write

    def noted(self: PrivateFolder, name: str, content: bytes) -> None:
        threads.append(threading.current_thread())
        write(self, name, content)

    monkeypatch.setattr(PrivateFolder, "write", noted)
    time.sleep(INTERVAL)
    process.trigger()
    wait_until(lambda: total(folder) == 1)
    assert threads != []
    assert threading.current_thread() not in threads


def test_triggers_never_wait_for_the_disk(
    process: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_answers = threading.Event()
    write = PrivateFolder.write

    def slow(self: PrivateFolder, name: str, content: bytes) -> None:
        disk_answers.wait(30)
        write(self, name, content)

    monkeypatch.setattr(PrivateFolder, "write", slow)
    begin = time.monotonic()
    process.trigger(1000)
    assert time.monotonic() - begin < 5
    disk_answers.set()
    wait_until(lambda: total(folder) == 1000)


def test_threads_are_there_only_while_something_is_to_be_written(process: Process) -> None:
    process.trigger()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "vllm-guard"])


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_counts_of_a_killed_process_are_kept_while_its_server_runs(
    process: Process, folder: Path, how: str
) -> None:
    assert child(how, "EngineCore", act_and_be_killed, folder) == -9
    assert child(how, "EngineCore", act_and_be_killed, folder) == -9
    assert total(folder) == 10
    assert [report.role for report in reports(folder)].count("EngineCore") == 2


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_process_that_ends_leaves_its_counts_and_no_other_file(
    process: Process, folder: Path, how: str
) -> None:
    assert child(how, "VllmWorker-0", act_and_end, folder) == 0
    assert child(how, "VllmWorker-1", idle_and_end, folder) == 0
    assert sorted(report.role for report in reports(folder)) == ["Worker_0", "unknown"]
    assert total(folder) == 7


def test_a_forked_child_counts_for_itself(process: Process, folder: Path) -> None:
    process.trigger(2)
    process.publisher.publish()
    pid = os.fork()
    if pid == 0:
        process.trigger(3)
        process.publisher.end()
        os._exit(0)
    os.waitpid(pid, 0)
    assert {report.pid: total_of(report) for report in reports(folder)} == {os.getpid(): 2, pid: 3}
    process.trigger()
    wait_until(lambda: total(folder) == 6)


def total_of(report: object) -> int:
    return sum(t.times for guard in report.guards.values() for t in guard.triggers)  # type: ignore[attr-defined]


def test_a_forked_child_that_does_nothing_writes_nothing(process: Process, folder: Path) -> None:
    pid = os.fork()
    if pid == 0:
        process.publisher.end()
        os._exit(0)
    os.waitpid(pid, 0)
    assert [report.pid for report in reports(folder)] == [os.getpid()]


def test_the_last_process_of_a_server_removes_its_folder(folder: Path) -> None:
    process = Process(folder)
    process.publisher.begin()
    process.trigger()
    process.publisher.end()
    process.publisher.remove_ended()
    leave_run(process.publisher.run)
    assert list(folder.iterdir()) == []


def test_a_server_that_starts_removes_what_dead_ones_left_and_no_living_one(folder: Path) -> None:
    with another_server(folder) as first, another_server(folder):
        os.kill(first, 9)
        wait_until(lambda: not os.path.exists(f"/proc/{first}/fd/0"))
        with another_server(folder):
            assert len(list(folder.iterdir())) == 2
            assert total(folder) == 6


def test_cleaning_up_leaves_what_is_not_ours(folder: Path, tmp_path: Path) -> None:
    run = folder / f"1-{'0' * 16}"
    run.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (run / "1-2.json").touch()
    (run / "precious").touch()
    (folder / "notes").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1-2.json").touch()
    (folder / f"2-{'0' * 16}").symlink_to(tmp_path / "elsewhere")
    runs.remove_ended(folder)
    assert [path.name for path in run.iterdir()] == ["precious"]
    assert (folder / "notes").exists()
    assert (tmp_path / "elsewhere" / "1-2.json").exists()


def test_a_folder_that_somebody_removed_is_made_again(process: Process, folder: Path) -> None:
    shutil.rmtree(folder)
    process.trigger()
    wait_until(lambda: folder.exists() and total(folder) == 1)
    assert not PrivateFolder(str(folder / process.publisher.run), make=False).own()


def make_unusable(folder: Path, how: str) -> None:
    if how == "others":
        folder.mkdir()
        folder.chmod(0o777)
    elif how == "file":
        folder.write_text("")
    elif how == "link":
        folder.symlink_to("/etc")
    elif how == "missing":
        folder.parent.rmdir()


@pytest.mark.parametrize("how", ["others", "file", "link", "missing"])
def test_an_unusable_folder_is_one_warning_and_no_error(
    folder: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_unusable(folder, how)
    process = Process(folder)
    process.publisher.begin()
    for _ in range(20):
        process.trigger()
        process.publisher.publish()
    process.publisher.end()
    leave_run(process.publisher.run)
    lines = [line for line in caplog.messages if "cannot be shown" in line]
    assert len(lines) == 1
    assert str(folder) in lines[0]
    assert "VLLMGUARD_STATE_DIR" in lines[0]
    assert process.errors == []


@pytest.mark.parametrize("number", [28, 30], ids=["full disk", "read-only"])
def test_a_disk_that_takes_nothing_is_one_warning_until_it_does(
    process: Process,
    folder: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        for _ in range(20):
            process.trigger()
            process.publisher.publish()
    assert len([line for line in caplog.messages if os.strerror(number) in line]) == 1
    process.publisher.publish()
    assert total(folder) == 20


def test_a_machine_without_threads_is_a_warning(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    process.trigger(3)
    assert len([line for line in caplog.messages if "can't start new thread" in line]) == 1


def test_an_error_of_our_own_is_remembered(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(folder)
    process.state = object()  # type: ignore[assignment]
    process.publisher.begin()
    (error,) = process.errors
    assert isinstance(error, TypeError)
    process.state = "applied"
    process.publisher.end()
    leave_run(process.publisher.run)
