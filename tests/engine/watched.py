"""A server whose metrics are watched while faults are injected."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine.arms import FAULT_GUARDED
from tests.engine.load import Answer, mixed_rounds, send_round
from tests.engine.scrape import Scrape, Trigger, scrape
from tests.engine.server import FAULTS_FOLDER, Server
from tests.faults.engine_faults.records import read_records
from vllm_guard import installed
from vllm_guard.cli import processes
from vllm_guard.cli.formats.standing import running_lines

WRITTEN_SECONDS = 1.0
SERVE = ("vllm.entrypoints.cli.main", "serve")


@dataclass(frozen=True)
class Layout:
    """Which processes a server consists of.

    Args:
        name: For people.
        options: Of its command line.
        module: What is run, with the first of its arguments.
        start_method: How processes are started, ``fork`` or ``spawn``.
        state_folder: Where its processes are to write; None: a folder of the test's own.
    """

    name: str
    options: Sequence[str] = ()
    module: Sequence[str] = ("vllm.entrypoints.openai.api_server",)
    start_method: str = "fork"
    state_folder: str | None = None


ONE_OF_EACH = Layout("API server, EngineCore, worker")
SEVERAL = Layout(
    "two API servers, EngineCore, two workers",
    ("--api-server-count", "2", "--tensor-parallel-size", "2"),
    SERVE,
    "spawn",
)
NOT_WRITABLE = Layout("a state folder that cannot be written to", state_folder="/proc")


@dataclass
class Watched:
    """What was seen of a server.

    Args:
        answers: To all requests.
        scrapes: One before the first round, then several after each.
        counted: What EngineCore's guards said after each round.
        shown: What ``vllm-guard status`` showed of it at the end.
        left: What is in the state folder when it has stopped.
        log: Everything its processes printed.
    """

    answers: list[Answer] = field(default_factory=list)
    scrapes: list[list[Scrape]] = field(default_factory=list)
    counted: list[Counter[Trigger]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)
    log: str = ""


def watch(model: Path, layout: Layout, folder: Path) -> Watched:
    """Run a server, send it two rounds of requests with injected faults, and scrape it.

    Args:
        model: The model's folder.
        layout: Makes the server what it is.
        folder: For everything it writes; made here.
    """
    records, state, log = folder / "records", folder / "state", folder / "server.log"
    records.mkdir(parents=True)
    environment = FAULT_GUARDED.environment(records) | {
        "VLLMGUARD_STATE_DIR": layout.state_folder or str(state),
        "FAULTS_START_METHOD": layout.start_method,
        # Several workers would each want a core of their own.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{FAULTS_FOLDER}:{_metadata_of_vllm(folder / 'site')}",
    }
    watched = Watched()
    python = Path(sys.executable)
    with Server(python, model, log, layout.options, environment, module=layout.module) as server:
        watched.scrapes.append([scrape(server.port)])
        for requests in mixed_rounds():
            watched.answers += send_round(server.port, requests)
            time.sleep(WRITTEN_SECONDS)
            # Each goes to one of the API servers.
            watched.scrapes.append([scrape(server.port) for _ in range(8)])
            watched.counted.append(_counted(records))
        watched.shown = list(running_lines(processes.read(state)))
    watched.left = list(state.rglob("*"))
    watched.log = log.read_text(errors="replace")
    return watched


def _counted(records: Path) -> Counter[Trigger]:
    (status,) = read_records(records, "guard")
    return Counter(
        {
            (guard, reason, action): count
            for guard, found in status["guards"].items()
            for reason, actions in found["triggers"].items()
            for action, count in actions.items()
        }
    )


def _metadata_of_vllm(folder: Path) -> Path:
    """Return a folder with what ``vllm serve`` asks for: a distribution of the name vllm."""
    build = installed.find()
    assert build is not None
    version = f"{build.version}+cpu"
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder
