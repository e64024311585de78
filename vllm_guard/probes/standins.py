"""Stand-ins on which single scheduler methods can run without a configuration or a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

Loaded = Callable[[str], ModuleType | None]
"""Finds a module by its name, as ``sys.modules.get`` does."""

_PATIENCE = 1000


class Anything:
    """Has every attribute, takes every call, is true, and is empty to iterate.

    It is asked whether it is true a limited number of times: no loop in code we do not know may
    hang a server that is starting.
    """

    def __init__(self) -> None:
        self._asked = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:  # noqa: D102
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        self._asked += 1
        if self._asked > _PATIENCE:
            raise RecursionError("a loop that does not end on a stand-in")
        return True


class StandInRequest(SimpleNamespace):
    """A request with the attributes given, and `Anything` for the rest."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


def decoding_request(module: ModuleType, status: str) -> StandInRequest:
    """Return a resumable request with 9 known tokens and 2 in flight.

    Args:
        module: ``vllm.v1.core.sched.scheduler``.
        status: Name of its RequestStatus.
    """
    return StandInRequest(
        request_id="vllm-guard-probe",
        status=module.RequestStatus[status],
        resumable=True,
        streaming_queue=deque(),
        num_tokens=9,
        num_computed_tokens=10,
        num_output_placeholders=2,
        num_in_flight_tokens=2,
        num_stale_output_tokens=0,
        drop_stale_output=False,
        num_preemptions=0,
        spec_token_ids=[],
    )


def stand_in_scheduler(module: ModuleType, **attributes: Any) -> Any:
    """Return a Scheduler that was never set up: its methods are real, the rest is `Anything`.

    Args:
        module: ``vllm.v1.core.sched.scheduler``.
        **attributes: What it has.
    """
    missing = Anything()
    scheduler_class: Any = type(
        "StandIn", (module.Scheduler,), {"__getattr__": lambda self, name: missing}
    )
    scheduler = scheduler_class.__new__(scheduler_class)
    vars(scheduler).update(
        connector=None, ec_connector=None, aux_output_connector=None, **attributes
    )
    return scheduler
