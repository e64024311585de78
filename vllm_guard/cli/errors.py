"""What a command raises when it cannot be carried out, or not all of it."""

from __future__ import annotations

from collections.abc import Iterable


class CommandError(Exception):
    """Each of its messages is one line the user sees: what, where, what was found, what to do.

    Args:
        messages: The lines.
        output: What could be done nevertheless, for standard output.
    """

    def __init__(self, *messages: str, output: Iterable[str] = ()) -> None:
        super().__init__(*messages)
        self.messages = messages
        self.output = tuple(output)
