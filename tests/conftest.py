"""For every tier: no test leaves a guard behind, and no swallowed error stays hidden."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import vllm_guard
from tests.runtime.swallowed import SwallowedErrors


@pytest.fixture(autouse=True)
def swallowed_errors() -> Iterator[SwallowedErrors]:
    """Undo what the test patched, then raise the errors it did not ``take()``."""
    errors = SwallowedErrors()
    errors.start()
    yield errors
    vllm_guard.unpatch()
    errors.stop()
    errors.raise_untaken()
