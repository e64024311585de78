"""What happened in one arm, from the answers, the log, and what the processes recorded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.engine.arms import Arm
from tests.engine.load import Answer
from tests.engine.server import EngineProcess, Server
from tests.faults.engine_faults.records import read_records


@dataclass(frozen=True)
class Crash:
    """The end of the traceback with which a process died."""

    place: str
    source: str
    exception: str


@dataclass
class Outcome:
    """What happened in one arm.

    Args:
        arm: Which one.
        folder: Where its log and records are.
        seconds: From starting the server to having stopped it.
        answers: One for each request, in the order of sending.
        health: Status code of ``/health`` after the last round, or why there was none.
        exit_code: Of the API server, if it ended by itself.
        engine_processes: EngineCore before, between and after the rounds.
        worker_processes: The workers at the same moments.
        preemptions: How many the server counted, if it still told after the last round.
    """

    arm: Arm
    folder: Path
    seconds: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    health: str = ""
    exit_code: int | None = None
    engine_processes: list[EngineProcess | None] = field(default_factory=list)
    worker_processes: list[set[EngineProcess]] = field(default_factory=list)
    preemptions: int | None = None

    def look_at(self, server: Server) -> None:
        """Note which processes there are now.

        Args:
            server: Whose.
        """
        self.engine_processes.append(server.engine_core())
        self.worker_processes.append(server.workers())

    @property
    def log_file(self) -> Path:
        """File with everything the server's processes print."""
        return self.folder / "server.log"

    @property
    def records_folder(self) -> Path:
        """Folder in which the fault plugin leaves its records."""
        return self.folder / "records"

    @property
    def answered(self) -> int:
        """Number of requests that got all their tokens."""
        return sum(answer.error is None for answer in self.answers)

    @property
    def kept_engine(self) -> EngineProcess | None:
        """The EngineCore process, if it was the same one all the time."""
        first, *later = self.engine_processes
        return first if all(process == first for process in later) else None

    @property
    def kept_workers(self) -> set[EngineProcess]:
        """The worker processes, if they were the same ones all the time."""
        first, *later = self.worker_processes
        return first if all(processes == first for processes in later) else set()

    def different_from(self, reference: Outcome) -> list[str]:
        """Name the requests that did not get what they got in another arm.

        Tokens count, and where requests asked for them, their log-probabilities too.

        Args:
            reference: The other arm.
        """
        expected = {answer.name: answer for answer in reference.answers}
        return [
            answer.name
            for answer in self.answers
            if answer.error is not None or answer != expected[answer.name]
        ]

    def answers_to(self, prefix: str) -> list[Answer]:
        """Return the answers to some of the requests.

        Args:
            prefix: Of their names.
        """
        return [answer for answer in self.answers if answer.name.startswith(prefix)]

    @cached_property
    def log(self) -> str:
        """Everything the server's processes printed."""
        return self.log_file.read_text(errors="replace")

    def process_logs(self, text: str) -> set[str]:
        """Return the kinds of process (as vLLM names them) that logged a line with `text`.

        Args:
            text: Part of the line.
        """
        lines = [line for line in self.log.splitlines() if text in line]
        return {match[1] for line in lines if (match := re.match(r"\((\w+) pid=", line))}

    @cached_property
    def said_of_guards(self) -> dict[str, list[str]]:
        """By process id, what each process said of its guards, in the order of saying it."""
        said: dict[str, list[str]] = {}
        for process, guards in re.findall(
            r" vllm-guard \S+ \(pid (\d+)\) on [^:]+: (.*)$", self.log, re.MULTILINE
        ):
            said.setdefault(process, []).append(guards)
        return said

    @cached_property
    def crash(self) -> Crash | None:
        """How EngineCore died, if it did."""
        return self._crash("EngineCore")

    @cached_property
    def worker_crash(self) -> Crash | None:
        """What a worker's step failed of, if one did."""
        return self._crash("Worker")

    def _crash(self, process: str) -> Crash | None:
        """Return the end of the last traceback of a process.

        Args:
            process: As vLLM names it.
        """
        pattern = rf"^\({process} pid=\d+\) ERROR .*?\] (.*)$"
        lines = re.findall(pattern, self.log, re.MULTILINE)
        # The line of carets below a source line says nothing.
        lines = [line for line in lines if not re.fullmatch(r"[\s^~]*", line)]
        found = None
        for place, source, exception in zip(lines, lines[1:], lines[2:], strict=False):
            if re.match(r"\w+(Error|Exception)\b", exception):
                found = Crash(place.strip(), source.strip(), exception)
        return found

    def recorded(self, kind: str) -> list[dict[str, Any]]:
        """Return what the fault plugin wrote, see its `records`.

        Args:
            kind: Of record.
        """
        return read_records(self.records_folder, kind)

    @property
    def injected(self) -> int:
        """Number of bogus tokens that workers returned."""
        return sum(record["injected"] for record in self.recorded("injected"))

    @property
    def unfinished_chunks(self) -> int:
        """Number of unfinished prefill chunks that workers computed."""
        return sum(record["unfinished_chunks"] for record in self.recorded("injected"))

    @property
    def victims(self) -> int:
        """Number of requests for which bogus tokens were returned."""
        return sum(len(record["by_request"]) for record in self.recorded("injected"))

    @property
    def replaced_methods(self) -> list[str]:
        """The scheduler's methods that were not vLLM's own while it ran."""
        return [name for record in self.recorded("scheduler") for name in record["replaced"]]

    @property
    def triggers(self) -> int:
        """How often guards acted, for whatever reason, in whichever process."""
        statuses = self.recorded("guard") + self.recorded("worker_guard")
        return sum(
            count
            for status in statuses
            for guard in status["guards"].values()
            for actions in guard["triggers"].values()
            for count in actions.values()
        )
