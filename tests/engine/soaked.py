"""What a server did under hours of traffic, or minutes of it, and what was wrong with that.

Like `tests.engine.steadiness` it is for unit tests too, and imports only what those have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.engine.steadiness import Course

if TYPE_CHECKING:
    from tests.engine.scrape import Scrape

ROLES = {"APIServer", "EngineCore", "Worker"}
STATE_FILE_BYTES = 4096
"""A process's report holds numbers for each guard and reason, and nothing for each request."""


class StateSize(NamedTuple):
    """The files below the guard's state folder at one moment."""

    files: int
    largest: int


@dataclass
class Tally:
    """What became of all requests.

    Args:
        answered: As many got all their tokens.
        hung_up: As many were given up by their client.
        failures: Why the others got no answer.
        compared: Answers to a prompt that had been answered before.
        different: Names of the prompts for which the answer was another one then.
        first: The first answer to each prompt.
    """

    answered: int = 0
    hung_up: int = 0
    failures: list[str] = field(default_factory=list)
    compared: int = 0
    different: list[str] = field(default_factory=list)
    first: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def count(self, name: str, tokens: tuple[int, ...], error: str | None) -> None:
        """Count the answer to a prompt.

        Args:
            name: Of the prompt.
            tokens: That came.
            error: Why not all of them.
        """
        if error is not None:
            self.failures.append(f"{name}: {error}")
            return
        self.answered += 1
        if name in self.first:
            self.compared += 1
            if tokens != self.first[name]:
                self.different.append(name)
        else:
            self.first[name] = tokens

    def count_hang_up(self, name: str, error: str | None) -> None:
        """Count a request that its client has given up.

        Args:
            name: Of the prompt.
            error: What went wrong before that.
        """
        if error is None:
            self.hung_up += 1
        else:
            self.failures.append(f"{name}, to be given up: {error}")


@dataclass
class Soaked:
    """What a server did.

    Args:
        guard: Whether the guards were on.
        fault: Whether workers invented tokens.
        minutes: Of traffic.
        tally: Of the requests.
        courses: By role, the processes that there were from the end of the warm-up to the end.
        not_lasting: Those that came or went meanwhile.
        unfinished: Prefill chunks that were not their prompt's last.
        injected: Bogus tokens in place of the nothing that those return.
        gone: Those of them that reached EngineCore when their request had gone.
        scrapes: Of the metrics; the last one after the last answer.
        state: Of the state folder while there was traffic.
        left: What is in it when the server has stopped.
        log_lines: As many came from the guards.
    """

    guard: bool
    fault: bool
    minutes: float
    tally: Tally
    courses: Mapping[str, Course]
    not_lasting: Sequence[str]
    unfinished: int
    injected: int
    gone: int
    scrapes: Sequence[Scrape]
    state: Sequence[StateSize]
    left: Sequence[Path]
    log_lines: int

    @property
    def triggers(self) -> int:
        """How often guards acted, for whatever reason, in whichever process."""
        return self.scrapes[-1].triggers.total()

    @property
    def log_limit(self) -> int:
        """How many lines guards may have logged.

        A process says at most twice what its guards do. For each reason a guard has one line at
        first, one a minute that sums up, and one at the end.
        """
        reasons = {(guard, reason) for guard, reason, _ in self.scrapes[-1].triggers}
        return 2 * len(self.courses) + len(reasons) * (math.ceil(self.minutes) + 2)

    def complaints(self, memory_limits: Mapping[str, float]) -> list[str]:
        """Return what was wrong; nothing, if all is well.

        Args:
            memory_limits: By role, the largest slope of memory in KiB a minute.
        """
        return [
            *self._about_answers(),
            *self._about_processes(memory_limits),
            *self._about_triggers(),
            *self._about_traces(),
        ]

    def _about_answers(self) -> Iterator[str]:
        tally = self.tally
        if tally.failures:
            yield f"{len(tally.failures)} requests failed, such as {tally.failures[0]}"
        if tally.different:
            names = ", ".join(sorted(set(tally.different)))
            yield f"{len(tally.different)} answers are not the first one to their prompt: {names}"
        if not tally.compared or not tally.hung_up:
            yield f"too little traffic: {tally.compared} compared, {tally.hung_up} hung up"

    def _about_processes(self, memory_limits: Mapping[str, float]) -> Iterator[str]:
        if missing := ROLES - set(self.courses):
            yield f"no process from the first to the last moment: {', '.join(sorted(missing))}"
        if self.not_lasting:
            yield f"processes came or went: {', '.join(self.not_lasting)}"
        for role, course in self.courses.items():
            yield from course.complaints(memory_limits.get(role, 0.0))

    def _about_triggers(self) -> Iterator[str]:
        if self.fault != (self.injected > 0):
            yield f"{self.injected} tokens were injected"
        due = self.injected - self.gone if self.guard else 0
        if self.triggers != due:
            yield f"guards acted {self.triggers} times, not {due}"
        if errors := sum(scrape.internal_errors.total() for scrape in self.scrapes):
            yield f"errors in the guards themselves: {errors}"
        totals = [scrape.triggers.total() for scrape in self.scrapes]
        if any(later < earlier for earlier, later in pairwise(totals)):
            yield f"the counter of triggers went back: {totals}"

    def _about_traces(self) -> Iterator[str]:
        # One for each process, and one that is about to replace it.
        if any(size.files > 2 * len(self.courses) for size in self.state):
            yield f"{max(size.files for size in self.state)} state files"
        if any(size.largest > STATE_FILE_BYTES for size in self.state):
            yield f"a state file of {max(size.largest for size in self.state)} bytes"
        if self.left:
            yield f"left behind: {', '.join(path.name for path in self.left)}"
        if self.log_lines > self.log_limit:
            yield f"guards logged {self.log_lines} lines, more than {self.log_limit}"
