"""Counts the bogus tokens that reach EngineCore when their request has gone.

A client that hangs up ends its request while frames of it are in flight. vLLM itself passes over
their rows, and so no guard has to. Whoever wants to know whether guards have dropped every token
must know how many of them there were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from .records import Records


class Gone:
    """The rows of the frame that has arrived last, until EngineCore books them.

    Args:
        token: The bogus one; the model has none of that number.
        records: Where the count goes whenever it rises.
    """

    def __init__(self, token: int, records: Records) -> None:
        self._token = token
        self._records = records
        self._holders: list[str] = []
        self._gone = 0

    def arrived(self, output: Any) -> None:
        """Note the requests that got a bogus token.

        Args:
            output: Of a worker, whatever it was asked to do.
        """
        rows = getattr(output, "sampled_token_ids", None)
        if rows:
            self._holders = [
                request_id
                for request_id, row in zip(output.req_ids, rows, strict=True)
                if self._token in row
            ]

    def about_to_book(self, scheduler: Any) -> None:
        """Count those of them that have gone; between here and the booking none goes any more.

        Args:
            scheduler: Of vLLM.
        """
        requests = map(scheduler.requests.get, self._holders)
        gone = sum(request is None or request.is_finished() for request in requests)
        self._holders = []
        if gone:
            self._gone += gone
            self._records.write("gone", {"gone": self._gone})

    def watch_arrivals(self, module: Any) -> None:
        """Look at what workers answer.

        Args:
            module: The imported ``vllm.v1.executor.multiproc_executor``.
        """

        def watched(
            wrapped: Callable[..., Any],
            instance: Any,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
        ) -> Any:
            output = wrapped(*args, **kwargs)
            self.arrived(output)
            return output

        wrapt.wrap_function_wrapper(module, "FutureWrapper.result", watched)

    def watch_bookings(self, module: Any) -> None:
        """Look after aborted requests have been ended, which is right before a frame is booked.

        Args:
            module: The imported ``vllm.v1.engine.core``.
        """

        def watched(
            wrapped: Callable[..., Any],
            instance: Any,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
        ) -> None:
            wrapped(*args, **kwargs)
            self.about_to_book(instance.scheduler)

        wrapt.wrap_function_wrapper(module, "EngineCore._process_aborts_queue", watched)
