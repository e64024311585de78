"""``vllm-guard explain GUARD``: symptom, cause, what changes, how to avoid it or switch it off."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vllm_guard import patches
from vllm_guard.cli.errors import CommandError
from vllm_guard.cli.output import Output
from vllm_guard.settings import guard_variable
from vllm_guard.states import Mode

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_WIDTH = 100


def add_parser(commands: Subparsers) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("explain", help="what a guard is for and how to do without it")
    parser.add_argument("guard", metavar="GUARD", help=f"one of: {', '.join(patches.names())}")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Output:
    """Return the lines about ``options.guard``."""
    if options.guard not in patches.names():
        raise CommandError(
            f"there is no guard named {options.guard!r} (there are: {', '.join(patches.names())})"
        )
    return Output(_lines(patches.read(options.guard)))


def _lines(patch: dict[str, Any]) -> Iterator[str]:
    yield f"{patch['guard']}: {patch['title']}"
    yield from _section("In the log", patch["symptom"])
    yield from _section("Cause", [patch["description"]])
    yield from _section("What the guard changes", [patch["changes"]])
    yield from _section("Faults", _pairs(patch["faults"]))
    yield from _section("Other reasons it counts", _pairs(patch["reasons"]))
    yield from _section("Upstream", [*patch["bug"], f"fixed {patch['applied-upstream']}"])
    yield from _section("Avoiding it by configuration", patch["avoid"])
    fixed_where = [f"{entry['fault']}: {entry['sentence']}" for entry in patch["fixed-where"]]
    yield from _section("When it retires", [patch["retirement"], *fixed_where])
    yield from _section("In the field", patch["field-evidence"])
    yield from _section("Limits", patch["limits"])
    variable = guard_variable(patch["guard"])
    switches = f"{variable}={'|'.join(map(str, Mode))}, VLLMGUARD=off for all guards"
    yield from _section("Switching it", [switches])


def _pairs(table: dict[str, str]) -> list[str]:
    return [f"{name}: {text}" for name, text in table.items()]


def _section(title: str, paragraphs: Iterable[str]) -> Iterator[str]:
    yield ""
    yield title
    for paragraph in paragraphs:
        yield textwrap.fill(
            " ".join(paragraph.split()),
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
