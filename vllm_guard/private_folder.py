"""A folder that only its owner can change, and small files in it.

The usual place is below the folder for temporary files, where everybody may write. So nothing is
trusted that lies there: no link is followed, no special file is waited for, nothing is read that is
large or somebody else's, and a folder that others could change is not used at all. Every file is
reached through the descriptor of its folder, which cannot be exchanged under us.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from itertools import islice

MAX_BYTES = 64 * 1024
"""Larger files are neither written nor read."""
MAX_ENTRIES = 1024
"""So many entries of a folder are looked at."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe waits for somebody to write to it.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(Exception):
    """A folder or file that somebody else could have made or changed; the message says which."""


class PrivateFolder:
    """An open folder that belongs to this user alone.

    Args:
        path: Where it is, for messages; relative to ``parent`` if there is one.
        parent: The folder it is in; None: ``path`` is the whole path.
        make: Whether to make it where it does not exist; what it lies in must exist.

    Raises:
        NotPrivate: It is no folder (a link to one included), another user's, or others may write
            to it.
        OSError: It cannot be made or opened.
    """

    def __init__(self, path: str, parent: PrivateFolder | None = None, *, make: bool) -> None:
        self.path: str = os.path.join(parent.path, path) if parent else path
        within = parent._descriptor if parent else None
        if make:
            with suppress(FileExistsError):
                os.mkdir(path, 0o700, dir_fd=within)
        try:
            self._descriptor: int = os.open(path, _DIRECTORY, dir_fd=within)
        except NotADirectoryError:
            raise NotPrivate(f"{self.path} is no folder, or a link") from None
        try:
            self._refuse_unless_private()
        except NotPrivate:
            self.close()
            raise

    def _refuse_unless_private(self) -> None:
        found = os.fstat(self._descriptor)
        if found.st_uid != os.geteuid():
            raise NotPrivate(
                f"{self.path} belongs to user {found.st_uid}, not to {os.geteuid()}, who runs this"
            )
        if found.st_mode & _OTHERS_MAY_WRITE:
            mode = stat.S_IMODE(found.st_mode)
            raise NotPrivate(f"others may write to {self.path} (mode {mode:o}, should be 700)")

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it, which lets go of what `hold` took; twice is once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return the names of what is in it; at most `MAX_ENTRIES`, in no order."""
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in islice(entries, MAX_ENTRIES)]

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotPrivate: It is no ordinary file, too large, or another user's.
            OSError: It cannot be read; a link cannot.
        """
        descriptor = os.open(name, _READ, dir_fd=self._descriptor)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise NotPrivate(f"{self.path}/{name} is no file of user {os.geteuid()}")
            content = os.read(descriptor, MAX_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(content) > MAX_BYTES:
            raise NotPrivate(f"{self.path}/{name} is larger than {MAX_BYTES} bytes")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file; who reads it sees the old content or the new, never a part.

        Args:
            name: Of the file; what is in its place, a link or not, is replaced and not followed.
            content: At most `MAX_BYTES`.

        Raises:
            ValueError: The content is too large.
            OSError: It cannot be written; what was there is still there.
        """
        if len(content) > MAX_BYTES:
            raise ValueError(f"{len(content)} bytes for {self.path}/{name}")
        partial = f".{name}.partial"
        # A process that was killed half-way has left it.
        self.remove(partial)
        descriptor = os.open(partial, _CREATE, 0o600, dir_fd=self._descriptor)
        try:
            try:
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
            os.replace(partial, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(partial)
            raise

    def remove(self, name: str) -> None:
        """Remove a file or link, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder in it.

        Raises:
            OSError: It is not there, or not empty.
        """
        os.rmdir(name, dir_fd=self._descriptor)

    def hold(self) -> None:
        """Show that the folder is in use, until it is closed or the process ends, however.

        The lock is on the folder itself: systemd-tmpfiles, which removes old temporary files,
        leaves out a folder that is locked. Where locks do not work, nobody can own them either.
        """
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def own(self) -> bool:
        """Whether nobody else uses it; nobody can `own` it too until it is closed."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def _write_all(descriptor: int, content: bytes) -> None:
    # A nearly full disk takes a part and says so by the count alone.
    while content:
        content = content[os.write(descriptor, content) :]
