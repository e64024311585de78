"""Run everything of this folder on the vLLM that is first on the path and print one JSON result.

`python -m tests.embeddings.run [--examples N] [--self-faults]`
"""

from __future__ import annotations

import argparse

import vllm

import vllm_guard
from tests.embeddings import cases, media, merges, self_faults, shapes
from tests.releases.isolated import print_result


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50, help="random batches")
    parser.add_argument("--self-faults", action="store_true", help="errors of our own as well")
    options = parser.parse_args()
    print_result(
        {
            "vllm_file": vllm.__file__,
            "gather": cases.outcomes(options.examples),
            "merges": merges.outcomes(),
            "shapes": shapes.outcomes(),
            "reused_keys": media.outcomes(),
            "self_faults": self_faults.outcomes() if options.self_faults else None,
        }
    )
    vllm_guard.unpatch()


if __name__ == "__main__":
    main()
