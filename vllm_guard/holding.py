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
        # skipped_waiting: 0.18 on. Up to 0.17 it is a local variable of schedule().
        names = ("waiting", "skipped_waiting")
        self._queues = [queue for name in names if (queue := getattr(scheduler, name, None))]
        self._requests = requests
        self._guard = guard
        self._taken: list[tuple[Any, list[Any], set[Any]]] = []

    def __enter__(self) -> None:
        with self._guard.failing_open:
            for queue in self._queues:
                found = [request for request in queue if request in self._requests]
                if found:
                    known = set(queue)
                    queue.remove_requests(found)
                    self._taken.append((queue, found, known))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for queue, requests, known in self._taken:
            with self._guard.failing_open:
                _put_back(queue, requests, known)


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
