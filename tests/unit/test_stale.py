"""Rules of ``stale`` that no plain workload reaches; the others are tested on real schedulers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.stand_ins import make_guard, make_request
from vllm_guard.guards.stale import RESUME_EARLY, StaleRules
from vllm_guard.ledger import Ledger
from vllm_guard.states import Finding, Mode, Verdict


class Queue(list[Any]):
    """A waiting queue: ``remove_requests`` ignores what it does not hold."""

    def remove_requests(self, requests: list[Any]) -> None:
        self[:] = [request for request in self if request not in requests]


def finish(mode: Mode, verdict: Verdict) -> tuple[Queue, list[Any]]:
    """End one of two requests in ``skipped_waiting``; return the queue and the other one."""
    guard = make_guard(mode, name="stale", faults=(RESUME_EARLY,))
    guard.findings = {RESUME_EARLY: Finding(verdict, "")}
    ended, other = make_request(request_id="ended"), make_request(request_id="other")
    scheduler = SimpleNamespace(skipped_waiting=Queue([ended, other]))
    StaleRules(guard).finishing(scheduler, Ledger(counts_placeholders=True), ended)
    return scheduler.skipped_waiting, [other]


def test_a_request_that_ends_while_preempted_leaves_the_queue_vllm_overlooks() -> None:
    """0.18 to 0.26 would raise when they come upon it."""
    queue, rest = finish(Mode.AUTO, Verdict.NEEDED)
    assert queue == rest


@pytest.mark.parametrize(
    ("mode", "verdict"), [(Mode.OBSERVE, Verdict.NEEDED), (Mode.AUTO, Verdict.FIXED)]
)
def test_it_stays_where_the_guard_only_observes_or_the_build_does_it(
    mode: Mode, verdict: Verdict
) -> None:
    """Nothing of vLLM's is touched."""
    queue, rest = finish(mode, verdict)
    assert len(queue) == len(rest) + 1


def test_releases_with_one_queue_have_nothing_to_overlook() -> None:
    """Up to 0.17 there is no such attribute."""
    guard = make_guard(name="stale", faults=(RESUME_EARLY,))
    guard.findings = {RESUME_EARLY: Finding(Verdict.NEEDED, "")}
    StaleRules(guard).finishing(SimpleNamespace(), Ledger(True), make_request())
