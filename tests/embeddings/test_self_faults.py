"""Errors of our own while embeddings are gathered and merged, and keys are looked at."""

from __future__ import annotations

from typing import Any

import pytest

from tests.embeddings.conftest import SELF_FAULTS_ON
from tests.releases.isolated import INSTALLED


@pytest.mark.parametrize(
    "release",
    [
        INSTALLED,
        *(
            pytest.param(name, marks=pytest.mark.releases)
            for name in SELF_FAULTS_ON
            if name != INSTALLED
        ),
    ],
    indirect=True,
)
def test_an_error_of_our_own_at_any_line_is_counted_and_not_noticed(result: Any) -> None:
    found = result["self_faults"]
    assert found["failures"] == {}
    assert found["lines"] > 150
