"""The folder outside the checkout where environments are kept, and locks on what is in it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path


class CacheUnusable(Exception):
    """The cache folder cannot be written to; the message is one line for the user."""


def cache_folder() -> Path:
    """Return the cache folder: made if need be, and known to be writable."""
    chosen = os.environ.get("GUARD_TEST_CACHE")
    if chosen:
        folder = Path(chosen).expanduser().absolute()
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = Path(caches).expanduser() / "vllm-guard"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise CacheUnusable(
            f"cannot write to the cache folder {folder} ({error.strerror});"
            " set GUARD_TEST_CACHE to a folder with 14 GB of room"
        ) from None
    return folder


class Lock:
    """A lock between processes: many may use what it protects, or one may change it.

    `path` is that of the lock file, which is made and stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def share(self) -> None:
        """Wait until nobody changes what is protected; others may use it at the same time."""
        self._acquire(fcntl.LOCK_SH)

    def own(self) -> None:
        """Wait until nobody else uses what is protected."""
        self._acquire(fcntl.LOCK_EX)

    def keep_across_exec(self) -> None:
        """Let the program that replaces this process hold the lock until it ends."""
        os.set_inheritable(self._file, True)

    def _acquire(self, kind: int) -> None:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another run that holds {self._path}", flush=True)
            fcntl.flock(self._file, kind)
