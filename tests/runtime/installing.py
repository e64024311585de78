"""A vendor's environment, made of stand-ins, to install the wheel into."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.runtime.cached import pip

STAND_INS = {"vllm": "0.20.0+das.dtk2604", "torch": "2.5.1+das.dtk2604"}


def make_stand_in(folder: Path, name: str, version: str) -> Path:
    """Write a wheel of a package that does nothing."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_in_wheel, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(name_in_wheel, text)
    return path


class VirtualEnvironment:
    """A fresh one, worked on by the pip of the environment that runs the tests."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"

    def install(self, *arguments: str) -> None:
        """Install without a network."""
        pip("--python", str(self.python), "install", "--no-index", *arguments)

    def freeze(self) -> dict[str, str]:
        """Return name and version of everything that is installed."""
        lines = pip("--python", str(self.python), "list", "--format=freeze").split()
        return {
            canonicalize_name(name): version for name, version in (x.split("==") for x in lines)
        }

    def run(self, *arguments: str) -> str:
        """Run its Python, away from the checkout, and return what it prints."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VLLM"))}
        ended = subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=self.python.parent,
            env=environment,
        )
        return ended.stdout
