"""What the programs of these tests use inside their own process. Imports nothing of vLLM."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import vllm_guard
from tests.runtime.swallowed import SwallowedErrors

RESULT_MARK = "==RESULT== "
SCHEDULER = "vllm.v1.core.sched.scheduler"
METHODS = ("__init__", "schedule", "update_from_output", "_free_request")
PROMPT_LENGTH = 9

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
swallowed = SwallowedErrors()
swallowed.start()


def report(result: Any) -> None:
    """Hand the result over, with the errors that were swallowed on the way to it."""
    errors = [repr(error) for error in swallowed.take()]
    print(RESULT_MARK + json.dumps([result, errors]), flush=True)


def state() -> str:
    """Return the state of the guard ``clamp``."""
    return str(vllm_guard.status()["guards"]["clamp"]["state"])


def effective() -> bool | None:
    """Say whether its wrappers are what Python finds, as far as it has looked."""
    found: bool | None = vllm_guard.status()["guards"]["clamp"]["effective"]
    return found


def attributes(names: tuple[str, ...] = METHODS) -> list[Any]:
    """Return what stands in the dictionary of vLLM's Scheduler now; imports nothing."""
    return [vars(sys.modules[SCHEDULER].Scheduler)[name] for name in names]


def wrapped() -> list[str]:
    """Return the names of the methods that are wrapped now, once for each wrapper."""
    found = []
    for name, function in zip(METHODS, attributes(), strict=True):
        while hasattr(function, "__wrapped__"):
            found.append(name)
            function = function.__wrapped__  # noqa: PLW2901
    return found


def serve(scheduler_class: Any = None, frames: int = 5) -> Any:
    """Serve one request with a worker that returns a token for every frame.

    Two frames prefill the prompt of nine tokens and may deliver nothing, so that a right client
    gets the tokens 2, 3, 4.

    Returns:
        What the client got, or the name of the error that ended the engine.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.request import Request

    scheduler = (scheduler_class or AsyncScheduler)()
    request = Request("r", PROMPT_LENGTH)
    scheduler.add_request(request)
    try:
        for token in range(frames):
            output = scheduler.schedule()
            returned = SimpleNamespace(
                sampled_token_ids=[[token]], req_id_to_index={"r": 0}, pooler_output=None
            )
            scheduler.update_from_output(output, returned)
    except AssertionError as error:
        return type(error).__name__
    return request.output_token_ids


RIGHT = [2, 3, 4]
DEAD = "AssertionError"
EVERYTHING = [0, 1, 2, 3, 4]
"""What a client of the synchronous scheduler gets where nothing guards it."""
