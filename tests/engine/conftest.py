"""Each arm is run once, when the first test asks for it, and never two at a time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.arms import (
    FAULT_GUARDED,
    FAULT_UNGUARDED,
    HEALTHY_GUARDED,
    HEALTHY_UNGUARDED,
    Arm,
)

if TYPE_CHECKING:
    from tests.engine.outcome import Outcome

Run = Callable[[Arm], "Outcome"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("this Python has no vLLM; `make engine` builds one that has")
    # Not at the top: a Python without vLLM lacks what these import.
    from tests.engine.experiment import run_arm
    from tests.engine.model import make_model

    model = make_model(tmp_path_factory.mktemp("model"))

    def run_in_new_folder(arm: Arm) -> Outcome:
        folder: Path = tmp_path_factory.mktemp("arm")
        return run_arm(arm, model, folder)

    return run_in_new_folder


@pytest.fixture(scope="session")
def healthy_unguarded(run: Run) -> Outcome:
    return run(HEALTHY_UNGUARDED)


@pytest.fixture(scope="session")
def fault_unguarded(run: Run) -> Outcome:
    return run(FAULT_UNGUARDED)


@pytest.fixture(scope="session")
def fault_guarded(run: Run) -> Outcome:
    return run(FAULT_GUARDED)


@pytest.fixture(scope="session")
def healthy_guarded(run: Run) -> Outcome:
    return run(HEALTHY_GUARDED)
