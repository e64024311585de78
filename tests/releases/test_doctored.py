"""Builds that are no release: backports, half-fixes, vendors' changes, and texts that boast."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.releases import doctored
from tests.releases.doctored import ASYNC_SCHEDULER, GATHER, MODELS_UTILS, SCHEDULER, Doctored
from tests.releases.isolated import run_isolated
from tests.releases.live import live_verdicts
from tests.releases.verdicts import Words, measured, static, words
from vllm_guard.guards import DEFINITIONS
from vllm_guard.pipeline import SCHEDULER as SCHEDULER_MODULE

pytestmark = pytest.mark.releases

MERGE_MODULES = [name for d in DEFINITIONS if d.name == "mm_merge" for name in d.modules]

KNOWS_STALE_TOKENS = """
request.num_stale_output_tokens = request.num_in_flight_tokens
request.drop_stale_output = drop_stale_output
request.num_output_placeholders = 0
"""
COUNTS_IN_FLIGHT = """
for request_id, count in scheduler_output.num_scheduled_tokens.items():
    if request_id in self.requests:
        self.requests[request_id].num_in_flight_tokens {sign}= count
"""
MERGES_WHAT_THERE_IS = """
rows = _flatten_embeddings(multimodal_embeddings)
places = is_multimodal.nonzero().flatten()[: len(rows)]
inputs_embeds[places] = rows[: len(places)].to(dtype=inputs_embeds.dtype)
return inputs_embeds
"""
GATHERS_IN_FULL = """
mm_embeds = [
    item if len(item) >= 3 else torch.cat([item, item.new_zeros((3 - len(item), 1))])
    for item in mm_embeds
]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tree"


def changed(release: str, **faults: str) -> Words:
    """What was measured on a release, but for these faults."""
    named = {fault.replace("_", "-"): verdict for fault, verdict in faults.items()}
    return {
        guard: {fault: named.get(fault, verdict) for fault, verdict in verdicts.items()}
        for guard, verdicts in measured(release).items()
    }


def assert_agreed(build: Doctored, expected: Words, *modules: str) -> None:
    """The source says `expected`, and so does the imported code of `modules`."""
    assert words(static(build.folder).findings) == expected
    for guard, faults in words(live_verdicts(build.folder, *modules)).items():
        for fault, verdict in faults.items():
            assert (fault, verdict) == (fault, expected[guard][fault])


def lie(build: Doctored, version: str) -> None:
    build.write("vllm/_version.py", f"__version__ = version = {version!r}\n")
    assert static(build.folder).build.version == version


def test_a_backport_of_the_stale_bookkeeping_is_fixed(folder: Path) -> None:
    """0.20.0 with what 0.27 does when it preempts, and a version that says less."""
    build = Doctored("0.20.0", folder)
    lie(build, "0.9.0")
    build.edit_functions(
        SCHEDULER,
        {
            "Scheduler._preempt_request": [
                doctored.adding_parameter("drop_stale_output", False),
                doctored.appending(KNOWS_STALE_TOKENS),
            ],
            "Scheduler.reset_prefix_cache": [
                doctored.adding_argument("_preempt_request", "drop_stale_output", True)
            ],
            "Scheduler._update_after_schedule": [
                doctored.appending(COUNTS_IN_FLIGHT.format(sign="+"))
            ],
            "Scheduler.update_from_output": [
                doctored.prepending(COUNTS_IN_FLIGHT.format(sign="-"))
            ],
        },
    )
    expected = changed("0.20.0", resume_early="fixed", reset="fixed")
    assert_agreed(build, expected, SCHEDULER_MODULE)


def test_half_a_backport_is_not_taken_for_one(folder: Path) -> None:
    """Placeholders that are only set to 0 are a shape that nobody knows."""
    build = Doctored("0.20.0", folder)
    preempt = [doctored.appending("request.num_output_placeholders = 0")]
    build.edit_functions(SCHEDULER, {"Scheduler._preempt_request": preempt})
    found = words(static(build.folder).findings)
    assert found == changed("0.20.0", resume_early="unknown")


