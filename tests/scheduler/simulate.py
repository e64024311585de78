"""Run simulated workloads on a vLLM release and print what failed, as one JSON.

`python -m tests.scheduler.simulate --seeds 200 --family kv-pressure --depth 2 --guards both`
runs on the vLLM that is first on the path; `--release 0.23.0` runs on that one, in a subprocess.
A failure is found again by release, family, depth, view and seed: `--only SEED`.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tests.releases.isolated import print_result, run_isolated
from tests.scheduler.families import FAMILIES
from tests.scheduler.guarding import GUARDS

TIMEOUT_SECONDS = 3600
VIEWS = ("v1", "v2")


def make_importable() -> None:
    """Let every release be imported beside a newer torch."""
    import torch

    # 0.17.1 asks for it while it is imported.
    if not hasattr(torch._C._cpu, "_is_avx512_supported"):
        torch._C._cpu._is_avx512_supported = lambda: False


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--seeds", type=int, default=20, help="run seeds 0 to N-1")
    made.add_argument("--only", type=int, action="append", help="run this seed only")
    made.add_argument("--family", action="append", choices=FAMILIES, help="default: all")
    made.add_argument(
        "--depth", type=int, action="append", help="size of the batch queue; default: 2 and 3"
    )
    made.add_argument("--view", action="append", choices=VIEWS, help="default: both")
    made.add_argument("--guards", action="append", choices=GUARDS, help="default: both")
    made.add_argument("--release", help="default: the vLLM that is first on the path")
    return made


def run_here(options: argparse.Namespace) -> dict[str, Any]:
    """Run what the command line asks for on the vLLM that is imported."""
    make_importable()
    import vllm

    from tests.scheduler.adapter import (
        can_guard_preemption,
        default_depths,
        drafts_outlive_preemption,
        drops_stale_frames,
        has_model_runner_v2,
        staggers_decodes,
    )
    from tests.scheduler.campaign import PipelineShape, run_arm

    views = [view for view in options.view or VIEWS if view == "v1" or has_model_runner_v2()]
    pipelines = [
        PipelineShape(depth, view) for depth in options.depth or default_depths() for view in views
    ]
    families = options.family or list(FAMILIES)
    seeds = options.only or range(options.seeds)
    arms = {
        guards: run_arm(guards, families, pipelines, seeds) for guards in options.guards or ["both"]
    }
    return {
        "vllm_file": vllm.__file__,
        "vllm_version": vllm.__version__,
        "staggers_decodes": staggers_decodes(),
        "drops_stale_frames": drops_stale_frames(),
        "guard_takes_drafts": can_guard_preemption() and drafts_outlive_preemption(),
        "arms": arms,
    }


def main() -> None:
    """Run here, or in a subprocess on the release asked for."""
    options = parser().parse_args()
    if options.release is None:
        print_result(run_here(options))
        return
    arguments = ["-m", "tests.scheduler.simulate", *_without_release(sys.argv[1:])]
    result = run_isolated(options.release, arguments, timeout=TIMEOUT_SECONDS)
    print(json.dumps(result, indent=1))


def _without_release(arguments: list[str]) -> list[str]:
    place = next(i for i, word in enumerate(arguments) if word.startswith("--release"))
    return arguments[:place] + arguments[place + (1 if "=" in arguments[place] else 2) :]


if __name__ == "__main__":
    main()
