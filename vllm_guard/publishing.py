"""Keeps the file of this process in the state folder in step with its guards.

Nothing is done on a step in which no guard acts. A trigger leaves the file to a thread of a tenth
of a second: a slow disk must not hold up the scheduler, and vLLM ends EngineCore with SIGKILL, so
that waiting for the end, or for the next trigger, would lose counts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from vllm_guard import runs
from vllm_guard.forks import renew_after_fork
from vllm_guard.log import logger
from vllm_guard.private_folder import NotPrivate, PrivateFolder
from vllm_guard.process_report import ProcessReport, encode
from vllm_guard.this_process import join_run, own_start_time

INTERVAL = 0.1
"""Least seconds between two writes because of triggers: what a SIGKILL can lose."""
_PATIENCE = 1.0


class Publisher:
    """Writes the report of this process, and removes what is no longer needed.

    Args:
        folder: The state folder; None: the default one.
        make_report: Returns the report as it is now.
        swallow: Called with an error of our own that vLLM must not see.
    """

    def __init__(
        self,
        folder: Path | None,
        make_report: Callable[[], ProcessReport],
        swallow: Callable[[Exception], None],
    ) -> None:
        self.folder = folder
        self.run = join_run()
        """See `vllm_guard.this_process.join_run`."""
        self._make_report = make_report
        self._swallow = swallow
        self._opened: PrivateFolder | None = None
        self._begun = False
        self._renew()
        renew_after_fork(self, Publisher._renew)

    def _renew(self) -> None:
        # The child is another process of the same run: what it inherits is its parent's.
        self._close()
        self._lock = threading.Lock()
        pid = os.getpid()
        self._name = runs.file_name(pid, own_start_time())
        self._is_first = self.run.startswith(f"{pid}-")
        self._written = b""
        self._last_write = -INTERVAL
        self._requested = False
        self._complained = False
        self._ended = False

    def begin(self) -> None:
        """Write the first report; the first process of a run also cleans up after other runs."""
        self._begun = True
        if self._is_first:
            self.remove_ended()
        self.publish()

    def request(self) -> None:
        """Have the report written soon, by another thread; takes microseconds."""
        if self._requested or self._ended:
            return
        self._requested = True
        try:
            threading.Thread(target=self._publish_soon, name="vllm-guard", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._requested = False
            self._warn(error)

    def _publish_soon(self) -> None:
        time.sleep(max(0.0, self._last_write + INTERVAL - time.monotonic()))
        # Before the next may be requested, which waits from here on.
        self._last_write = time.monotonic()
        # Before the report is made: a trigger that it misses asks again.
        self._requested = False
        self.publish()

    def publish(self) -> None:
        """Write the report now if it has changed; never raises."""
        # Another thread may hang in a write to a dead file system.
        if not self._lock.acquire(timeout=_PATIENCE):
            return
        try:
            if self._begun and not self._ended:
                self._publish(self._make_report())
        except Exception as error:
            self._complain(error)
        finally:
            self._lock.release()

    def end(self) -> None:
        """Write the last report.

        A report without counts is removed: nobody needs it any more. One with counts stays for as
        long as the server runs, so that its counters never go back.
        """
        if not self._lock.acquire(timeout=_PATIENCE):
            return
        try:
            if not self._ended:
                self._ended = True
                self._end(self._make_report())
        except Exception as error:
            self._complain(error)
        finally:
            self._lock.release()

    def _publish(self, report: ProcessReport) -> None:
        self._last_write = time.monotonic()
        content = encode(report)
        if content != self._written:
            self._write(content)
            self._written = content

    def _end(self, report: ProcessReport) -> None:
        if report.has_counts:
            self._publish(report)
        if self._opened is None:  # a forked child that did nothing
            return
        if not report.has_counts:
            self._opened.remove(self._name)
        self._close()

    def _write(self, content: bytes) -> None:
        try:
            self._open().write(self._name, content)
        except FileNotFoundError:
            # Somebody has cleaned up the folder for temporary files.
            self._close()
            self._open().write(self._name, content)

    def _open(self) -> PrivateFolder:
        if self._opened is None:
            self._opened = runs.open_run(self.folder, self.run, make=True)
            self._opened.hold()
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def remove_ended(self) -> None:
        """Remove what runs left that are over; never raises.

        A run is over when its first process has ended. Workers of its EngineCore, which has been
        killed, may be there for another moment; where one goes on, it makes the folder again.
        """
        try:
            runs.remove_ended(self.folder, self.run if self._is_first and self._ended else "")
        except FileNotFoundError:
            return
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not isinstance(error, OSError | NotPrivate):
            self._swallow(error)
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self._complained:
            return
        self._complained = True
        logger.warning(
            "vllm-guard: what the guards of this process count cannot be shown on /metrics and by"
            " `vllm-guard status`: %s. Serving and guards are not affected. VLLMGUARD_STATE_DIR"
            " names another folder.",
            error,
        )