def test_an_assertion_that_became_a_maximum_is_no_fix(folder: Path) -> None:
    """The token is delivered instead, also where the version says 0.33."""
    build = Doctored("0.29.0", folder)
    lie(build, "0.33.0")
    counted = "request.num_output_placeholders"
    clamped = doctored.replacing_asserts(counted, f"{counted} = max(0, {counted})")
    update = "AsyncScheduler._update_request_with_output"
    build.edit_functions(ASYNC_SCHEDULER, {update: [clamped]})
    assert_agreed(build, measured("0.29.0"), SCHEDULER_MODULE)
    before = static("0.29.0").findings["clamp"]["prefill-token"].evidence
    after = static(build.folder).findings["clamp"]["prefill-token"].evidence
    assert "by AsyncScheduler: a token of an unfinished prefill fails an assertion" in before
    assert "by AsyncScheduler: a token of an unfinished prefill is delivered" in after


def test_an_assertion_that_was_put_back_is_needed_again(folder: Path) -> None:
    """0.33.0 as 0.32 was, and a version that says 0.20."""
    build = Doctored("0.33.0", folder)
    lie(build, "0.20.0")
    unconditional = [doctored.replacing_tests("num_output_placeholders", "not is_stale")]
    update = "Scheduler._update_request_with_output"
    build.edit_functions(SCHEDULER, {update: unconditional})
    assert_agreed(build, measured("0.33.0"), SCHEDULER_MODULE)
    evidence = static(build.folder).findings["clamp"]["prefill-token"].evidence
    assert evidence.startswith("a token of an unfinished prefill fails an assertion")


def test_a_token_that_is_dropped_is_fixed(folder: Path) -> None:
    """By whoever: what is not delivered needs no guard."""
    build = Doctored("0.29.0", folder)
    drop = "if request.num_computed_tokens < request.num_prompt_tokens: return [], False"
    update = {"Scheduler._update_request_with_output": [doctored.prepending(drop)]}
    build.edit_functions(SCHEDULER, update)
    assert words(static(build.folder).findings) == changed("0.29.0", prefill_token="fixed")


def test_a_merge_that_takes_what_there_is_moves_the_rows_of_others(folder: Path) -> None:
    """While items are gathered short, the rows behind them move up: the guard is needed."""
    build = Doctored("0.20.0", folder)
    merge = {"_merge_multimodal_embeddings": [doctored.replacing_body(MERGES_WHAT_THERE_IS)]}
    build.edit_functions(MODELS_UTILS, merge)
    assert words(static(build.folder).findings) == changed("0.20.0", one_row="fixed")


def test_a_build_that_fills_short_items_up_is_fixed(folder: Path) -> None:
    """In both runners and in the merge."""
    build = Doctored("0.20.0", folder)
    merge = {"_merge_multimodal_embeddings": [doctored.replacing_body(MERGES_WHAT_THERE_IS)]}
    build.edit_functions(MODELS_UTILS, merge)
    for path, name in GATHER.items():
        build.edit_functions(path, {name: [doctored.appending(GATHERS_IN_FULL)]})
    expected = changed("0.20.0", short_item="fixed", one_row="fixed")
    assert_agreed(build, expected, *MERGE_MODULES)


def test_renamed_targets_are_absent(folder: Path) -> None:
    """What a guard wraps is not there, so all that it answers to in the module is out of reach."""
    build = Doctored("0.20.0", folder)
    build.edit(SCHEDULER, doctored.renaming("_free_request", "_let_go_of"))
    build.edit(SCHEDULER, doctored.renaming("_preempt_request", "_push_out"))
    found = assert_no_live_difference(build)
    assert set(found["clamp"].values()) == {"absent"}
    assert set(found["stale"].values()) == {"absent"}
    assert found["mm_merge"] == measured("0.20.0")["mm_merge"]


