"""The fault itself: a worker that returns a token for an unfinished prefill chunk.

vLLM's model runner samples a token for every row of a batch and empties the rows of requests whose
prompt is not fully computed yet. Here such an emptied row gets a token again, after the runner has
done its own book-keeping: the model's state stays right, only what the worker reports is wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import wrapt

from .records import Records

BOGUS_TOKEN = 5


class Injector:
    """Chooses the rows that get a bogus token, and counts them.

    Args:
        rate: Probability that an unfinished chunk returns a token.
        seed: Makes the choice repeatable for a given sequence of batches.
        records: Where the counts go after each batch that held an unfinished chunk.
        token: That is returned.
        by_request: Whether to count for each request too, which takes memory for each.
    """

    def __init__(
        self,
        rate: float,
        seed: int,
        records: Records,
        token: int = BOGUS_TOKEN,
        *,
        by_request: bool = True,
    ) -> None:
        self._rate = rate
        self._random = random.Random(seed)
        self._records = records
        self._token = token
        self._counts_by_request = by_request
        self._chunks = 0
        self._injected = 0
        self._by_request: Counter[str] = Counter()

    def inject(
        self, rows: list[list[int]], unfinished: Sequence[int], request_ids: Sequence[str]
    ) -> None:
        """Put bogus tokens into emptied rows.

        Args:
            rows: Sampled tokens, one list for each request of the batch; changed in place.
            unfinished: Indices of the rows whose request is still in prefill.
            request_ids: The request of each row.
        """
        for index in unfinished:
            if rows[index]:
                raise AssertionError(f"row {index} was expected to be empty: {rows[index]}")
            self._chunks += 1
            if self._random.random() < self._rate:
                rows[index] = [self._token]
                self._injected += 1
                if self._counts_by_request:
                    self._by_request[request_ids[index]] += 1
        if unfinished:
            self._records.write(
                "injected",
                {
                    "unfinished_chunks": self._chunks,
                    "injected": self._injected,
                    "by_request": dict(self._by_request),
                },
            )


def inject_into_runner(module: Any, injector: Injector) -> None:
    """Wrap the two ways in which the model runner hands over sampled tokens.

    Args:
        module: The imported ``vllm.v1.worker.gpu_model_runner``.
        injector: Spoils the rows.
    """

    def asynchronous(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = wrapped(*args, **kwargs)
        injector.inject(output.sampled_token_ids, instance._invalid_req_indices, output.req_ids)
        return output

    def synchronous(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = wrapped(*args, **kwargs)
        rows = getattr(output, "sampled_token_ids", None)
        # With asynchronous scheduling the rows are not there yet: `get_output` makes them.
        if rows:
            discarded = instance.discard_request_mask.np[: len(rows)].nonzero()[0].tolist()
            injector.inject(rows, discarded, output.req_ids)
        return output

    wrapt.wrap_function_wrapper(module, "AsyncGPUModelRunnerOutput.get_output", asynchronous)
    wrapt.wrap_function_wrapper(module, "GPUModelRunner.sample_tokens", synchronous)
