"""A program that uses vLLM without a server, and what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.arms import FAULT_GUARDED
from tests.engine.load import Completion, mixed_rounds
from tests.engine.scrape import Scrape, read
from tests.engine.server import FAULTS_FOLDER, engine_environment
from tests.faults.engine_faults.records import read_records

REPOSITORY = Path(__file__).resolve().parents[2]
WRITTEN_SECONDS = 1.0
TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Layout:
    """How the program runs vLLM.

    Args:
        name: For people.
        engines: How its engines run and end, one after the other: how processes are started, and
            ``kill`` or ``shutdown``.
        environment: Variables that make it so.
    """

    name: str
    engines: Sequence[tuple[str, str]]
    environment: dict[str, str] = field(default_factory=dict)


SEVERAL_PROCESSES = Layout(
    "an engine of forked processes, which are killed, then one of spawned processes",
    (("fork", "kill"), ("spawn", "shutdown")),
)
IN_PROCESS = Layout(
    "EngineCore in the program's own process",
    (("spawn", "shutdown"),),
    {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
)


@dataclass(frozen=True)
class Program:
    """What was seen of the program.

    Args:
        answers: By engine, the tokens of each request.
        serving: By engine, the metrics after its requests.
        ended: By engine, the metrics after its end.
        injected: How many bogus tokens the workers returned.
        left: What is in the state folder when the program has ended.
        log: Everything its processes printed.
    """

    answers: list[list[list[int]]]
    serving: list[Scrape]
    ended: list[Scrape]
    injected: int
    left: list[Path]
    log: str


def run(model: Path, layout: Layout, folder: Path) -> Program:
    """Run the program with faults injected into its workers.

    Args:
        model: The model's folder.
        layout: How it runs vLLM.
        folder: For everything it writes.
    """
    records, state = folder / "records", folder / "state"
    records.mkdir()
    environment = engine_environment(
        FAULT_GUARDED.environment(records)
        | layout.environment
        | {
            "VLLMGUARD_STATE_DIR": str(state),
            "PYTHONPATH": f"{FAULTS_FOLDER}:{REPOSITORY}",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    )
    engines = ["/".join(engine) for engine in layout.engines]
    command = [sys.executable, "-m", "tests.engine.offline", str(model), str(folder), *engines]
    log = folder / "program.log"
    with log.open("wb") as output:
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
    found = [json.loads((folder / f"{n}.json").read_text()) for n in range(len(engines))]
    return Program(
        [engine["answers"] for engine in found],
        [read(engine["serving"]) for engine in found],
        [read(engine["ended"]) for engine in found],
        sum(record["injected"] for record in read_records(records, "injected")),
        list(state.rglob("*")),
        log.read_text(errors="replace"),
    )


def main() -> None:
    """Be the program: one engine after the other."""
    model, folder, *engines = sys.argv[1:]
    for number, engine in enumerate(engines):
        start, end = engine.split("/")
        os.environ["FAULTS_START_METHOD"] = start
        # The same requests each time, and so the same answers.
        found = _use_engine(model, end, mixed_rounds()[0])
        Path(folder, f"{number}.json").write_text(json.dumps(found))


def _use_engine(model: str, end: str, requests: Sequence[Completion]) -> dict[str, Any]:
    import psutil
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        enable_prefix_caching=False,
    )
    outputs = llm.generate(
        [{"prompt_token_ids": list(request.prompt)} for request in requests],
        [
            SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
            for request in requests
        ],
        use_tqdm=False,
    )
    time.sleep(WRITTEN_SECONDS)
    serving = _metrics()
    children = psutil.Process().children(recursive=True)
    if end == "kill":
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
    else:
        llm.llm_engine.engine_core.shutdown()
    del llm
    psutil.wait_procs(children, timeout=30)
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    return {"answers": answers, "serving": serving, "ended": _metrics()}


def _metrics() -> str:
    import prometheus_client

    return prometheus_client.generate_latest().decode()


if __name__ == "__main__":
    main()
