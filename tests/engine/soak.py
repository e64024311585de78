"""A server under continuous traffic and injected faults: does anything keep growing?

``python -m tests.engine.soak --minutes 10``               guards on, faults injected
``python -m tests.engine.soak --minutes 10 --unguarded``   neither: what vLLM does by itself

Prints a table of the server's processes and what became of the requests. Exit code 0: all is well;
1: not so, and the last lines say what and where logs and samples are.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from demo.report import show_table
from tests.engine.arms import Arm
from tests.engine.model import VOCABULARY, make_model
from tests.engine.sampling import INTERVAL, Sampler
from tests.engine.scrape import Scrape, scrape
from tests.engine.server import FAULTS_FOLDER, Server
from tests.engine.soaked import Soaked
from tests.engine.steadiness import Course, Sample
from tests.engine.traffic import Traffic, warm_up
from tests.faults.engine_faults.records import read_records
from tools.environment import CHECKOUT

FAULT_SHARE = 0.05
# All that 16 sequences of the longest kind need: no request is preempted. Memory of a cache as
# large as the server's own would be touched for the first time for minutes.
CACHE_BLOCKS = 160
GUARDED = Arm("faults, guards", fault=True, guard=True, cache_blocks=CACHE_BLOCKS)
UNGUARDED = Arm("neither", fault=False, guard=False, cache_blocks=CACHE_BLOCKS)
WARM_UP_SHARE = 0.5
SCRAPE_SECONDS = 5.0
WRITTEN_SECONDS = 1.0
MEMORY_LIMITS = {"APIServer": 1000.0, "EngineCore": 1000.0, "Worker": 1000.0}
"""KiB a minute. In its second minute vLLM itself, with neither guards nor faults, still grows by
220 to 400 (``--unguarded`` prints it); of a thousand requests a minute, 1 KiB each is too much."""
HEADINGS = (
    "process",
    "samples",
    "first MiB",
    "last MiB",
    "PSS MiB",
    "KiB/minute",
    "descriptors",
    "threads",
)


def soak(model: Path, arm: Arm, minutes: float, folder: Path) -> Soaked:
    """Start a server, keep it busy, watch it, and stop it.

    Args:
        model: The model's folder.
        arm: `GUARDED` or `UNGUARDED`.
        minutes: Of traffic, the warm-up included.
        folder: For everything that is written.
    """
    records, state, log = folder / "records", folder / "state", folder / "server.log"
    records.mkdir(parents=True)
    environment = _environment(arm, records, state)
    with Server(Path(sys.executable), model, log, arm.options(), environment) as server:
        warm_up(server.port)
        sampler = Sampler(server, state)
        with Traffic(server.port) as traffic:
            scrapes = _watch(server, sampler, traffic, 60 * minutes)
        time.sleep(WRITTEN_SECONDS)
        scrapes += _scraped(server)
    with (folder / "samples.csv").open("w", newline="") as file:
        csv.writer(file).writerows(sampler.rows())
    courses, not_lasting = sampler.courses(60 * minutes * WARM_UP_SHARE)
    return Soaked(
        guard=arm.guard,
        fault=arm.fault,
        minutes=minutes,
        tally=traffic.tally,
        courses=courses,
        not_lasting=not_lasting,
        unfinished=_recorded(records, "injected", "unfinished_chunks"),
        injected=_recorded(records, "injected", "injected"),
        gone=_recorded(records, "gone", "gone"),
        scrapes=scrapes,
        state=sampler.state,
        left=list(state.rglob("*")),
        log_lines=log.read_text(errors="replace").count(" vllm-guard "),
    )


def _environment(arm: Arm, records: Path, state: Path) -> dict[str, str]:
    return arm.environment(records) | {
        "FAULTS_TOKEN_RATE": str(FAULT_SHARE if arm.fault else 0),
        "FAULTS_TOKEN": str(VOCABULARY),
        "FAULTS_BY_REQUEST": "0",
        "VLLMGUARD_STATE_DIR": str(state),
        # The guards are those of this checkout, also where another one is installed.
        "PYTHONPATH": f"{FAULTS_FOLDER}:{CHECKOUT}",
        # The clients, the API server and EngineCore need the cores too.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }


def _watch(server: Server, sampler: Sampler, traffic: Traffic, seconds: float) -> list[Scrape]:
    """Look at the server while there is traffic; end early if there is none any more."""
    begin = time.monotonic()
    scrapes = [scrape(server.port)]
    for moment in count(begin, INTERVAL):
        time.sleep(max(0.0, moment - time.monotonic()))
        passed = time.monotonic() - begin
        if passed >= seconds or not traffic.goes_on:
            break
        sampler.sample()
        if passed >= SCRAPE_SECONDS * len(scrapes):
            scrapes += _scraped(server)
    return scrapes


def _scraped(server: Server) -> list[Scrape]:
    """Return the metrics; none of a server that has died, about which clients say more."""
    try:
        return [scrape(server.port)]
    except (OSError, http.client.HTTPException):
        return []


def _recorded(records: Path, kind: str, name: str) -> int:
    return sum(record[name] for record in read_records(records, kind))


def show(soaked: Soaked) -> None:
    """Print what the server did.

    Args:
        soaked: It.
    """
    show_table([HEADINGS, *(_row(role, course) for role, course in soaked.courses.items())])
    tally = soaked.tally
    print(
        f"\nrequests: {tally.answered} answered, {len(tally.failures)} failed,"
        f" {tally.hung_up} given up by their clients"
        f"\nanswers compared with the first one to their prompt: {tally.compared},"
        f" {len(tally.different)} different"
        f"\nbogus tokens: {soaked.injected} in {soaked.unfinished} unfinished prompt chunks,"
        f" {soaked.gone} of them for requests that had gone"
        f"\ntriggers on /metrics: {soaked.triggers}, in {len(soaked.scrapes)} scrapes"
        f"\nstate files: at most {max(size.files for size in soaked.state)},"
        f" of at most {max(size.largest for size in soaked.state)} bytes;"
        f" {len(soaked.left)} left at the end"
        f"\nlines that guards logged: {soaked.log_lines} (limit {soaked.log_limit})",
        flush=True,
    )


def _row(role: str, course: Course) -> tuple[str, ...]:
    first, last = course.samples[0], course.samples[-1]

    def counts(number: Callable[[Sample], int]) -> str:
        return f"{number(first)}/{max(map(number, course.samples))}/{number(last)}"

    return (
        role,
        str(len(course.samples)),
        f"{first.rss / 1024:.1f}",
        f"{last.rss / 1024:.1f}",
        f"{last.pss / 1024:.1f}",
        f"{course.memory_slope:+.0f}",
        counts(lambda sample: sample.descriptors),
        counts(lambda sample: sample.threads),
    )


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of traffic; half is warm-up")
    parser.add_argument("--unguarded", action="store_true", help="no guards and no faults")
    options = parser.parse_args()
    arm = UNGUARDED if options.unguarded else GUARDED
    folder = Path(tempfile.mkdtemp(prefix="vllm-guard-soak-"))
    print(f"{arm.name}: {options.minutes:g} minutes of traffic, half of them warm-up", flush=True)
    soaked = soak(make_model(folder / "model"), arm, options.minutes, folder / "soak")
    show(soaked)
    complaints = soaked.complaints(MEMORY_LIMITS)
    if complaints:
        print("\nThis was wrong:", *(f"  {text}" for text in complaints), sep="\n")
        print(f"Log, records and samples: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
