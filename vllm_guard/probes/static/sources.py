"""Where a vLLM can be read from: a folder, or a wheel of which nothing is extracted."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Protocol

from vllm_guard import installed

PACKAGE = "vllm"
_LARGEST_FILE = 5_000_000
_OURS = "vllm_guard"


class SourceError(Exception):
    """A source cannot be read; the message is one line: what, where, what was found."""


class Source(Protocol):
    """Python files by path, as ``vllm/v1/request.py``."""

    def has(self, path: str) -> bool:
        """Whether there is such a file."""

    def read(self, path: str) -> bytes:
        """Return what is in a file.

        Raises:
            SourceError: It cannot be read, or is too large for a Python file.
        """

    def files(self) -> Iterable[str]:
        """Return the paths of the Python files of vLLM, and of packages of its vendor."""

    def version(self) -> str:
        """Return what the version is said to be; `installed.UNKNOWN` where nothing says."""

    def close(self) -> None:
        """Let go of the file."""


def open_source(path: Path) -> Source:
    """Open a folder or a wheel.

    Args:
        path: A folder that holds the package ``vllm``, the package itself, or a ``.whl`` file.

    Raises:
        SourceError: It is none of that, or has no vLLM in it.
    """
    try:
        if path.is_dir():
            return _open_tree(path)
        path.stat()
        if not path.is_file():
            raise SourceError(f"{path}: neither a folder nor a file")
        return Wheel(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None


def _open_tree(path: Path) -> Tree:
    list(path.iterdir())  # may it be read at all?
    path = Path(os.path.abspath(path))
    for folder in (path, path.parent):
        if (folder / PACKAGE / "__init__.py").is_file() and path in (folder, folder / PACKAGE):
            return Tree(folder)
    raise SourceError(
        f"{path}: no vLLM in this folder; give the one that holds {PACKAGE}/__init__.py"
    )


class Tree:
    """A folder with the package ``vllm``: a checkout, or site-packages.

    Args:
        folder: The folder above the package.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return (self.folder / path).is_file()

    def read(self, path: str) -> bytes:
        """Return what is in a file."""
        file = self.folder / path
        try:
            if not file.is_file():
                raise SourceError(f"{file}: not an ordinary file")
            _check_size(path, file.stat().st_size)
            return file.read_bytes()
        except OSError as error:
            raise SourceError(f"{file}: cannot be read ({error.strerror})") from None

    def files(self) -> Iterable[str]:
        """Return the paths of the Python files of packages that have vllm in their name."""
        for package in sorted(self.folder.glob(f"*{PACKAGE}*/")):
            if package.name != _OURS:
                yield from self._files_in(package)

    def _files_in(self, package: Path) -> Iterator[str]:
        seen = set()
        for folder, subfolders, names in os.walk(package, followlinks=True):
            # A link may lead back to a folder above.
            real = os.path.realpath(folder)
            if real in seen:
                subfolders.clear()
                continue
            seen.add(real)
            subfolders.sort()
            prefix = Path(folder).relative_to(self.folder).as_posix()
            yield from (f"{prefix}/{name}" for name in sorted(names) if name.endswith(".py"))

    def version(self) -> str:
        """Return what ``_version.py`` says, else the distribution beside the package."""
        path = f"{PACKAGE}/_version.py"
        version = installed.version_in(self.read(path)) if self.has(path) else None
        named = (version for _, version in installed.distributions(self.folder))
        return version or next(named, installed.UNKNOWN)

    def close(self) -> None:
        """Nothing is held open."""


class Wheel:
    """A wheel file; only what is asked for is unpacked, in memory.

    Args:
        path: The file.

    Raises:
        SourceError: It is not a zip file, or damaged, or has no vLLM in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise SourceError(
                f"{path}: not a wheel, or only a part of one ({error}); download it again"
            ) from None
        self._names = {_installed_as(name): name for name in self._archive.namelist()}
        if not self.has(f"{PACKAGE}/__init__.py"):
            raise SourceError(f"{path}: no vLLM in this wheel (no {PACKAGE}/__init__.py)")

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._names

    def read(self, path: str) -> bytes:
        """Return what is in a file."""
        name = self._names[path]
        try:
            _check_size(path, self._archive.getinfo(name).file_size)
            return self._archive.read(name)
        except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise SourceError(f"{self._path}: {path} in it is damaged ({error})") from None

    def files(self) -> Iterable[str]:
        """Return the paths of the Python files in it."""
        return [
            path
            for path in self._names
            if path.endswith(".py") and PACKAGE in path.partition("/")[0]
        ]

    def version(self) -> str:
        """Return what ``_version.py`` says, else the wheel's metadata."""
        path = f"{PACKAGE}/_version.py"
        version = installed.version_in(self.read(path)) if self.has(path) else None
        for name in self._names if version is None else ():
            if name.count("/") == 1 and name.endswith(".dist-info/METADATA"):
                metadata = HeaderParser().parsestr(self.read(name).decode(errors="replace"))
                version = metadata["Version"]
        return version or installed.UNKNOWN

    def close(self) -> None:
        """Close the file."""
        self._archive.close()


def _installed_as(name: str) -> str:
    """Return where pip puts a file of a wheel, within site-packages."""
    for folder in (".data/purelib/", ".data/platlib/"):
        if folder in name:
            return name.partition(folder)[2]
    return name


def _check_size(path: str, size: int) -> None:
    if size > _LARGEST_FILE:
        raise SourceError(f"{path}: {size} bytes, too many for a Python file of vLLM")
