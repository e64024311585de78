"""Two minutes of traffic and faults; ``nox -s soak`` has ten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.outcome import Outcome
    from tests.engine.soaked import Soaked

pytestmark = pytest.mark.engine

MINUTES = 2.0


@pytest.fixture(scope="module")
def soaked(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Soaked:
    # Not at the top: a Python without vLLM lacks what it imports.
    from tests.engine import soak

    return soak.soak(model, soak.GUARDED, MINUTES, tmp_path_factory.mktemp("soak") / "run")


def test_all_is_answered_each_fault_is_counted_and_nothing_grows(soaked: Soaked) -> None:
    from tests.engine import soak

    soak.show(soaked)
    assert soaked.complaints(soak.MEMORY_LIMITS) == []


def test_tokens_are_those_of_a_server_without_guards_and_faults(
    soaked: Soaked, healthy_unguarded: Outcome
) -> None:
    expected = {answer.name: answer.tokens for answer in healthy_unguarded.answers}
    assert {name: soaked.tally.first.get(name) for name in expected} == expected
