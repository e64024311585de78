"""Writes PATCHES.md from ``patches/``: the documents of the guards and the measured verdicts.

``python -m tools.patches`` writes it; with ``--check`` nothing is written, and the exit code is 1
where the file is not what would be written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))

from vllm_guard import patches  # noqa: E402  only now can it be found

PATCHES = REPOSITORY / "PATCHES.md"
MEASURED = REPOSITORY / "patches" / "releases.json"
_PLACE = re.compile(r"\((vllm/[\w/]+\.py)(?::(\d+))? ([\w.]+)\)$")

HEAD = """\
# The patches

What each guard of vllm-guard is for, what it changes, and where upstream stands. This page is made
from `patches/` by `make patches`: the texts are those of `vllm-guard explain`, and the verdicts
were measured on the wheels of {count} releases, by reading their source and by running it
(`patches/releases.json`, written by `python3 -m tools.environment -m nox -s verdicts`). Verdicts:
`needed` the fault is there, `fixed` it is not any more, `absent` the code that it is in does not
exist.
"""


def page() -> str:
    """Return what PATCHES.md should hold."""
    measured: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    lines = [HEAD.format(count=len(measured)).rstrip()]
    for guard in patches.names():
        lines += ["", *_guard(patches.read(guard), measured)]
    return "\n".join(lines) + "\n"


def _guard(patch: dict[str, Any], measured: dict[str, Any]) -> Iterator[str]:
    name = patch["guard"]
    yield f"## {name}: {patch['title']}"
    yield from ("", "```", *patch["symptom"], "```", "", _paragraph(patch["description"]))
    yield from _section("What it changes", [_paragraph(patch["changes"])])
    yield from _section("Faults", _bullets(f"`{f}`: {t}" for f, t in patch["faults"].items()))
    verdicts = {release: faults[name] for release, faults in measured.items()}
    yield from _section("Verdicts by release", _verdicts(patch["faults"], verdicts))
    yield from _section("Where it shows", _places(verdicts))
    targets = (f"`{t['module']}:{t['symbol']}`, in {t['releases']}" for t in patch["targets"])
    yield from _section("What it looks at and wraps", _bullets(targets))
    fixed = (f"`{f['fault']}`: {f['sentence']} (`{f['test']}`)" for f in patch["fixed-where"])
    retirement = [_paragraph(patch["retirement"]), "", *_bullets(fixed)]
    yield from _section("When it retires", retirement)
    yield from _section("Limits", _bullets(patch["limits"]))
    yield from _section("Avoiding the fault by configuration", _bullets(patch["avoid"]))
    yield from _section("In the field", _bullets(patch["field-evidence"]))
    upstream = {
        "Origin": patch["origin"],
        "Reports": ", ".join(f"<{url}>" for url in patch["bug"]),
        "Forwarded upstream": patch["forwarded"],
        "Applied upstream": patch["applied-upstream"],
        "Last update": patch["last-update"],
    }
    yield from _section("Upstream", _bullets(f"{k}: {v}" for k, v in upstream.items()))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"### {title}", "", *lines)


def _bullets(items: Iterable[str]) -> Iterator[str]:
    return (f"- {item}" for item in items)


def _paragraph(text: str) -> str:
    return " ".join(text.split())


def _verdicts(faults: Iterable[str], measured: dict[str, Any]) -> Iterator[str]:
    """One row a fault, with the ranges of releases that have the same verdict."""
    yield "| fault | verdict |"
    yield "|---|---|"
    for fault in faults:
        ranges = []
        for verdict, group in groupby(measured, key=lambda r: measured[r][fault]["verdict"]):
            releases = list(group)
            last = f" to {releases[-1]}" if len(releases) > 1 else ""
            ranges.append(f"{verdict} {releases[0]}{last}")
        yield f"| `{fault}` | {', '.join(ranges)} |"


def _places(measured: dict[str, Any]) -> Iterator[str]:
    """One row a release, with the line of each function in which a fault shows."""
    lines: dict[str, dict[str, str]] = {release: {} for release in measured}
    files: dict[str, str] = {}
    for release, faults in measured.items():
        for finding in faults.values():
            place = _PLACE.search(finding["evidence"])
            if place and place[2]:
                files.setdefault(place[3], place[1])
                lines[release][place[3]] = place[2]
    yield f"| release | {' | '.join(f'`{symbol}`' for symbol in files)} |"
    yield "|---" * (len(files) + 1) + "|"
    for release, found in lines.items():
        yield f"| {release} | {' | '.join(found.get(symbol, '') for symbol in files)} |"
    yield ""
    for file in dict.fromkeys(files.values()):
        symbols = (f"`{symbol}`" for symbol, other in files.items() if other == file)
        yield f"Line numbers in `{file}`: {', '.join(symbols)}."


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if stale")
    options = parser.parse_args()
    text = page()
    if not options.check:
        PATCHES.write_text(text, encoding="utf-8")
        return 0
    if not PATCHES.exists() or PATCHES.read_text(encoding="utf-8") != text:
        print(f"{PATCHES.name} is not what patches/ says: run `make patches`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
