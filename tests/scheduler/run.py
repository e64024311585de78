"""Run scenarios on the vLLM that is first on the path and print one JSON result.

`python -m tests.scheduler.run [--scenario NAME] [--arm NAME]`; without options, everything.
"""

from __future__ import annotations

import argparse

import vllm

from tests.releases.isolated import print_result
from tests.scheduler.arms import run_arm
from tests.scheduler.experiment import Arm
from tests.scheduler.outputs import labels_per_prompt_logprobs
from tests.scheduler.scenarios import SCENARIOS


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument("--arm", action="append", choices=[arm.value for arm in Arm])
    options = parser.parse_args()
    names = options.scenario or list(SCENARIOS)
    arms = [Arm(arm) for arm in options.arm or [arm.value for arm in Arm]]
    outcomes = {
        name: {
            arm.value: run_arm(SCENARIOS[name], arm) for arm in SCENARIOS[name].arms if arm in arms
        }
        for name in names
    }
    print_result(
        {
            "vllm_file": vllm.__file__,
            "vllm_version": vllm.__version__,
            "labels_per_prompt_logprobs": labels_per_prompt_logprobs(),
            "outcomes": outcomes,
        }
    )


if __name__ == "__main__":
    main()
