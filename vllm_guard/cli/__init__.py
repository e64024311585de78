"""The ``vllm-guard`` command.

Exit codes: 0 done, 1 `check` has a finding, 2 it could not be done (a line says why).
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Sequence

from vllm_guard import __version__
from vllm_guard.cli import audit, check, explain, report, status
from vllm_guard.cli.errors import CommandError
from vllm_guard.cli.output import Output


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
    check.add_parser(commands)
    audit.add_parser(commands)
    explain.add_parser(commands)
    report.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        output: Output = options.run(options)
        _print(output.lines)
    except CommandError as error:
        _print(error.output)
        for message in error.messages:
            print(f"vllm-guard: {message}", file=sys.stderr)
        return 2
    except Exception:
        # 1 says that a gate has found something, and this is none.
        traceback.print_exc()
        print("vllm-guard: an error of its own; please report it", file=sys.stderr)
        return 2
    return output.exit_code


def _print(lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # The reader has had enough; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
