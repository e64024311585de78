"""The ``vllm-guard`` command. Exit codes: 0 done, 2 it could not be done (a line says why)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

from vllm_guard import __version__
from vllm_guard.cli import audit, explain, status
from vllm_guard.cli.errors import CommandError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Without the program's name; None for ``sys.argv``.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="vllm-guard",
        description="Guards around three upstream faults that kill vLLM's EngineCore.",
    )
    parser.add_argument("--version", action="version", version=f"vllm-guard {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    status.add_parser(commands)
    audit.add_parser(commands)
    explain.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        _print(options.run(options))
    except CommandError as error:
        _print(error.output)
        for message in error.messages:
            print(f"vllm-guard: {message}", file=sys.stderr)
        return 2
    return 0


def _print(lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # The reader has had enough; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
