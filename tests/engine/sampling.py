"""Looks at all processes of a server, and at the guard's state folder, second by second."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from tests.engine.server import EngineProcess, Server
from tests.engine.soaked import StateSize
from tests.engine.steadiness import Course, Sample

INTERVAL = 1.0
MEMORY = ("Rss", "Pss", "Anonymous")


class Sampler:
    """What was seen of a server's processes.

    Args:
        server: Runs.
        state: Its state folder.
    """

    def __init__(self, server: Server, state: Path) -> None:
        self.state: list[StateSize] = []
        self._server = server
        self._state = state
        self._begin = time.monotonic()
        self._moments: list[float] = []
        self._roles: dict[EngineProcess, str] = {}
        self._samples: dict[EngineProcess, list[Sample]] = defaultdict(list)

    def sample(self) -> None:
        """Look once."""
        seconds = time.monotonic() - self._begin
        self._moments.append(seconds)
        for process, role in self._server.processes().items():
            # One that ends meanwhile has no sample of this moment.
            with suppress(OSError):
                self._samples[process].append(sample(process.pid, seconds))
                self._roles[process] = role
        self.state.append(state_size(self._state))

    def courses(self, warm_up: float) -> tuple[dict[str, Course], list[str]]:
        """Return by role the processes that were there at each moment, and who else was.

        Args:
            warm_up: Seconds whose samples are left out.
        """
        moments = sum(moment >= warm_up for moment in self._moments)
        courses: dict[str, Course] = {}
        others = []
        for process, samples in self._samples.items():
            settled = [sample for sample in samples if sample.seconds >= warm_up]
            role = self._roles[process]
            name = f"{role} (pid {process.pid})"
            if len(settled) == moments > 1 and role not in courses:
                courses[role] = Course(name, settled)
            elif settled:
                others.append(name)
        return courses, others

    def rows(self) -> list[tuple[object, ...]]:
        """Return all samples for a file, with a row of headings."""
        return [
            ("role", "pid", *Sample._fields),
            *(
                (self._roles[process], process.pid, *sample)
                for process, samples in self._samples.items()
                for sample in samples
            ),
        ]


def sample(pid: int, seconds: float) -> Sample:
    """Return what the system says of a process.

    Args:
        pid: Of the process.
        seconds: For the sample.

    Raises:
        OSError: There is no such process any more.
    """
    folder = Path("/proc", str(pid))
    # Not statm: the kernel keeps that in parts for each core, and adds up rarely.
    memory = (folder / "smaps_rollup").read_text()
    sizes = (int(re.findall(rf"^{kind}: +(\d+) kB", memory, re.MULTILINE)[0]) for kind in MEMORY)
    descriptors, threads = (len(list((folder / kind).iterdir())) for kind in ("fd", "task"))
    return Sample(seconds, *sizes, descriptors, threads)


def state_size(folder: Path) -> StateSize:
    """Return how many files there are below a folder, and the size of the largest.

    Args:
        folder: Need not exist.
    """
    sizes = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return StateSize(len(sizes), max(sizes, default=0))
