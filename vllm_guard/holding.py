"""Keeping requests out of one ``schedule()`` call."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from types import TracebackType
from typing import Any

from vllm_guard.guard import Guard


class HeldBack:
    """Takes requests out of the waiting queues inside a ``with`` block, and puts them back.

    Outside of ``schedule()`` nobody sees them missing: counts and ``has_requests()`` stay right.

    Args:
        scheduler: The vLLM scheduler.
        requests: What to hold back; those in no waiting queue are passed over.
        guard: How to fail.
    """

    def __init__(self, scheduler: Any, requests: Collection[Any], guard: Guard) -> None:
        self._scheduler = scheduler
        self._requests = requests
        self._guard = guard
        self._taken: list[tuple[Any, list[Any], set[Any]]] = []

    def __enter__(self) -> None:
        with self._guard.failing_open:
            # skipped_waiting: 0.18 on. Up to 0.17 it is a local variable of schedule().
            for name in ("waiting", "skipped_waiting"):
                queue: Any = getattr(self._scheduler, name, ())
                found = [request for request in queue if request in self._requests]
                if found:
                    # Before they are taken: what is noted here is looked for at the end.
                    self._taken.append((queue, found, set(queue)))
                    queue.remove_requests(found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for queue, requests, known in self._taken:
            with self._guard.failing_open:
                _put_back(queue, _missing_in(queue, requests), known)
            # Whatever went wrong above: a request in no queue would wait for ever.
            with self._guard.failing_open:
                for request in _missing_in(queue, requests):
                    queue.add_request(request)


def _missing_in(queue: Any, requests: list[Any]) -> list[Any]:
    present = set(queue)
    return [request for request in requests if request not in present]


def _put_back(queue: Any, requests: list[Any], known: set[Any]) -> None:
    """Put the requests in front, behind what ``schedule()`` itself has put there by preempting.

    Not with ``prepend_requests``: whether it keeps or reverses the order depends on the release.
    A priority queue finds the place by itself.

    Args:
        queue: The waiting queue they came from.
        requests: In their order.
        known: What was in the queue before.
    """
    if isinstance(queue, deque):
        place = next((i for i, request in enumerate(queue) if request in known), len(queue))
        for request in reversed(requests):
            queue.insert(place, request)
    else:
        for request in requests:
            queue.add_request(request)
