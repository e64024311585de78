"""What does this build do with frames in flight when a request is preempted, reset or stopped?

Single methods of the scheduler run on stand-ins; nothing of vLLM is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vllm_guard.probes.standins import Loaded, decoding_request, stand_in_scheduler
from vllm_guard.states import Finding, Verdict


def probe(module: ModuleType, _loaded: Loaded = sys.modules.get) -> Mapping[str, Finding]:
    """Judge the faults of ``stale``.

    Args:
        module: ``vllm.v1.core.sched.scheduler``, fully imported and not patched.
        _loaded: Finds other modules by name; none is needed.
    """
    return {
        "resume-early": finding(lambda: _judge_resume(module), module, "_preempt_request"),
        "reset": finding(lambda: _judge_reset(module), module, "_preempt_request"),
        "no-queue": finding(lambda: _judge_queue(module), module, "_handle_stopped_request"),
    }


def finding(judge: Callable[[], Finding], module: ModuleType, method: str) -> Finding:
    """Return what ``judge`` says; absent where there is no ``method``, unknown where it raises."""
    if not hasattr(module.Scheduler, method):
        return Finding(Verdict.ABSENT, f"there is no Scheduler.{method}")
    try:
        return judge()
    except Exception as error:
        return Finding(Verdict.UNKNOWN, f"{method} on a stand-in raised {error!r}")


def judge_session_border(module: ModuleType) -> Finding:
    """A session stops with 2 tokens in flight: are they still counted on?"""
    request, _ = _stop_session(module)
    outcome = (request.num_computed_tokens, request.num_output_placeholders)
    if outcome == (8, 0):
        return Finding(Verdict.FIXED, "a stopped session lets go of its tokens in flight")
    if outcome == (10, 2):
        return Finding(
            Verdict.NEEDED, "a stopped session keeps the placeholders of its old segment"
        )
    return Finding(Verdict.UNKNOWN, f"a stopped session is left with {outcome}")


def _judge_queue(module: ModuleType) -> Finding:
    _, queued = _stop_session(module)
    if queued:
        return Finding(Verdict.NEEDED, "a session that goes on is queued before the clean-up")
    return Finding(Verdict.FIXED, "a session that goes on is queued after the clean-up")


def _stop_session(module: ModuleType) -> tuple[Any, list[Any]]:
    queued: list[Any] = []
    request = decoding_request(module, "FINISHED_STOPPED")
    scheduler = stand_in_scheduler(
        module, num_waiting_for_streaming_input=0, _enqueue_waiting_request=queued.append
    )
    scheduler.waiting = _Recorder(queued)
    if scheduler._handle_stopped_request(request) is not False:
        raise AssertionError("a session that goes on is taken for finished")
    return request, queued


class _Recorder:
    def __init__(self, queued: list[Any]) -> None:
        self.add_request = queued.append


def _judge_resume(module: ModuleType) -> Finding:
    """A running request with 2 tokens in flight is preempted."""
    request = decoding_request(module, "RUNNING")
    scheduler = stand_in_scheduler(module, _free_request_blocks=lambda freed: None)
    scheduler._preempt_request(request, 0.0)
    if request.num_stale_output_tokens == 2:
        return Finding(Verdict.FIXED, "a preempted request knows its stale tokens")
    if request.num_stale_output_tokens == 0 and request.num_output_placeholders == 2:
        return Finding(Verdict.NEEDED, "a preempted request forgets its frames in flight")
    return Finding(
        Verdict.UNKNOWN,
        f"a preempted request has {request.num_stale_output_tokens} stale tokens,"
        f" {request.num_output_placeholders} placeholders",
    )


def _judge_reset(module: ModuleType) -> Finding:
    """The cache is reset while a request is running."""
    calls: list[dict[str, Any]] = []
    scheduler = stand_in_scheduler(
        module,
        running=[decoding_request(module, "RUNNING")],
        prev_step_scheduled_req_ids=set(),
        _preempt_request=lambda request, timestamp, **options: calls.append(options),
    )
    scheduler.reset_prefix_cache(reset_running_requests=True)
    if not calls:
        return Finding(Verdict.UNKNOWN, "a reset preempts no running request")
    if calls[0].get("drop_stale_output"):
        return Finding(Verdict.FIXED, "a reset drops the output in flight")
    return Finding(Verdict.NEEDED, "a reset does not say which frames are stale")
