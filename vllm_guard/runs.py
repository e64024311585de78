"""The state folder: one folder in it for each run of a server, one file there for each process.

A run's folder is locked by all processes of that run for as long as they live, whatever ends them.
So a folder that nobody holds is of a run that is over, also where pids mean something else, as in
another container with the same folder for temporary files.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from vllm_guard.private_folder import NotPrivate, PrivateFolder
from vllm_guard.this_process import is_run

# Not compiled here: this is imported in every process of vLLM, and most never look at a name.
_OURS = r"\.?\d{1,10}-\d{1,20}\.json(\.partial)?"


def default_folder() -> Path:
    """Return where state is kept unless ``VLLMGUARD_STATE_DIR`` says otherwise."""
    return Path(tempfile.gettempdir(), f"vllm-guard-{os.geteuid()}")


def file_name(pid: int, started: int) -> str:
    """Return the name of a process's file in the folder of its run."""
    return f"{pid}-{started}.json"


def open_run(folder: Path | None, run: str, *, make: bool) -> PrivateFolder:
    """Open the folder of a run.

    Args:
        folder: The state folder; None: the default one.
        run: See `vllm_guard.this_process.join_run`.
        make: Whether to make what does not exist.

    Raises:
        NotPrivate: One of the two folders cannot be trusted.
        OSError: One of them cannot be made or opened.
    """
    with PrivateFolder(str(folder or default_folder()), make=make) as root:
        return PrivateFolder(run, root, make=make)


def remove_ended(folder: Path | None, over: str = "") -> None:
    """Remove the folders of runs that are over.

    Args:
        folder: The state folder; None: the default one.
        over: A run that is over though some of its processes have not been ended yet.

    Raises:
        NotPrivate: The state folder cannot be trusted.
        OSError: It cannot be opened.
    """
    with PrivateFolder(str(folder or default_folder()), make=False) as root:
        for run in filter(is_run, root.names()):
            # Somebody else removes it as well, or has put something into it that is not ours.
            with suppress(OSError, NotPrivate), PrivateFolder(run, root, make=False) as opened:
                if opened.own() or run == over:
                    for name in opened.names():
                        if re.fullmatch(_OURS, name):
                            opened.remove(name)
                    root.remove_folder(run)
