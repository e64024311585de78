"""The vLLM releases that a real engine is run of, and what is installed beside each."""

from __future__ import annotations

from typing import NamedTuple


class Engine(NamedTuple):
    """One release and its environment.

    Args:
        vllm: The release.
        torch: What the compiled part of the wheel was made for; its CUDA build runs on a CPU too.
        added: Packages on top of what the wheel requires.
        tools: What this project's own code needs there.
    """

    vllm: str
    torch: str
    added: tuple[str, ...]
    tools: tuple[str, ...]


# The wheels ask for builds of these that an ordinary package index does not have.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}

_ENGINES = (
    Engine(
        "0.29.0",
        torch="torch==2.13.0",
        # Later releases of transformers break multimodal models of this vLLM. Other vLLM releases,
        # whose schedulers are tested in this environment, import diskcache and gguf.
        added=("transformers==5.15.0", "diskcache", "gguf"),
        # All tests run here.
        tools=(
            "editables",
            "hatchling",
            "hypothesis",
            "mypy",
            "nox",
            "packaging",
            "psutil",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "wrapt>=1.14,<3",
        ),
    ),
    # It has the faults of `stale`, and a model that those of `mm_merge` show in. Tests start its
    # server; they do not run in this environment.
    Engine(
        "0.23.0",
        torch="torch==2.11.0",
        # That model's image processor needs torchvision, of the release made for that torch.
        added=("transformers==5.12.1", "torchvision==0.26.0"),
        tools=("editables", "hatchling", "packaging", "wrapt>=1.14,<3"),
    ),
)
ENGINES = {engine.vllm: engine for engine in _ENGINES}
DEFAULT = _ENGINES[0]
