"""A folder below one that everybody may write to, and what somebody may have put there."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from vllm_guard.private_folder import MAX_BYTES, NotPrivate, PrivateFolder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private"


@pytest.fixture
def folder(path: Path) -> PrivateFolder:
    return PrivateFolder(str(path), make=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folder_and_files_are_for_their_owner_alone(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        PrivateFolder(str(path), make=True).write("file", b"content")
    finally:
        os.umask(before)
    assert (mode(path), mode(path / "file")) == (0o700, 0o600)


def test_a_folder_is_not_made_unasked(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PrivateFolder(str(path), make=False)


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(path: Path, bits: int) -> None:
    path.mkdir()
    path.chmod(bits)
    with pytest.raises(NotPrivate, match=f"others may write to {path} .mode {bits:o}"):
        PrivateFolder(str(path), make=True)
    assert mode(path) == bits


def test_a_folder_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(NotPrivate, match="belongs to user"):
        PrivateFolder(str(path), make=True)


@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_a_link_in_place_of_the_folder_is_refused(path: Path, target: str) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / target)
    with pytest.raises((NotPrivate, OSError)):
        PrivateFolder(str(path), make=True)
    assert list((path.parent / "elsewhere").iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(path: Path) -> None:
    path.write_text("a file")
    with pytest.raises(NotPrivate, match="is no folder"):
        PrivateFolder(str(path), make=True)


def test_writing_replaces_and_reading_returns_all_of_it(folder: PrivateFolder) -> None:
    folder.write("file", b"long content")
    folder.write("file", b"short")
    assert folder.read("file") == b"short"
    assert folder.names() == ["file"]


def test_a_partial_file_of_a_killed_process_is_in_nobody_s_way(
    folder: PrivateFolder, path: Path
) -> None:
    (path / ".file.partial").write_text("half of")
    folder.write("file", b"content")
    assert folder.names() == ["file"]


def test_writing_follows_no_link(folder: PrivateFolder, path: Path) -> None:
    precious = path.parent / "precious"
    precious.write_text("precious")
    for name in ("file", ".file.partial"):
        (path / name).symlink_to(precious)
    folder.write("file", b"content")
    assert precious.read_text() == "precious"
    assert folder.read("file") == b"content"


def test_reading_follows_no_link(folder: PrivateFolder, path: Path) -> None:
    (path / "file").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        folder.read("file")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_special_files_are_refused_and_not_waited_for(
    folder: PrivateFolder, path: Path, kind: str
) -> None:
    if kind == "pipe":
        os.mkfifo(path / "file")
    elif kind == "folder":
        (path / "file").mkdir()
    else:
        try:
            os.mknod(path / "file", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root makes devices")
    with pytest.raises((NotPrivate, OSError)):
        folder.read("file")


def test_a_file_of_another_user_is_refused(
    folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("file", b"content")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotPrivate, match="is no file of user"):
        folder.read("file")


def test_large_files_are_neither_read_nor_written(folder: PrivateFolder, path: Path) -> None:
    with (path / "file").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(NotPrivate, match="larger than"):
        folder.read("file")
    with pytest.raises(ValueError, match="bytes for"):
        folder.write("other", b"x" * (MAX_BYTES + 1))
    folder.write("other", b"x" * MAX_BYTES)
    assert len(folder.read("other")) == MAX_BYTES


def test_a_full_disk_leaves_the_old_content_and_nothing_half_written(
    folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("file", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", raise_no_space)
        with pytest.raises(OSError, match="No space"):
            folder.write("file", b"new")
    assert folder.names() == ["file"]
    assert folder.read("file") == b"old"


def raise_no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_write_that_takes_a_part_goes_on(
    folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
    folder.write("file", b"0123456789")
    assert folder.read("file") == b"0123456789"


def test_the_folder_cannot_be_exchanged_once_it_is_open(folder: PrivateFolder, path: Path) -> None:
    path.rename(path.parent / "moved")
    path.mkdir()
    folder.write("file", b"content")
    assert list(path.iterdir()) == []
    assert (path.parent / "moved" / "file").read_bytes() == b"content"


def test_a_reader_never_sees_a_part(folder: PrivateFolder, path: Path) -> None:
    contents = {bytes([letter]) * 40_000 for letter in b"ab"}
    folder.write("file", min(contents))

    def write() -> None:
        for _ in range(200):
            for content in contents:
                folder.write("file", content)

    writer = threading.Thread(target=write)
    writer.start()
    reader = PrivateFolder(str(path), make=False)
    while writer.is_alive():
        assert reader.read("file") in contents
    writer.join()


def test_a_folder_that_is_held_cannot_be_owned(folder: PrivateFolder, path: Path) -> None:
    folder.hold()
    with PrivateFolder(str(path), make=False) as other:
        other.hold()
        assert not other.own()
    with PrivateFolder(str(path), make=False) as other:
        assert not other.own()
        folder.close()
        assert other.own()


def test_closing_twice_closes_nobody_else_s(folder: PrivateFolder, path: Path) -> None:
    folder.close()
    with PrivateFolder(str(path), make=False) as other:
        folder.close()
        assert other.names() == []
