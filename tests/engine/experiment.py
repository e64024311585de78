"""Run one arm of the experiment."""

from __future__ import annotations

import time
from pathlib import Path

from tests.engine.arms import Arm
from tests.engine.load import ROUNDS, round_of_requests, send_round
from tests.engine.outcome import Outcome
from tests.engine.server import HEALTHY, Server

DEATH_SECONDS = 30


def run_arm(arm: Arm, model: Path, folder: Path) -> Outcome:
    """Start a server, send it all rounds, look at it, and stop it.

    Args:
        arm: With or without fault and guard.
        model: The model's folder.
        folder: For log and records; made here.
    """
    begin = time.monotonic()
    outcome = Outcome(arm, folder)
    outcome.records_folder.mkdir(parents=True)
    environment = arm.environment(outcome.records_folder)
    with Server(model, outcome.log_file, environment) as server:
        for number in range(ROUNDS):
            outcome.engine_processes.append(server.engine_core())
            outcome.answers += send_round(server.port, round_of_requests(number))
        if server.health() != HEALTHY:
            # A dying server answers for a little while.
            outcome.exit_code = server.wait_for_exit(DEATH_SECONDS)
        outcome.health = server.health()
        outcome.engine_processes.append(server.engine_core())
    outcome.seconds = time.monotonic() - begin
    return outcome
