"""Makes single lines of ours raise while vLLM runs: it must not notice one of them.

Which lines there are is found by running what is to be run once, and noting each line that runs.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import vllm_guard
from vllm_guard import runtime

PACKAGE = Path(vllm_guard.__file__).parent

Line = tuple[str, int]


class Injected(Exception):
    """An error of our own."""


class OwnLines:
    """The lines of some modules of ours.

    Args:
        modules: Their paths in the package, without ``.py``.
        cannot_fail: Found in the text of lines that are left alone: those outside of what catches
            our errors, which therefore must not be able to fail.
    """

    def __init__(self, modules: tuple[str, ...], cannot_fail: re.Pattern[str]) -> None:
        self._files = {str(PACKAGE / f"{module}.py") for module in modules}
        self._cannot_fail = cannot_fail

    @contextmanager
    def traced(self, on_line: Callable[[Line], None]) -> Iterator[None]:
        """Call `on_line` before each line of ours."""

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_code.co_filename not in self._files:
                return None
            if event == "line":
                on_line((frame.f_code.co_filename, frame.f_lineno))
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)

    @contextmanager
    def noted(self) -> Iterator[Counter[Line]]:
        """Count how often each line runs that can fail; there when the block has ended."""
        found: Counter[Line] = Counter()
        with self.traced(lambda line: found.update([line])):
            yield found
        for line in [line for line in found if self._cannot_fail.search(text_of(line))]:
            del found[line]

    @contextmanager
    def raising(self, line: Line, before: int = 0) -> Iterator[list[Line]]:
        """Make a line raise once, after it has run `before` times; gives the lines that raised."""
        raised: list[Line] = []
        times = 0

        def raise_there(now: Line) -> None:
            nonlocal times
            if now == line:
                times += 1
                if times == before + 1:
                    raised.append(now)
                    raise Injected(f"{line[0]}:{line[1]}")

        with self.traced(raise_there):
            yield raised


def text_of(line: Line) -> str:
    """The source of a line."""
    return linecache.getline(*line).strip()


def name_of(line: Line) -> str:
    """A line as a report shows it: its place and its source."""
    return f"{Path(line[0]).relative_to(PACKAGE)}:{line[1]} {text_of(line)}"


def swallowing_problem(raised: list[Line]) -> str:
    """What is wrong with how the error was swallowed, empty if nothing: it is counted, once."""
    if not raised:
        return "the line was not run again"
    counted = [type(error.error).__name__ for error in runtime.internal_errors]
    return "" if counted == [Injected.__name__] else f"counted: {counted}"
