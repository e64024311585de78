"""A folder of packages, with a small vLLM in it, and the command run on it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

SCHEDULER = """
class Scheduler:
    max_model_len = 1000
    def __init__(self): pass
    def schedule(self): pass
    def update_from_output(self, scheduler_output, model_runner_output): pass
    def _free_request(self, request): pass
    def _update_request_with_output(self, request, new_token_ids):
        for token in new_token_ids:
            request.append_output_token_ids(token)
"""


def alone(folder: Path) -> list[str]:
    """Return a ``sys.path`` of ``folder`` and the standard library: no other package is found."""
    library = sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")
    return [str(folder), *library]


class Site:
    """A folder of packages, and the command run by a Python that finds them and no vLLM else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, text: str) -> None:
        """Write a file and the packages above it."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        for parent in file.relative_to(self.folder).parents:
            if parent.name and parent.suffix != ".dist-info":
                (self.folder / parent / "__init__.py").touch()
        file.write_text(text)

    def add_vllm(self, scheduler: str = SCHEDULER) -> None:
        """Write a vLLM with nothing but a scheduler."""
        self.write("vllm/__init__.py", "__version__ = '0.20.0+das.dtk2604'\n")
        self.write("vllm/_version.py", "__version__ = '0.20.0+das.dtk2604'\n")
        self.write("vllm/v1/core/sched/scheduler.py", scheduler)

    def add_distribution(self, name: str, record: str, entry_points: str = "") -> None:
        """Write the metadata of a distribution."""
        folder = f"{name.replace('-', '_')}-1.0.dist-info"
        self.write(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        self.write(f"{folder}/RECORD", record)
        self.write(f"{folder}/entry_points.txt", entry_points)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``python -m vllm_guard`` with these arguments."""
        paths = [str(self.folder), str(REPOSITORY)]
        return subprocess.run(
            [sys.executable, "-m", "vllm_guard", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder,
            env={
                "HOME": str(self.folder),
                "PYTHONPATH": os.pathsep.join(paths),
                "VLLMGUARD_STATE_DIR": str(self.folder / "state"),
            }
            | environment,
        )
