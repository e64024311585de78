"""Turns a benchmark into a gate where it is asked to be one with ``--gate``."""

from __future__ import annotations

import argparse
import sys


class Gate:
    """Remembers which figures are beyond their limits.

    Args:
        parser: Of the benchmark's command line; gets the option.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--gate", action="store_true", help="exit code 1 if a figure is beyond its limit"
        )
        self._missed: list[str] = []

    def judge(self, name: str, figure: float, limit: float) -> None:
        """Note a figure that is above its limit."""
        if figure > limit:
            self._missed.append(f"{name}: {figure:.3f} is above {limit}")

    def end(self, options: argparse.Namespace) -> None:
        """Say what was missed, and exit with 1 if the options ask for that."""
        for line in self._missed:
            print(f"missed: {line}", flush=True)
        if options.gate and self._missed:
            sys.exit(1)
