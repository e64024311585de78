"""The source of a release says the same as running it, and both as it was measured."""

from __future__ import annotations

import ast
import re

import pytest

from tests.releases.cache import release_tree
from tests.releases.live import live_verdicts
from tests.releases.verdicts import measured, measured_findings, static, words
from tests.scheduler.matrix import RELEASES
from vllm_guard import patches
from vllm_guard.states import Verdict

pytestmark = pytest.mark.releases

_PLACE = re.compile(r"\((vllm/[\w/]+\.py):(\d+) (?:\w+\.)?(\w+)\)$")


@pytest.mark.parametrize("release", RELEASES)
def test_the_source_says_what_was_measured(release: str) -> None:
    """For every fault, and where: the line of the evidence defines what it names."""
    judged = static(release)
    assert judged.findings == measured_findings(release)
    assert judged.build.version == release
    for faults in judged.findings.values():
        for finding in faults.values():
            if finding.verdict is Verdict.ABSENT:
                continue
            place = _PLACE.search(finding.evidence)
            assert place, finding.evidence
            lines = (release_tree(release) / place[1]).read_text().splitlines()
            assert f"def {place[3]}(" in lines[int(place[2]) - 1]


# By pull request, the first release that holds it, as its source was compared by hand; the model is
# there from 0.22 on.
CAUSES_FIXED_IN = {44509: "0.23.0", 45244: "0.24.0", 45918: "0.25.1"}


@pytest.mark.parametrize("release", RELEASES)
def test_causes_of_too_few_embeddings_are_told_and_retire_nothing(release: str) -> None:
    judged = static(release)
    causes = {
        cause.pull_request: cause.finding.verdict for cause in judged.causes.get("mm_merge", ())
    }
    expected = {}
    if RELEASES.index(release) >= RELEASES.index("0.22.1"):
        expected = {
            pull_request: Verdict.FIXED
            if RELEASES.index(release) >= RELEASES.index(first)
            else Verdict.NEEDED
            for pull_request, first in CAUSES_FIXED_IN.items()
        }
    assert causes == expected


def test_targets_are_in_the_releases_that_the_documents_name() -> None:
    """A function of that name, in that class, from the first to the last of them."""
    wrong = []
    for guard in patches.names():
        for target in patches.read(guard)["targets"]:
            first, last = target["releases"].split(" to ")
            named = RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]
            found = [release for release in RELEASES if _has(release, target)]
            wrong += [(guard, target["symbol"], found)] if found != list(named) else []
    assert wrong == []


def _has(release: str, target: dict[str, str]) -> bool:
    file = release_tree(release) / f"{target['module'].replace('.', '/')}.py"
    if not file.is_file():
        return False
    body = ast.parse(file.read_bytes()).body
    for name in target["symbol"].split("."):
        found = [node for node in body if getattr(node, "name", "") == name]
        body = getattr(found[0], "body", []) if found else []
    return bool(body)


@pytest.mark.parametrize("release", [RELEASES[-1]])
def test_the_imported_code_says_what_was_measured(release: str) -> None:
    """On the newest; `test_doctored` runs others, and ``nox -s verdicts`` all of them."""
    assert words(live_verdicts(release)) == measured(release)
