"""Clients that keep a server busy until they are told to stop; some hang up."""

from __future__ import annotations

import random
import threading

from tests.engine.load import Completion, Request, crowd, hang_up, mixed_rounds, send
from tests.engine.server import BATCHED_TOKENS
from tests.engine.soaked import Tally

CLIENTS = 12
SHORT_PROMPTS = 24
HANG_UP_SHARE = 0.15
HANG_UP_SECONDS = 0.4


def prompts() -> list[Request]:
    """Return the prompts that are sent again and again: long and short ones, streamed and not."""
    mixed = [request for requests in mixed_rounds() for request in requests]
    return [*mixed, *crowd()[:SHORT_PROMPTS]]


def warm_up(port: int) -> None:
    """Have a batch of each possible size computed once.

    oneDNN keeps a program for each layer and size, 200 MiB of them; in traffic the last sizes come
    up after minutes only, and a worker would not look steady before.

    Args:
        port: Of the server.
    """
    for size in range(1, BATCHED_TOKENS + 1):
        send(port, Completion(f"size-{size}", (3,) * size, 1, stream=False), f"size.{size}")


class Traffic:
    """As many requests at a time as there are clients, for as long as it is entered.

    Who gets no answer, or half of one, stops: that is enough for the verdict.

    Args:
        port: Of the server.
    """

    def __init__(self, port: int) -> None:
        self.tally = Tally()
        self._port = port
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._prompts = prompts()
        self._clients = [
            threading.Thread(target=self._be_client, args=(number,), daemon=True)
            for number in range(CLIENTS)
        ]

    def __enter__(self) -> Traffic:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the answers to what has been sent."""
        self._enough.set()
        for client in self._clients:
            client.join()

    @property
    def goes_on(self) -> bool:
        """Whether no client has stopped by itself."""
        return all(client.is_alive() for client in self._clients)

    def _be_client(self, number: int) -> None:
        generator = random.Random(number)
        sent = 0
        while not self._enough.is_set():
            prompt = generator.choice(self._prompts)
            seconds = generator.uniform(0, HANG_UP_SECONDS)
            hangs_up = generator.random() < HANG_UP_SHARE
            if self._send(prompt, f"client.{number}.{sent}", seconds if hangs_up else None):
                return
            sent += 1

    def _send(self, prompt: Request, place: str, patience: float | None) -> str | None:
        """Send a request, and return why it failed if it did.

        Args:
            prompt: To be sent.
            place: Becomes part of the request's id.
            patience: Seconds after which the client hangs up; None: it waits for the answer.
        """
        if patience is not None:
            error = hang_up(self._port, prompt, place, patience)
            with self._lock:
                self.tally.count_hang_up(prompt.name, error)
            return error
        answer = send(self._port, prompt, place)
        with self._lock:
            self.tally.count(answer.name, answer.tokens, answer.error)
        return answer.error
