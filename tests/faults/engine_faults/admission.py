"""Lets requests into the engine in an order of their own, not in that of their arrival.

What a CPU computes for a request differs in its last bits with what else is in the batch. Where the
requests of a round get in at the same steps each time, so are the batches, and answers of two runs
can be compared bit by bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import wrapt

_PLACE = re.compile(r"round\.(\d+)\.(\d+)\.(\d+)")


class Admission:
    """Holds the requests of a round back until the last one is there.

    A request's id says ``round.COUNT.INDEX.STEP``: of how many it is which, and after how many
    further steps of the engine it gets in.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, int, Callable[[], Any]]] = []
        self._steps = 0
        self._complete = False

    def ask(self, request_id: str, admit: Callable[[], Any]) -> None:
        """Admit a request now or later.

        Args:
            request_id: Of the request.
            admit: Does it.
        """
        place = _PLACE.search(request_id)
        if place is None:
            admit()
            return
        count, index, step = map(int, place.groups())
        self._held.append((step, index, admit))
        if len(self._held) == count:
            self._held.sort()
            self._steps = 0
            self._complete = True
            self._admit_due()

    def step(self) -> None:
        """Count a step of the engine."""
        self._steps += 1
        if self._complete:
            self._admit_due()

    def _admit_due(self) -> None:
        while self._held and self._held[0][0] <= self._steps:
            self._held.pop(0)[2]()
        self._complete = bool(self._held)


def admit_in_order(module: Any) -> None:
    """Have an engine admit requests in their own order.

    Args:
        module: The imported ``vllm.v1.engine.core``.
    """
    admission = Admission()

    def asked(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        request = args[0] if args else kwargs["request"]
        admission.ask(request.request_id, partial(wrapped, *args, **kwargs))

    def stepped(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        admission.step()
        return result

    wrapt.wrap_function_wrapper(module, "EngineCore.add_request", asked)
    wrapt.wrap_function_wrapper(module, "EngineCore.post_step", stepped)
