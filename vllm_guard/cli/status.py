"""``vllm-guard status``: what the installed vLLM needs, and what processes do, new and running."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_guard import __version__, installed, settings
from vllm_guard.cli import environment, processes
from vllm_guard.cli.new_process import ask_new_process, installed_vllm
from vllm_guard.cli.output import Output

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: Subparsers) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("status", help="what the installed vLLM needs, and what is done")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Output:
    """Return the lines about the vLLM of this Python."""
    return Output(_lines(*installed_vllm()))


def _lines(build: installed.Build, folder: Path) -> Iterator[str]:
    yield f"vllm-guard {__version__} on {build} in {folder}"
    chosen = settings.read(os.environ)
    for warning in [*environment.warnings(), *chosen.problems]:
        yield f"warning: {warning}"
    process = ask_new_process()
    for warning in process.warnings:
        yield f"warning: {warning}"
    yield "a new process of this environment:"
    for name, guard in process.guards.items():
        yield (
            f"  {name:<10} mode {guard['mode']:<8} verdict {guard['verdict'] or 'not asked':<9}"
            f" state {guard['state']}"
        )
        for fault, finding in guard["faults"].items():
            yield f"    {fault:<14} {finding['verdict']:<8} {finding['evidence']}"
    yield from processes.lines(chosen.state_dir)
