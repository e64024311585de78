"""What stops the interpreter: code that it does not carry out."""

from __future__ import annotations


class Unsupported(Exception):
    """The code does something the interpreter does not know, or does too much of it.

    Interpreted code cannot catch it, whatever its ``except`` says; a probe makes it `unknown`.
    """


class Budget:
    """How much one look at a build may do: code we do not know may loop, nest and grow.

    Args:
        steps: Number of expressions and statements.
        depth: Number of calls inside each other.
    """

    SIZE = 100_000
    """No string, list or other container may get longer; no number may have more bits."""

    def __init__(self, steps: int = 300_000, depth: int = 20) -> None:
        self._steps = steps
        self._depth = depth

    def spend(self) -> None:
        """Count one step."""
        self._steps -= 1
        if self._steps < 0:
            raise Unsupported("it runs for too long")

    def enter(self) -> None:
        """Count a call that begins."""
        self._depth -= 1
        if self._depth < 0:
            self._depth += 1
            raise Unsupported("its calls nest too deeply")

    def leave(self) -> None:
        """Count a call that has ended."""
        self._depth += 1

    def check_size(self, size: int) -> None:
        """Refuse what would be longer than `SIZE`."""
        if size > self.SIZE:
            raise Unsupported("it makes something too large")
