"""The source of a release says the same as running it, and both as it was measured."""

from __future__ import annotations

import re

import pytest

from tests.releases.cache import release_tree
from tests.releases.live import live_verdicts
from tests.releases.verdicts import measured, static, words
from tests.scheduler.matrix import RELEASES
from vllm_guard.states import Verdict

pytestmark = pytest.mark.releases

_PLACE = re.compile(r"\((vllm/[\w/]+\.py):(\d+) (?:\w+\.)?(\w+)\)$")


@pytest.mark.parametrize("release", RELEASES)
def test_the_source_says_what_was_measured(release: str) -> None:
    """For every fault, and where: the line of the evidence defines what it names."""
    judged = static(release)
    assert words(judged.findings) == measured(release)
    assert judged.build.version == release
    for faults in judged.findings.values():
        for finding in faults.values():
            if finding.verdict is Verdict.ABSENT:
                continue
            place = _PLACE.search(finding.evidence)
            assert place, finding.evidence
            lines = (release_tree(release) / place[1]).read_text().splitlines()
            assert f"def {place[3]}(" in lines[int(place[2]) - 1]


@pytest.mark.parametrize("release", [RELEASES[-1]])
def test_the_imported_code_says_what_was_measured(release: str) -> None:
    """On the newest; `test_doctored` runs others, and ``nox -s verdicts`` all of them."""
    assert words(live_verdicts(release)) == measured(release)
