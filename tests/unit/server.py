"""A server of stand-in processes: each counts with real guards' counters and publishes them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_guard import report_reader
from vllm_guard.counters import Counters
from vllm_guard.process_report import GuardReport, ProcessReport, Trigger
from vllm_guard.publishing import Publisher
from vllm_guard.this_process import role, start_time

REPOSITORY = Path(__file__).resolve().parents[2]


class Process:
    """What a process with one guard has.

    Args:
        folder: The state folder.
    """

    def __init__(self, folder: Path) -> None:
        self.errors: list[Exception] = []
        self.publisher = Publisher(folder, self.report, self.errors.append)
        self.counters = Counters("clamp", changed=self.publisher.request)
        self.state = "applied"

    def report(self) -> ProcessReport:
        last = self.counters.last()
        triggers = tuple(
            Trigger(reason, action, times, last[reason])
            for reason, actions in self.counters.as_dict().items()
            for action, times in actions.items()
        )
        guard = GuardReport("needed", self.state, True, "", triggers, 0)
        return ProcessReport(os.getpid(), start_time(os.getpid()), role(), {"clamp": guard})

    def trigger(self, times: int = 1, reason: str = "prefill-token") -> None:
        for _ in range(times):
            self.counters.record(reason, "blanked", "request r")


def wait_until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    """Wait; fail if it does not come true."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reports(folder: Path) -> list[ProcessReport]:
    """Return all reports in the state folder; there must be nothing else."""
    found = [report for _, of_run in report_reader.read_all(folder) for report in of_run]
    assert all(isinstance(report, ProcessReport) for report in found), found
    return [report for report in found if isinstance(report, ProcessReport)]


def total(folder: Path) -> int:
    """Return the number of triggers that are written down."""
    return sum(
        trigger.times
        for report in reports(folder)
        for guard in report.guards.values()
        for trigger in guard.triggers
    )


def child(how: str, name: str, work: Callable[[Path], None], folder: Path) -> int:
    """Run ``work(folder)`` in a child that is started as ``how``; return its exit code."""
    process = multiprocessing.get_context(how).Process(  # type: ignore[attr-defined]
        target=work, args=(folder,), name=name
    )
    process.start()
    process.join(60)
    code: int = process.exitcode
    return code


def act_and_be_killed(folder: Path) -> None:
    """What EngineCore does: acts, and is ended by SIGKILL when all is written."""
    process = Process(folder)
    process.publisher.begin()
    process.trigger(5)
    wait_until(lambda: any(r.pid == os.getpid() and r.has_counts for r in reports(folder)))
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


def act_and_end(folder: Path) -> None:
    process = Process(folder)
    process.publisher.begin()
    process.trigger(7)
    process.publisher.end()


def idle_and_end(folder: Path) -> None:
    process = Process(folder)
    process.publisher.begin()
    process.publisher.end()


@contextmanager
def another_server(folder: Path) -> Iterator[int]:
    """Run a server of its own with three triggers; yields its pid."""
    program = (
        "import sys; from pathlib import Path; from tests.unit.server import Process;"
        "p = Process(Path(sys.argv[1])); p.publisher.begin(); p.trigger(3); p.publisher.publish();"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()
