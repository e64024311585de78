"""How often each guard acted, and the log lines about it.

The rate is how often the upstream fault meets this traffic: the argument for the fix. The first
trigger of each kind is a WARNING with the numbers; later ones are DEBUG lines, and at most one
WARNING a minute sums them up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vllm_guard.forks import renew_after_fork
from vllm_guard.log import logger
from vllm_guard.settings import guard_variable

INTERVAL = 60.0
"""Seconds between two summing-up lines of one guard and reason."""


@dataclass
class _Unreported:
    since: float
    count: int = 0


class Counters:
    """The triggers of one guard in this process.

    Args:
        guard: Name of the guard.
        clock: Returns seconds; only differences count.
        changed: Called, without arguments, after each trigger.

    >>> counters = Counters("mm_merge")
    >>> for request in ("a", "b"):
    ...     counters.record("short-item", "padded", f"request {request}, item 0: 18 of 20")
    >>> counters.as_dict()
    {'short-item': {'padded': 2}}
    """

    def __init__(
        self,
        guard: str,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.guard = guard
        self._clock = clock
        self._changed = changed
        self._reset()
        # What a forked child inherits was counted, and will be reported, by its parent; a lock
        # may be held by a thread that the child does not have.
        renew_after_fork(self, Counters._reset)

    def _reset(self) -> None:
        self._triggers: Counter[tuple[str, str]] = Counter()
        self._last: dict[str, float] = {}
        self._unreported: dict[str, _Unreported] = {}
        self._alarmed: set[str] = set()
        self._lock = threading.Lock()

    def record(
        self, reason: str, action: str, detail: str, advice: str = "", *, alarming: bool = False
    ) -> None:
        """Count one trigger and log it.

        Args:
            reason: The fault, or the rule that noticed it.
            action: What was done: ``blanked``, ``padded``, ``observed`` and the like.
            detail: What happened, with request id and numbers; no prompt and no output text.
            advice: Where to read on; part of the first line only.
            alarming: Whether somebody must look: the first such line is an ERROR.
        """
        with self._lock:
            first = reason not in self._unreported or (alarming and reason not in self._alarmed)
            if alarming:
                self._alarmed.add(reason)
            pending = self._unreported.setdefault(reason, _Unreported(self._clock()))
            self._triggers[reason, action] += 1
            self._last[reason] = time.time()
            pending.count += 0 if first else 1
        self._changed()
        if first:
            logger.log(
                logging.ERROR if alarming else logging.WARNING,
                "vllm-guard %s: %s (%s, %s). %sFurther ones are counted, at most one line a minute;"
                " %s=off switches this guard off.",
                self.guard,
                detail,
                reason,
                action,
                f"{advice} " if advice else "",
                guard_variable(self.guard),
            )
            return
        logger.debug("vllm-guard %s: %s (%s, %s).", self.guard, detail, reason, action)
        if self._clock() - pending.since >= INTERVAL:
            self._sum_up(reason)

    def flush(self) -> None:
        """Log what has been counted and not been logged yet."""
        for reason in list(self._unreported):
            self._sum_up(reason)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the number of triggers by reason and action."""
        counts: dict[str, dict[str, int]] = {}
        with self._lock:
            for (reason, action), count in self._triggers.items():
                counts.setdefault(reason, {})[action] = count
        return counts

    def last(self) -> dict[str, float]:
        """Return when the guard last acted, in seconds since the epoch, by reason."""
        with self._lock:
            return dict(self._last)

    def _sum_up(self, reason: str) -> None:
        with self._lock:
            pending = self._unreported[reason]
            count, seconds = pending.count, self._clock() - pending.since
            pending.count, pending.since = 0, self._clock()
            total = sum(n for (other, _), n in self._triggers.items() if other == reason)
        if count:
            logger.warning(
                "vllm-guard %s: %d more of %s in the last %.0f s, %d in all.",
                self.guard,
                count,
                reason,
                seconds,
                total,
            )


class AtExit:
    """Calls a function when this process ends, and when each forked child of it ends.

    Args:
        function: Takes no arguments; what it finds already done, it passes over.
        after_children: Whether to wait until the children of this process have ended.
    """

    def __init__(self, function: Callable[[], None], *, after_children: bool = False) -> None:
        from multiprocessing import util

        self._function = function
        # Those below 0 come after multiprocessing has ended and joined its children.
        self._priority = -10 if after_children else 10
        self._arm()
        # A child of multiprocessing forgets its parent's finalizers before this is called.
        util.register_after_fork(self, AtExit._arm)

    def _arm(self) -> None:
        from multiprocessing import util

        # Not atexit: a child of multiprocessing leaves through os._exit. Elsewhere
        # multiprocessing runs its finalizers at exit by itself.
        util.Finalize(None, self._function, exitpriority=self._priority)
