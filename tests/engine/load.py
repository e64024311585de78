"""Rounds of concurrent requests, and what came back for each."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tests.engine.model import VOCABULARY

ROUNDS = 2
REQUESTS_PER_ROUND = 12
REQUESTS_OF_CROWD = 96
TIMEOUT_SECONDS = 120


class Request(Protocol):
    """What can be sent.

    Args:
        name: Told apart by it.
        max_tokens: As many are answered.
        stream: Whether they are to come one by one.
        step: Of the engine at which it is admitted, where the fault plugin sees to that.
        path: Of the server.
    """

    @property
    def name(self) -> str: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def stream(self) -> bool: ...
    @property
    def step(self) -> int: ...
    @property
    def path(self) -> str: ...

    def body(self) -> dict[str, Any]:
        """Return what is asked, without that which is the same for all."""


@dataclass(frozen=True)
class Completion:
    """A prompt to go on with, and how the answer is to be sent."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool
    step: int = 0
    path: str = "/v1/completions"

    def body(self) -> dict[str, Any]:
        """Return the prompt."""
        return {"prompt": self.prompt}


Round = Sequence[Request]


@dataclass(frozen=True)
class Answer:
    """What one request got: all the tokens it asked for, or the reason why not.

    Args:
        name: Of the request.
        tokens: That came.
        error: The reason why not all of them.
        logprobs: Of the tokens, where the request asked for them.
        prompt_tokens: Length of the prompt, where the server told.
    """

    name: str
    tokens: tuple[int, ...]
    error: str | None = None
    logprobs: tuple[float, ...] = ()
    prompt_tokens: int | None = None


def mixed_rounds() -> list[Round]:
    """Return two rounds of twelve requests that keep prefill chunks and decodes together."""
    return [_mixed_round(number) for number in range(ROUNDS)]


def _mixed_round(number: int) -> list[Completion]:
    """Return the requests of a round; the same ones every time.

    Every second prompt is long enough for at least three prefill chunks.

    Args:
        number: Of the round, from 0.
    """
    generator = random.Random(number)
    requests = []
    for index in range(REQUESTS_PER_ROUND):
        is_long = index % 2 == 0
        stream = index % 4 < 2
        kind = f"{'long' if is_long else 'short'}-{'stream' if stream else 'whole'}"
        name = f"{number + 1}.{index + 1}-{kind}"
        lengths = (400, 800) if is_long else (4, 40)
        requests.append(_completion(generator, name, lengths, (12, 48), stream))
    return requests


def crowd() -> list[Completion]:
    """Return many short requests that end one soon after the other; the same ones every time.

    A small KV cache fills up while they decode, and each end lets a preempted request in again.
    """
    generator = random.Random(0)
    return [
        _completion(generator, f"crowd-{index + 1}", (8, 40), (8, 40), stream=index % 2 == 0)
        for index in range(REQUESTS_OF_CROWD)
    ]


def _completion(
    generator: random.Random,
    name: str,
    lengths: tuple[int, int],
    max_tokens: tuple[int, int],
    stream: bool,
) -> Completion:
    length = generator.randint(*lengths)
    prompt = tuple(generator.randrange(3, VOCABULARY) for _ in range(length))
    return Completion(name, prompt, generator.randint(*max_tokens), stream)


def send_round(port: int, requests: Round) -> list[Answer]:
    """Send all requests at the same moment and wait for every answer.

    Args:
        port: Of the server, on this machine.
        requests: To be sent, each on its own connection.
    """
    together = threading.Barrier(len(requests))

    def send_one(index: int, request: Request) -> Answer:
        together.wait()
        return send(port, request, f"round.{len(requests)}.{index}.{request.step}")

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send_one, range(len(requests)), requests))


def send(port: int, request: Request, place: str) -> Answer:
    """Send a request and wait for its answer.

    Args:
        port: Of the server.
        request: To be sent.
        place: Of the request in its round; the fault plugin finds it in the request's id.
    """
    tokens: list[int] = []
    logprobs: list[float] = []
    prompt_tokens = None
    try:
        with _sent(port, request, place) as connection:
            response = connection.getresponse()
            if response.status != http.client.OK:
                return Answer(request.name, (), f"status {response.status}")
            for message in _messages(response, request.stream):
                if "error" in message:
                    return Answer(request.name, tuple(tokens), str(message["error"]["message"]))
                for choice in message["choices"]:
                    tokens += choice["token_ids"] or ()
                    if choice["logprobs"]:
                        logprobs += [token["logprob"] for token in choice["logprobs"]["content"]]
                prompt_tokens = (message.get("usage") or {}).get("prompt_tokens")
    except (OSError, http.client.HTTPException) as error:
        return Answer(request.name, (), f"{type(error).__name__}: {error}")
    error = None
    if len(tokens) != request.max_tokens:
        error = f"{len(tokens)} of {request.max_tokens} tokens came"
    return Answer(request.name, tuple(tokens), error, tuple(logprobs), prompt_tokens)


def hang_up(port: int, request: Request, place: str, seconds: float) -> str | None:
    """Send a request and close the connection before its answer is complete.

    Args:
        port: Of the server.
        request: To be sent. A stream is closed once a part of its answer has come.
        place: As for `send`.
        seconds: How long to wait before closing the connection of one that is no stream.

    Returns:
        What went wrong before that, if anything did.
    """
    try:
        with _sent(port, request, place) as connection:
            if not request.stream:
                time.sleep(seconds)
                return None
            response = connection.getresponse()
            if response.status != http.client.OK:
                return f"status {response.status}"
            message = next(_messages(response, stream=True), None)
            return None if message and "choices" in message else f"{message} came first"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


@contextmanager
def _sent(port: int, request: Request, place: str) -> Iterator[http.client.HTTPConnection]:
    """Send a request; close its connection at the end, whatever has come until then.

    Args:
        port: Of the server.
        request: To be sent.
        place: As for `send`.
    """
    body = {
        "model": "tiny",
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": request.stream,
        **request.body(),
    }
    headers = {"Content-Type": "application/json", "X-Request-Id": place}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", request.path, json.dumps(body), headers)
        yield connection
    finally:
        connection.close()


def _messages(response: http.client.HTTPResponse, stream: bool) -> Iterator[dict[str, Any]]:
    """Yield the one JSON object of a plain answer, or those of a stream of events.

    Args:
        response: Its head has been read.
        stream: Whether the server sends events.
    """
    if not stream:
        yield json.loads(response.read())
        return
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if data and data != "[DONE]":
            yield json.loads(data)
