"""Each arm is run once, when the first test asks for it, and never two at a time."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
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
    from tests.engine.image_sizes import Case, Size
    from tests.engine.load import Round
    from tests.engine.outcome import Outcome

Run = Callable[[Arm], "Outcome"]
Ask = Callable[[Arm, "Sequence[Round]"], "Outcome"]


@pytest.fixture(scope="session")
def vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("this Python has no vLLM; `make engine` builds one that has")


@pytest.fixture(scope="session")
def model(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not at the top, here and below: a Python without vLLM lacks what these import.
    from tests.engine.model import make_model

    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    from tests.engine.experiment import Experiment

    experiment = Experiment(model)
    return lambda arm: experiment.run(arm, tmp_path_factory.mktemp("arm"))


@pytest.fixture(scope="session")
def old_python(vllm: None) -> Path:
    """The interpreter that has vLLM 0.23.0."""
    environment = Environment(cache_folder(), ENGINES["0.23.0"])
    environment.prepare()
    return environment.python


@pytest.fixture(scope="session")
def run_crowd(model: Path, old_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run an arm of the crowd on vLLM 0.23.0; each arm once."""
    from tests.engine.experiment import crowd_experiment

    experiment = crowd_experiment(model, old_python)
    return cache(lambda arm: experiment.run(arm, tmp_path_factory.mktemp("arm")))


@pytest.fixture(scope="session")
def count_sizes(old_python: Path) -> Callable[[Sequence[Size]], list[Case]]:
    """Count what vLLM 0.23.0 makes of image sizes."""
    from tests.engine.image_sizes import count

    return lambda sizes: count(old_python, sizes)


@pytest.fixture(scope="session")
def ask_minicpm(old_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Ask MiniCPM-V 4.6 on vLLM 0.23.0."""
    from tests.engine.minicpm import make_minicpm

    return _asking(make_minicpm(tmp_path_factory.mktemp("minicpm")), old_python, tmp_path_factory)


@pytest.fixture(scope="session")
def ask_llava(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Ask a LLaVA on the vLLM of this Python."""
    from tests.engine.llava import make_llava

    model = make_llava(tmp_path_factory.mktemp("llava"))
    return _asking(model, Path(sys.executable), tmp_path_factory)


def _asking(model: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    from tests.engine.experiment import image_experiment

    def ask(arm: Arm, rounds: Sequence[Round]) -> Outcome:
        experiment = image_experiment(model, python, rounds)
        return experiment.run(arm, tmp_path_factory.mktemp("arm"))

    return ask


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
