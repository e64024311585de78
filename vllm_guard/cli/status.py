"""``vllm-guard status``: what the installed vLLM needs, and what processes do, new and running."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from vllm_guard import settings
from vllm_guard.cli import environment, processes
from vllm_guard.cli.formats.standing import FORMATS, Standing
from vllm_guard.cli.new_process import ask_new_process, installed_vllm
from vllm_guard.cli.output import Output

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: Subparsers) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("status", help="what the installed vLLM needs, and what is done")
    parser.add_argument("--format", choices=list(FORMATS), default="text")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Output:
    """Return the lines about the vLLM of this Python."""
    build, folder = installed_vllm()
    chosen = settings.read(os.environ)
    process = ask_new_process()
    warnings = [*environment.warnings(), *chosen.problems, *process.warnings]
    running = processes.read(chosen.state_dir)
    return Output(
        FORMATS[options.format](Standing(build, folder, warnings, process.guards, running))
    )