def assert_no_live_difference(build: Doctored) -> Words:
    found = words(static(build.folder).findings)
    assert_agreed(build, found, SCHEDULER_MODULE)
    return found


def test_texts_names_and_layout_decide_nothing(folder: Path) -> None:
    """Other local names, other layout, and docstrings, comments and messages that boast."""
    build = Doctored("0.20.0", folder)
    boast = doctored.everywhere(doctored.renaming_locals, doctored.praising_the_fix)
    for path in (SCHEDULER, ASYNC_SCHEDULER, MODELS_UTILS, *GATHER):
        build.edit(path, boast)
        file = build.file(path)
        file.write_text("# request.num_stale_output_tokens: fixed by #48245\n" + file.read_text())
    assert_agreed(build, measured("0.20.0"), SCHEDULER_MODULE)


def test_the_same_for_a_build_that_is_fixed(folder: Path) -> None:
    """A name that is not there any more takes no fix away."""
    build = Doctored("0.33.0", folder)
    for path in (SCHEDULER, ASYNC_SCHEDULER, MODELS_UTILS, *GATHER):
        build.edit(path, doctored.everywhere(doctored.renaming_locals))
    assert words(static(build.folder).findings) == measured("0.33.0")


CALLS_THE_BASE = """
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base

class CallsTheBase(Base):
    def update_from_output(self, scheduler_output, output):
        return super().update_from_output(scheduler_output, output)
"""
OF_ITS_OWN = """
class Own(CallsTheBase):
    def update_from_output(self, scheduler_output, output):
        return {}
"""
OBSTACLES = """
import importlib, vllm, vllm_guard
from tests.releases.isolated import print_result
vllm_guard.register()
vendor = importlib.import_module("vllm_vendor.scheduler")
guards = vllm_guard.runtime._process.guards.values()
print_result({
    "vllm_file": vllm.__file__,
    "obstacles": {
        name: [
            obstacle
            for guard in guards
            for obstacle in guard.obstacles(getattr(vendor, name), "vllm.v1.core.sched.scheduler")
        ]
        for name in ("CallsTheBase", "Own")
    },
})
"""


def test_a_vendor_s_subclass_that_overrides_a_target(folder: Path) -> None:
    """Foreign, unless it calls the method of its base class."""
    build = Doctored("0.29.0", folder)
    build.write("vllm_vendor/__init__.py", "")
    build.write("vllm_vendor/scheduler.py", CALLS_THE_BASE)
    assert words(static(build.folder).findings) == measured("0.29.0")
    build.write("vllm_vendor/scheduler.py", CALLS_THE_BASE + OF_ITS_OWN)
    for finding in static(build.folder).findings["clamp"].values():
        assert finding.verdict == "foreign"
        assert "vllm_vendor/scheduler.py:9 Own.update_from_output" in finding.evidence
    obstacles = run_isolated(build.folder, ["-c", OBSTACLES], timeout=300)["obstacles"]
    assert obstacles["Own"]
    assert not obstacles["CallsTheBase"]
    assert all("Own.update_from_output overrides" in obstacle for obstacle in obstacles["Own"])


@pytest.mark.parametrize(
    "assignment",
    [
        "Scheduler.schedule = schedule",
        "setattr(Scheduler, 'schedule', schedule)",
        "Theirs.schedule = schedule",
    ],
)
def test_an_assignment_from_outside_is_foreign(folder: Path, assignment: str) -> None:
    """Wherever in the vendor's package."""
    build = Doctored("0.29.0", folder)
    imported = "from vllm.v1.core.sched.scheduler import Scheduler"
    code = f"def apply():\n    {imported}\n    {imported} as Theirs\n    {assignment}\n"
    build.write("vllm_vendor/__init__.py", code)
    findings = static(build.folder).findings
    assert {str(f.verdict) for f in findings["clamp"].values()} == {"foreign"}
    assert "vllm_vendor/__init__.py:4 replaces" in findings["clamp"]["id-reuse"].evidence
