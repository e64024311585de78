"""Each arm is run once, when the first test asks for it, and never two at a time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
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
from tools.cache import cache_folder
from tools.engines import ENGINES
from tools.environment import Environment

if TYPE_CHECKING:
    from tests.engine.outcome import Outcome

Run = Callable[[Arm], "Outcome"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("this Python has no vLLM; `make engine` builds one that has")
    # Not at the top, here and below: a Python without vLLM lacks what these import.
    from tests.engine.model import make_model

    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    from tests.engine.experiment import Experiment

    experiment = Experiment(model)
    return lambda arm: experiment.run(arm, tmp_path_factory.mktemp("arm"))


@pytest.fixture(scope="session")
def run_crowd(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run an arm of the crowd on vLLM 0.23.0; each arm once."""
    from tests.engine.experiment import crowd_experiment

    environment = Environment(cache_folder(), ENGINES["0.23.0"])
    environment.prepare()
    experiment = crowd_experiment(model, environment.python)
    return cache(lambda arm: experiment.run(arm, tmp_path_factory.mktemp("arm")))


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
