"""What it costs that guards are seen from outside: ``python -m benchmarks.reporting``.

Prints a line for each of: counting a trigger without and with a state file, writing the file,
and a scrape of a server of 4, 16 and 64 processes. Needs prometheus_client, and no vLLM.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from vllm_guard.counters import Counters
from vllm_guard.metrics import Collector
from vllm_guard.process_report import GuardReport, ProcessReport, Trigger, encode
from vllm_guard.publishing import Publisher
from vllm_guard.this_process import role, start_time

TRIGGERS = 10_000
RUNS = 21
GUARDS = ("clamp", "stale", "mm_merge")


def _report(pid: int, counters: Counters) -> ProcessReport:
    last = counters.last()
    triggers = tuple(
        Trigger(reason, action, times, last[reason])
        for reason, actions in counters.as_dict().items()
        for action, times in actions.items()
    )
    guard = GuardReport("needed", "applied", True, "", triggers, 0)
    return ProcessReport(pid, start_time(pid), role(), dict.fromkeys(GUARDS, guard))


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _trigger(counters: Counters) -> None:
    for _ in range(TRIGGERS):
        counters.record("prefill-token", "blanked", "request r")


def _print_triggers(folder: Path) -> Publisher:
    _print_trigger("alone", Counters("clamp"))
    publisher = Publisher(folder, lambda: _report(1, published), _raise)
    published = Counters("clamp", changed=publisher.request)
    publisher.begin()
    _print_trigger("with its file", published)
    return publisher


def _print_trigger(title: str, counters: Counters) -> None:
    seconds = median(_seconds(lambda: _trigger(counters)) for _ in range(RUNS))
    print(f"a trigger, {title}: {1e6 * seconds / TRIGGERS:.2f} us")


def _raise(error: Exception) -> None:
    raise error


def _print_write(publisher: Publisher) -> None:
    def write() -> None:
        publisher._written = b""
        publisher.publish()

    print(f"writing the file: {1e3 * median(_seconds(write) for _ in range(RUNS)):.2f} ms")


def _print_scrapes(folder: Path, publisher: Publisher) -> None:
    counters = Counters("clamp")
    for number in range(8):
        counters.record(f"reason-{number}", "blanked", "request r")
    collector = Collector(folder, publisher.run, lambda: _report(1, counters))
    for processes in (4, 16, 64):
        for pid in range(2, processes + 1):
            file = folder / publisher.run / f"{pid}-0.json"
            file.write_bytes(encode(_report(pid, counters)._replace(started=0)))
        seconds = median(_seconds(lambda: list(collector.collect())) for _ in range(RUNS))
        print(f"a scrape of {processes} processes: {1e3 * seconds:.2f} ms")


def main() -> None:
    """Measure and print."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "state")
        publisher = _print_triggers(folder)
        _print_write(publisher)
        _print_scrapes(folder, publisher)
        publisher.end()


if __name__ == "__main__":
    main()
