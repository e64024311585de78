"""The JSON files that a process under test leaves behind.

``injected-PID.json``   a worker: unfinished chunks seen, bogus tokens returned, and for whom.
``gone-PID.json``       EngineCore: bogus tokens that arrived after their request had gone.
``scheduler-PID.json``  EngineCore: the scheduler's class, and which of its methods are not vLLM's.
``guard-PID.json``      EngineCore: ``vllm_guard.status()`` after the last step that changed it.
``runner-PID.json``     a worker: the model runner's class, and whether its gather step is vLLM's.
``worker_guard-PID.json``  a worker: ``vllm_guard.status()`` after the last step that changed it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Records:
    """Writes one process's files.

    Args:
        folder: Exists; shared by all processes of one server.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, kind: str, content: dict[str, Any]) -> None:
        """Replace this process's file of one kind.

        Args:
            kind: First part of the file's name.
            content: What can be written as JSON.
        """
        path = self._folder / f"{kind}-{os.getpid()}.json"
        # A reader, or a process killed half way, must never leave or see half a file.
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content))
        os.replace(partial, path)


def read_records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the content of all files of one kind, one for each process that wrote one.

    Args:
        folder: What the processes had as ``FAULTS_RECORD_DIR``.
        kind: First part of the files' names.
    """
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{kind}-*.json"))]
