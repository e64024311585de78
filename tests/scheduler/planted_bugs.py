"""Bugs planted into vLLM's scheduler: the simulator must see every one of them.

`python -m tests.scheduler.planted_bugs` prints for each the first seed that shows it.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.releases.isolated import print_result
from tests.scheduler.alterations import Alteration, by_name, failures

SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
EVERY = 7
"""A planted bug acts on every n-th occasion: one that acts always would be seen at once."""


def _drop_a_token(original: Any) -> Any:
    occasions = count(1)

    def update_request_with_output(
        self: Any, request: Any, tokens: Any, *args: Any, **kw: Any
    ) -> Any:
        delivered, stopped = original(self, request, tokens, *args, **kw)
        if next(occasions) % EVERY == 0 and not stopped:
            delivered = []
        return delivered, stopped

    return update_request_with_output


def _deliver_twice(original: Any) -> Any:
    occasions = count(1)

    def update_request_with_output(
        self: Any, request: Any, tokens: Any, *args: Any, **kw: Any
    ) -> Any:
        delivered, stopped = original(self, request, tokens, *args, **kw)
        return delivered * (2 if next(occasions) % EVERY == 0 else 1), stopped

    return update_request_with_output


def _swap_rows(original: Any) -> Any:
    occasions = count(1)

    def update_from_output(self: Any, scheduled: Any, returned: Any) -> Any:
        rows = returned.sampled_token_ids
        if next(occasions) % EVERY == 0 and len(rows) > 1:
            rows[0], rows[1] = rows[1], rows[0]
        return original(self, scheduled, returned)

    return update_from_output


def _forget_to_free(original: Any) -> Any:
    occasions = count(1)

    def free(self: Any, request: Any) -> None:
        if next(occasions) % EVERY:
            original(self, request)

    return free


def _free_while_running(original: Any) -> Any:
    occasions = count(1)

    def update_from_output(self: Any, scheduled: Any, returned: Any) -> Any:
        if next(occasions) % EVERY == 0 and self.running:
            self.kv_cache_manager.free(self.running[0])
        return original(self, scheduled, returned)

    return update_from_output


def _lose_a_preempted(original: Any) -> Any:
    def preempt_request(self: Any, request: Any, *args: Any, **kw: Any) -> None:
        original(self, request, *args, **kw)
        self.waiting.remove_requests([request])

    return preempt_request


def _queue_twice(original: Any) -> Any:
    def preempt_request(self: Any, request: Any, *args: Any, **kw: Any) -> None:
        original(self, request, *args, **kw)
        self.waiting.add_request(request)

    return preempt_request


def _skip_a_position(original: Any) -> Any:
    occasions = count(1)

    def update_after_schedule(self: Any, output: Any) -> None:
        original(self, output)
        for request_id in output.num_scheduled_tokens:
            if next(occasions) % EVERY == 0:
                self.requests[request_id].num_computed_tokens += 1

    return update_after_schedule


def _keep_a_placeholder(original: Any) -> Any:
    occasions = count(1)

    def update_after_schedule(self: Any, output: Any) -> None:
        original(self, output)
        for request_id in output.num_scheduled_tokens:
            if next(occasions) % EVERY == 0:
                self.requests[request_id].num_output_placeholders += 1

    return update_after_schedule


def _stop_late(original: Any) -> Any:
    def check_stop(*args: Any, **kw: Any) -> Any:
        request = args[0]
        return original(*args, **kw) and request.num_output_tokens != 3

    return check_stop


PLANTED = by_name(
    Alteration("drop-a-token", f"{SCHEDULER}._update_request_with_output", _drop_a_token, "quiet"),
    Alteration(
        "deliver-twice", f"{SCHEDULER}._update_request_with_output", _deliver_twice, "quiet"
    ),
    Alteration("swap-rows", f"{SCHEDULER}.update_from_output", _swap_rows, "quiet"),
    Alteration(
        "forget-to-free",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.free",
        _forget_to_free,
        "quiet",
    ),
    Alteration(
        "free-while-running", f"{SCHEDULER}.update_from_output", _free_while_running, "chunked"
    ),
    Alteration(
        "lose-a-preempted", f"{SCHEDULER}._preempt_request", _lose_a_preempted, "kv-pressure"
    ),
    Alteration("queue-twice", f"{SCHEDULER}._preempt_request", _queue_twice, "kv-pressure"),
    Alteration(
        "skip-a-position", f"{SCHEDULER}._update_after_schedule", _skip_a_position, "chunked"
    ),
    Alteration(
        "keep-a-placeholder",
        f"{ASYNC_SCHEDULER}._update_after_schedule",
        _keep_a_placeholder,
        "quiet",
    ),
    Alteration("stop-late", "vllm.v1.core.sched.scheduler:check_stop", _stop_late, "quiet"),
)


def main() -> None:
    """Try all of them on the vLLM that is imported."""
    import vllm

    print_result({"vllm_file": vllm.__file__, "failures": failures(PLANTED)})


if __name__ == "__main__":
    main()
