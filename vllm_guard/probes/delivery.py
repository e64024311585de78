"""Does this build deliver a token that nothing was reserved for? Asked by doing it.

``Scheduler._update_request_with_output`` runs on a stand-in request: well under a millisecond,
no configuration, no model, nothing of vLLM imported.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from vllm_guard.probes.preemption import finding, judge_session_border
from vllm_guard.probes.standins import Loaded
from vllm_guard.states import Finding, Verdict

_TOKEN = 7
_FRAME_BLIND = ("self", "request", "new_token_ids", "is_stale")


def probe(module: ModuleType, _loaded: Loaded = sys.modules.get) -> Mapping[str, Finding]:
    """Judge the faults of ``clamp`` that come from a token without a frame.

    Args:
        module: ``vllm.v1.core.sched.scheduler``, fully imported and not patched.
        _loaded: Finds other modules by name; none is needed.
    """
    method = module.Scheduler._update_request_with_output
    prefill = judge_prefill_token(module.Scheduler)
    later = _judge_frame_blindness(method, module.Scheduler)
    session = finding(lambda: judge_session_border(module), module, "_handle_stopped_request")
    return {
        "prefill-token": prefill,
        "last-chunk": later,
        "session-border": session,
        "id-reuse": later,
    }


def judge_prefill_token(scheduler_class: Any) -> Finding:
    """A prefill with 4 of 9 tokens computed and no placeholder gets a token.

    Args:
        scheduler_class: ``Scheduler``, or one derived from it.
    """
    method = scheduler_class._update_request_with_output
    outcome = _deliver(method, scheduler_class, _StandInRequest(computed=4, placeholders=0))
    if isinstance(outcome, AssertionError):
        return Finding(Verdict.NEEDED, "a token of an unfinished prefill fails an assertion")
    if isinstance(outcome, Exception):
        return Finding(Verdict.UNKNOWN, f"delivering a token raised {outcome!r}")
    if outcome:
        return Finding(Verdict.NEEDED, "a token of an unfinished prefill is delivered")
    return Finding(Verdict.FIXED, "a token of an unfinished prefill is not delivered")


def _judge_frame_blindness(method: Any, scheduler_class: type) -> Finding:
    """With a placeholder reserved, only the frame tells a good token from a wrong one."""
    parameters = tuple(inspect.signature(method).parameters)
    if not set(parameters) <= set(_FRAME_BLIND):
        return Finding(Verdict.UNKNOWN, f"tokens are delivered with ({', '.join(parameters)})")
    outcome = _deliver(method, scheduler_class, _StandInRequest(computed=9, placeholders=1))
    if isinstance(outcome, Exception) or not outcome:
        return Finding(Verdict.UNKNOWN, f"delivering a good token gave {outcome!r}")
    return Finding(
        Verdict.NEEDED, "a token is delivered to whoever has the id, whatever frame it is from"
    )


def _deliver(method: Any, scheduler_class: Any, request: _StandInRequest) -> list[int] | Exception:
    scheduler = scheduler_class.__new__(scheduler_class)
    scheduler.max_model_len = 1 << 20
    try:
        method(scheduler, request, [_TOKEN])
    except Exception as error:
        return error
    return request.appended


class _StandInRequest(SimpleNamespace):
    """A request of 9 prompt tokens: what ``check_stop`` and all forms of the method read of one.

    Args:
        computed: Its ``num_computed_tokens``.
        placeholders: Its ``num_output_placeholders``.
    """

    def __init__(self, computed: int, placeholders: int) -> None:
        self.appended: list[int] = []
        super().__init__(
            request_id="vllm-guard-probe",
            # Neither running, nor reset with frames in flight.
            status=None,
            discard_latest_async_tokens=False,
            async_tokens_to_discard=0,
            num_prompt_tokens=9,
            num_tokens=9,
            num_output_tokens=1,
            output_token_ids=self.appended,
            max_tokens=1 << 20,
            eos_token_id=None,
            num_computed_tokens=computed,
            num_output_placeholders=placeholders,
            is_prefill_chunk=computed < 9,
            pooling_params=None,
            # Nothing stops it; fewer than min_tokens, so check_stop looks no further.
            sampling_params=SimpleNamespace(
                min_tokens=1 << 20, eos_token_id=None, stop_token_ids=None, ignore_eos=True
            ),
            append_output_token_ids=self.appended.append,
        )
