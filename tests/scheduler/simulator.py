"""Plays a workload on a real scheduler: its clients act when their time has come."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tests.scheduler.record import Conversation, Run, describe
from tests.scheduler.simulation import Simulation
from tests.scheduler.workloads import Workload


class Playback:
    """Lets the clients of `simulation` act by themselves until nothing is left to do.

    `resets` are the steps before which the prefix cache is reset, `early_return_share` is how often
    the oldest frame is home before the queue is full; `seed` says when.
    """

    def __init__(
        self,
        simulation: Simulation,
        seed: int,
        resets: Collection[int] = (),
        early_return_share: float = 0.0,
    ) -> None:
        self.simulation = simulation
        self._conversations = simulation.run_record.conversations
        self._resets = resets
        self._early_return_share = early_return_share
        self._random = random.Random(seed)

    def run(self) -> Run:
        """Run to the end, a crash or a stall, and return the record."""
        try:
            while not self._is_over():
                self._clients_act()
                self.simulation.step(returns_early=self._returns_early())
                for talk in self.simulation.take_answered():
                    self._plan_next(talk, self.simulation.step_number)
        except Exception as error:
            self.simulation.run_record.crash = describe(error)
        return self.simulation.end()

    def _is_over(self) -> bool:
        if self.simulation.is_stalled:
            return True
        return self.simulation.is_idle and not any(
            not talk.is_over or talk.waits_for_answer for talk in self._conversations
        )

    def _returns_early(self) -> bool:
        is_scheduling = self.simulation.scheduler.has_requests()
        return is_scheduling and self._random.random() < self._early_return_share

    def _clients_act(self) -> None:
        now = self.simulation.step_number
        if now in self._resets:
            self.simulation.reset()
        for talk in self._conversations:
            if talk.aborted:
                continue
            if talk.next_at is not None and talk.next_at <= now:
                self._send(talk)
            client = talk.client
            hangs_up_at = client.segments[0].delay + (client.aborts_after or 0)
            if client.aborts_after is not None and now >= hangs_up_at:
                self.simulation.abort(talk)

    def _send(self, talk: Conversation) -> None:
        talk.next_at = None
        is_the_end = talk.sent == len(talk.client.segments)
        self.simulation.send(talk)
        if not is_the_end and self._comes_early(talk):
            self._plan_next(talk, self.simulation.step_number + 1)

    def _comes_early(self, talk: Conversation) -> bool:
        if talk.sent == len(talk.client.segments):
            return talk.client.closes_early
        return talk.client.segments[talk.sent].early

    def _plan_next(self, talk: Conversation, step: int) -> None:
        """Say when the client sends what comes next; its delay counts from `step` on."""
        if talk.closed or talk.next_at is not None:
            return
        left = talk.client.segments[talk.sent :]
        talk.next_at = step + (left[0].delay if left else 1)


def simulate(workload: Workload, seed: int, **setup: Any) -> Run:
    """Run `workload` with `setup` changed: the depth of the queue and the view, usually.

    `seed` decides what the workload leaves open.
    """
    simulation = Simulation(replace(workload.setup, **setup), seed)
    simulation.worker.bogus_share = workload.bogus_share
    for client in workload.clients:
        simulation.join(client).next_at = client.segments[0].delay
    return Playback(simulation, seed, workload.resets, workload.early_return_share).run()
