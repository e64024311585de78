"""What the guards of running servers do, as their processes have written it down."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vllm_guard import report_reader, runs
from vllm_guard.private_folder import NotPrivate
from vllm_guard.process_report import ProcessReport
from vllm_guard.this_process import is_alive


class Process(NamedTuple):
    """A process that has written down what its guards do.

    Args:
        report: What it says.
        alive: Whether it still runs. Counts of ended ones are kept as long as their server runs.
    """

    report: ProcessReport
    alive: bool


class Server(NamedTuple):
    """The processes of one server, or of one program that uses vLLM.

    Args:
        pid: Of the process that was the first.
        processes: All of them.
    """

    pid: int
    processes: list[Process]


class Running(NamedTuple):
    """What the state folder holds.

    Args:
        folder: The state folder.
        servers: Those of this user.
        problems: Lines about what cannot be read.
    """

    folder: Path
    servers: list[Server]
    problems: list[str]


def read(folder: Path | None) -> Running:
    """Return what running servers do; whatever cannot be read is a problem, not an error.

    Args:
        folder: The state folder; None: the default one.
    """
    running = Running(folder or runs.default_folder(), [], [])
    try:
        for run, found in report_reader.read_all(folder):
            reports = [report for report in found if isinstance(report, ProcessReport)]
            running.problems.extend(line for line in found if isinstance(line, str))
            if reports:
                processes = [Process(r, is_alive(r.pid, r.started)) for r in reports]
                running.servers.append(Server(int(run.partition("-")[0]), processes))
    except FileNotFoundError:
        pass  # nothing has ever run
    except (OSError, NotPrivate) as error:
        running.problems.append(f"what running processes do cannot be read: {error}")
    return running
