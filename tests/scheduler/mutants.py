"""Mutants of our own rules: each must be killed by some seed of the simulator.

`python -m tests.scheduler.mutants` prints for each the first seed that kills it.
"""

from __future__ import annotations

from typing import Any

from tests.releases.isolated import print_result
from tests.scheduler.alterations import Alteration, by_name, failures
from tests.scheduler.guarding import guarded

CLAMP = "vllm_guard.guards.clamp:ClampRules"
STALE = "vllm_guard.guards.stale:StaleRules"


def _nothing(original: Any) -> Any:
    return lambda *args, **kwargs: None


def _holds_nothing(original: Any) -> Any:
    return lambda *args, **kwargs: ()


def _without_rolling_back(original: Any) -> Any:
    """The session rule only refuses rows."""

    def stopping(self: Any, scheduler: Any, ledger: Any, request: Any) -> None:
        computed, placeholders = request.num_computed_tokens, request.num_output_placeholders
        original(self, scheduler, ledger, request)
        request.num_computed_tokens, request.num_output_placeholders = computed, placeholders

    return stopping


def _keeping_placeholders(original: Any) -> Any:
    """The session rule leaves the counter of placeholders alone."""

    def stopping(self: Any, scheduler: Any, ledger: Any, request: Any) -> None:
        placeholders = request.num_output_placeholders
        original(self, scheduler, ledger, request)
        request.num_output_placeholders = placeholders

    return stopping


def _without_refusing(original: Any) -> Any:
    """The session rule only rolls back."""

    def stopping(self: Any, scheduler: Any, ledger: Any, request: Any) -> None:
        original(self, scheduler, ledger, request)
        for frame in ledger.in_flight(request.request_id):
            frame.blank.pop(request.request_id, None)

    return stopping


def _keeping_drafts(original: Any) -> Any:
    """Drafts outlive a preemption."""

    def preempted(self: Any, scheduler: Any, ledger: Any, request: Any) -> None:
        drafts = request.spec_token_ids
        original(self, scheduler, ledger, request)
        request.spec_token_ids = drafts

    return preempted


def _keeping_vllms_discards(original: Any) -> Any:
    """A reset leaves vLLM's own one-shot discards armed."""
    names = ("discard_latest_async_tokens", "async_tokens_to_discard")

    def refuse(self: Any, ledger: Any, request: Any, reason: str) -> None:
        before = {name: getattr(request, name) for name in names if hasattr(request, name)}
        original(self, ledger, request, reason)
        for name, value in before.items():
            setattr(request, name, value)

    return refuse


def _only_the_oldest_frame(original: Any) -> Any:
    """Rows are refused in one frame in flight, not in all."""

    def blank(self: Any, refusal: Any) -> bool:
        request_id = refusal.request.request_id
        for frame in self.in_flight(request_id):
            frame.blank.setdefault(request_id, refusal)
            return True
        return False

    return blank


def _forgetting_drafts(original: Any) -> Any:
    """A refused row leaves its drafts behind, which vLLM counts as rejected."""
    return lambda self, request_id: self.cut(request_id, 0)


def _whatever_the_frame_computed(original: Any) -> Any:
    """The frame rule looks at placeholders too, as vLLM's own is_prefill_chunk does."""

    def settle(self: Any, scheduler: Any, ledger: Any, frame: Any, request_id: str) -> None:
        ledger.unsettled.discard(request_id)

    return settle


MUTANTS = by_name(
    Alteration("stale-holds-nothing", f"{STALE}.hold", _holds_nothing, "kv-pressure", depth=3),
    Alteration("stale-ignores-preemption", f"{STALE}.preempted", _nothing, "priority", depth=3),
    Alteration("stale-ignores-reset", f"{STALE}.were_reset", _nothing, "reset"),
    Alteration(
        "stale-keeps-discards", f"{STALE}._refuse", _keeping_vllms_discards, "spec-reset", depth=3
    ),
    Alteration("stale-loses-sessions", f"{STALE}.booked", _nothing, "session-pressure", depth=3),
    Alteration(
        "stale-cuts-sessions", f"{STALE}.next_segment", _nothing, "session-pressure", depth=3
    ),
    # Up to 0.13.
    Alteration(
        "stale-keeps-drafts", f"{STALE}.preempted", _keeping_drafts, "spec-pressure", depth=3
    ),
    Alteration(
        "held-are-not-put-back",
        "vllm_guard.holding:HeldBack.__exit__",
        _nothing,
        "kv-pressure",
        depth=3,
    ),
    Alteration(
        "frames-never-come-home",
        "vllm_guard.ledger:Ledger.close",
        lambda original: lambda self, output: self._frames.get(id(output)),
        "kv-pressure",
        depth=3,
    ),
    Alteration(
        "refuses-one-frame",
        "vllm_guard.ledger:Ledger.blank",
        _only_the_oldest_frame,
        "reset",
        depth=3,
    ),
    # Up to 0.14.
    Alteration(
        "refused-rows-keep-drafts",
        "vllm_guard.rows:ReturnedRows.blank",
        _forgetting_drafts,
        "spec-reset",
    ),
    Alteration(
        "prompt-logprobs-get-lost",
        "vllm_guard.booking:Booking.hand_over_prompt_logprobs",
        _nothing,
        "prompt-logprobs",
    ),
    Alteration(
        "clamp-without-frame-rule", f"{CLAMP}._settle", _whatever_the_frame_computed, "faults"
    ),
    Alteration("clamp-without-identity-rule", f"{CLAMP}.finishing", _nothing, "aborts"),
    Alteration("session-without-roll-back", f"{CLAMP}.stopping", _without_rolling_back, "sessions"),
    Alteration("session-without-refusal", f"{CLAMP}.stopping", _without_refusing, "sessions"),
    Alteration(
        "session-keeps-placeholders", f"{CLAMP}.stopping", _keeping_placeholders, "sessions"
    ),
)


KV_PRODUCER = by_name(
    *(
        Alteration(
            family,
            "vllm_guard.guards.stale:_must_deliver_kv",
            lambda original: lambda scheduler: True,
            family,
            depth=3,
        )
        for family in ("kv-pressure", "priority", "spec-pressure", "session-pressure")
    )
)
"""No mutants: a KV producer's requests start over instead of being held, and nothing may fail."""


def main() -> None:
    """Try all of them, with both guards on, on the vLLM that is imported."""
    import vllm

    with guarded("both"):
        found = {"failures": failures(MUTANTS), "kv_producer": failures(KV_PRODUCER)}
    print_result({"vllm_file": vllm.__file__} | found)


if __name__ == "__main__":
    main()
