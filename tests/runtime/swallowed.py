"""Errors of vllm-guard's own that it swallowed so that vLLM could go on.

Code that fails open hides its bugs from tests; here they are found again.
"""

from __future__ import annotations

import logging

from vllm_guard import runtime
from vllm_guard.log import logger


class SwallowedErrors(logging.Handler):
    """Collects what guards remember and what anything of ours logs with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._logged: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self._logged.append(record.exc_info[1])

    def start(self) -> None:
        """Collect from now on."""
        runtime.internal_errors.clear()
        logger.addHandler(self)

    def stop(self) -> None:
        """Collect no more."""
        logger.removeHandler(self)

    def take(self) -> list[BaseException]:
        """Return the errors and forget them, as a test does that expects some."""
        # A guard logs its first error and remembers all of them.
        found = [*self._logged, *(entry.error for entry in runtime.internal_errors)]
        self._logged.clear()
        runtime.internal_errors.clear()
        return list({id(error): error for error in found}.values())

    def raise_untaken(self) -> None:
        """Fail if there are errors that nobody has taken."""
        errors = self.take()
        if errors:
            raise AssertionError(
                f"vllm-guard swallowed {len(errors)} error(s) of its own: {errors!r}"
            ) from errors[0]
