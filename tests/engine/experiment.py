"""Run one arm of an experiment."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine.arms import Arm
from tests.engine.load import Round, crowd, mixed_rounds, send_round
from tests.engine.outcome import Outcome
from tests.engine.server import HEALTHY, Server

DEATH_SECONDS = 30
# Blocks so small that requests of the crowd need new ones all the time, and a limit that even a
# small cache of them can hold.
CROWD_OPTIONS = ("--block-size", "16", "--max-model-len", "128")
IMAGE_OPTIONS = ("--max-num-seqs", "32", "--limit-mm-per-prompt", '{"image": 1, "video": 0}')


@dataclass(frozen=True)
class Experiment:
    """What all arms have in common.

    Args:
        model: The model's folder.
        python: Interpreter of the environment whose vLLM serves.
        rounds: What is sent, round after round.
        options: Of the server's command line.
    """

    model: Path
    python: Path = Path(sys.executable)
    rounds: Sequence[Round] = field(default_factory=mixed_rounds)
    options: Sequence[str] = ()

    def run(self, arm: Arm, folder: Path) -> Outcome:
        """Start a server, send it all rounds, look at it, and stop it.

        Args:
            arm: Makes the server what it is.
            folder: For log and records; made here.
        """
        begin = time.monotonic()
        outcome = Outcome(arm, folder)
        outcome.records_folder.mkdir(parents=True)
        environment = arm.environment(outcome.records_folder)
        options = [*self.options, *arm.options()]
        with Server(self.python, self.model, outcome.log_file, options, environment) as server:
            for requests in self.rounds:
                outcome.look_at(server)
                outcome.answers += send_round(server.port, requests)
            outcome.preemptions = server.counter("vllm:num_preemptions")
            if server.health() != HEALTHY:
                # A dying server answers for a little while.
                outcome.exit_code = server.wait_for_exit(DEATH_SECONDS)
            outcome.health = server.health()
            outcome.look_at(server)
        outcome.seconds = time.monotonic() - begin
        return outcome


def crowd_experiment(model: Path, python: Path) -> Experiment:
    """Return the experiment in which a small KV cache makes vLLM preempt requests.

    Args:
        model: The model's folder.
        python: Interpreter of the environment whose vLLM serves.
    """
    return Experiment(model, python, [crowd()], CROWD_OPTIONS)


def image_experiment(model: Path, python: Path, rounds: Sequence[Round]) -> Experiment:
    """Return an experiment with questions about images.

    Args:
        model: The folder of a model that takes images.
        python: Interpreter of the environment whose vLLM serves.
        rounds: What is asked.
    """
    return Experiment(model, python, rounds, IMAGE_OPTIONS)
