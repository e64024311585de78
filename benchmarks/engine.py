"""What the guards cost a real engine: a tiny model on the CPU, 64 requests at a time.

``python -m benchmarks.engine`` prints a table for the vLLM that is first on the path. Scheduler and
EngineCore are in the benchmark's own process, so that guards can be put in and out between two
blocks of requests; asynchronous scheduling is on, as on an accelerator.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import vllm

from benchmarks.gates import Gate
from benchmarks.paired import ARMS, lines
from tests.engine.model import VOCABULARY, make_model
from tests.engine.server import FAULTS_FOLDER, engine_environment

REQUESTS = 64
PROMPT = 32
TOKENS = 32
LIMIT = 1.01
"""Largest ratio of times: at least 0.99 of the tokens a second."""


class Generating:
    """An engine that answers `REQUESTS` requests at a time.

    Args:
        model: The model's folder.
    """

    def __init__(self, model: Path) -> None:
        self.llm = vllm.LLM(
            str(model),
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=REQUESTS,
            enable_prefix_caching=False,
        )
        self.timed_steps()

    def timed_steps(self) -> dict[str, float]:
        """Have all requests answered and return the seconds that it took."""
        prompts = [
            {"prompt_token_ids": [3 + (7 * r + p) % (VOCABULARY - 3) for p in range(PROMPT)]}
            for r in range(REQUESTS)
        ]
        chosen = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, chosen, use_tqdm=False)
        seconds = time.perf_counter() - start
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == REQUESTS * TOKENS
        return {"generate": seconds}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of blocks")
    gate = Gate(parser)
    options = parser.parse_args()
    os.environ |= engine_environment(
        {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "FAULTS_ASYNC_SCHEDULING": "1",
            # Guards come and go as the benchmark says, not when vLLM loads its plugins.
            "VLLM_PLUGINS": "engine_faults",
        }
    )
    sys.path.insert(0, str(FAULTS_FOLDER))
    print(
        f"vLLM {vllm.__version__}, {options.pairs} pairs, {REQUESTS} requests of {TOKENS} tokens,"
        f" median ratio of times (quartiles)"
    )
    with tempfile.TemporaryDirectory() as folder:
        loads = {f"{REQUESTS} requests": partial(Generating, make_model(Path(folder)))}
        for line, load, arm, _, ratio in lines(loads, ARMS, options.pairs):
            print(line, flush=True)
            if arm == "vllm-guard":
                gate.judge(f"vLLM {vllm.__version__}, engine, {load}", ratio, LIMIT)
    gate.end(options)


if __name__ == "__main__":
    main()
