"""What the processes of a server counted, as a scrape of its registry shows it."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server import (
    Process,
    act_and_be_killed,
    act_and_end,
    another_server,
    child,
    wait_until,
)
from vllm_guard.metrics import Collector, Endpoint
from vllm_guard.process_report import GuardReport, ProcessReport, Trigger, encode
from vllm_guard.this_process import leave_run

prometheus = pytest.importorskip("prometheus_client")
multiprocess = pytest.importorskip("prometheus_client.multiprocess")
parser = pytest.importorskip("prometheus_client.parser")

Samples = dict[tuple[str, ...], float]
LABELS = ("guard", "reason", "action", "verdict", "state", "process")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def process(folder: Path) -> Iterator[Process]:
    started = Process(folder)
    started.publisher.begin()
    yield started
    started.publisher.end()
    leave_run(started.publisher.run)


@pytest.fixture
def collector(process: Process, folder: Path) -> Collector:
    return Collector(folder, process.publisher.run, process.report)


def scrape(collector: Collector) -> Samples:
    """Return the samples of a scrape by name and values of labels, as Prometheus reads them."""
    registry = prometheus.CollectorRegistry()
    registry.register(collector)
    text = prometheus.generate_latest(registry).decode()
    samples = [sample for f in parser.text_string_to_metric_families(text) for sample in f.samples]
    found = {(s.name, *(s.labels[n] for n in LABELS if n in s.labels)): s.value for s in samples}
    assert len(found) == len(samples), "a sample that occurs twice makes Prometheus drop the scrape"
    return found


def triggers(collector: Collector) -> Samples:
    return {k[1:]: v for k, v in scrape(collector).items() if k[0] == "vllm_guard_triggers_total"}


PREFILL = ("clamp", "prefill-token", "blanked")


def test_a_server_without_triggers_shows_its_guards(collector: Collector) -> None:
    assert scrape(collector) == {
        ("vllm_guard_internal_errors_total", "clamp"): 0,
        ("vllm_guard_info", "clamp", "needed", "applied", "unknown"): 1,
        ("vllm_guard_effective", "clamp", "unknown"): 1,
    }


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_counts_of_all_processes_are_added_up(
    process: Process, collector: Collector, folder: Path, how: str
) -> None:
    process.trigger(3)
    process.trigger(2, reason="id-reuse")
    assert child(how, "EngineCore", act_and_be_killed, folder) == -9
    assert child(how, "VllmWorker-0", act_and_end, folder) == 0
    assert triggers(collector) == {PREFILL: 15, ("clamp", "id-reuse", "blanked"): 2}


def test_ten_thousand_triggers_in_another_process_are_ten_thousand(
    process: Process, collector: Collector, folder: Path
) -> None:
    assert child("fork", "EngineCore", act_ten_thousand_times, folder) == -9
    assert triggers(collector) == {PREFILL: 10_000}


def act_ten_thousand_times(folder: Path) -> None:
    process = Process(folder)
    process.publisher.begin()
    process.trigger(10_000)
    time.sleep(1)
    os.kill(os.getpid(), 9)


def test_a_server_counts_its_own_only(process: Process, collector: Collector, folder: Path) -> None:
    process.trigger()
    with another_server(folder):
        assert triggers(collector) == {PREFILL: 1}


def test_a_counter_never_goes_back_when_an_engine_is_restarted(
    collector: Collector, folder: Path
) -> None:
    seen = []
    for _ in range(3):
        assert child("fork", "EngineCore", act_and_be_killed, folder) == -9
        seen.append(triggers(collector)[PREFILL])
    assert seen == [5, 10, 15]


def be_there(folder: Path, ready: object, end: object) -> None:
    process = Process(folder)
    process.publisher.begin()
    ready.set()  # type: ignore[attr-defined]
    end.wait(30)  # type: ignore[attr-defined]
    os.kill(os.getpid(), 9)


def test_what_a_process_is_ends_with_it(collector: Collector, folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    engine = context.Process(target=be_there, args=(folder, ready, end), name="EngineCore")
    engine.start()
    assert ready.wait(30)
    info = ("vllm_guard_info", "clamp", "needed", "applied", "EngineCore")
    assert scrape(collector)[info] == 1
    end.set()
    engine.join()
    assert info not in scrape(collector)


def add(folder: Path, process: Process, report: ProcessReport) -> Path:
    file = folder / process.publisher.run / f"{report.pid}-{report.started}.json"
    file.write_bytes(encode(report))
    return file


def test_one_of_several_like_processes_that_is_not_effective_shows(
    process: Process, collector: Collector, folder: Path
) -> None:
    for pid, effective in [(os.getppid(), True), (1, False)]:
        guard = GuardReport("needed", "applied", effective, "", (), 0)
        add(folder, process, ProcessReport(pid, 0, "EngineCore", {"clamp": guard}))
    samples = scrape(collector)
    assert samples["vllm_guard_effective", "clamp", "EngineCore"] == 0
    assert samples["vllm_guard_effective", "clamp", "unknown"] == 1


def test_hostile_files_do_not_reach_the_scrape(
    process: Process, collector: Collector, folder: Path
) -> None:
    process.trigger()
    run = folder / process.publisher.run
    guard = GuardReport("needed", "applied", True, "", (Trigger("r", "a", 9, 0.0),), 9)
    good = encode(ProcessReport(7, 0, "EngineCore", {"clamp": guard}))
    (run / "11-0.json").symlink_to("/etc/passwd")
    (run / "12-0.json").write_bytes(good)  # of another process than its name says
    (run / "13-0.json").write_bytes(b"[" * 60_000)
    (run / "14-0.json").write_bytes(good.replace(b'"clamp"', b'"clamp\\"} 1\\nup"'))
    (run / "15-0.json").mkdir()
    os.mkfifo(run / "16-0.json")
    with (run / "17-0.json").open("wb") as file:
        file.truncate(2**40)
    (run / "7-0.json.partial").write_bytes(good)
    assert triggers(collector) == {PREFILL: 1}


def test_its_own_counts_need_no_folder(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    process = Process(tmp_path / "state")
    process.publisher.begin()
    process.trigger(4)
    collector = Collector(tmp_path / "state", process.publisher.run, process.report)
    assert triggers(collector) == {PREFILL: 4}
    process.publisher.end()
    leave_run(process.publisher.run)


def test_a_scrape_of_sixteen_processes_costs_milliseconds(
    process: Process, collector: Collector, folder: Path
) -> None:
    for pid in range(2, 17):
        all_triggers = tuple(Trigger(f"reason-{n}", "blanked", 9, 0.0) for n in range(10))
        guard = GuardReport("needed", "applied", True, "", all_triggers, 0)
        guards = {"clamp": guard, "stale": guard, "mm_merge": guard}
        add(folder, process, ProcessReport(10_000_000 + pid, 0, "EngineCore", guards))
    seconds = min(timed(collector) for _ in range(10))
    assert seconds < 0.05, f"{seconds * 1000:.1f} ms"


def timed(collector: Collector) -> float:
    begin = time.perf_counter()
    list(collector.collect())
    return time.perf_counter() - begin


@pytest.fixture
def endpoint(collector: Collector) -> Iterator[Endpoint]:
    made = Endpoint(collector)
    made.attach()
    yield made
    made.detach()


def shown(registry: Any) -> bool:
    return b"vllm_guard_info" in prometheus.generate_latest(registry)


def make_registry_of_several_servers(folder: Path) -> Any:
    """Do what vLLM and the instrumentator of its /metrics do where several servers serve."""
    registry = prometheus.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(folder))
    return registry


def test_one_server_s_metrics_are_in_the_global_registry(endpoint: Endpoint) -> None:
    assert shown(prometheus.REGISTRY)


def test_each_of_several_servers_has_them_in_every_scrape(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    for _ in range(2):
        assert shown(make_registry_of_several_servers(tmp_path))
    assert not shown(prometheus.CollectorRegistry())


def test_vllm_does_not_unregister_them(endpoint: Endpoint) -> None:
    # What vLLM up to 0.23 takes out when it makes its metrics.
    for collector in list(prometheus.REGISTRY._collector_to_names):
        if hasattr(collector, "_name") and "vllm" in collector._name:
            prometheus.REGISTRY.unregister(collector)
    assert shown(prometheus.REGISTRY)


def test_detaching_leaves_nothing(collector: Collector, tmp_path: Path) -> None:
    original = vars(multiprocess.MultiProcessCollector)["collect"]
    endpoint = Endpoint(collector)
    endpoint.attach()
    endpoint.detach()
    endpoint.detach()
    assert vars(multiprocess.MultiProcessCollector)["collect"] is original
    assert not shown(prometheus.REGISTRY)
    assert not shown(make_registry_of_several_servers(tmp_path))


def test_a_name_that_is_taken_is_left_to_who_has_it(
    endpoint: Endpoint, collector: Collector
) -> None:
    second = Endpoint(collector)
    with pytest.raises(ValueError, match="Duplicated"):
        second.attach()
    second.detach()
    assert shown(prometheus.REGISTRY)


def test_waiting_is_not_needed_for_its_own_counts(process: Process, collector: Collector) -> None:
    process.trigger()
    assert triggers(collector) == {PREFILL: 1}
    wait_until(lambda: process.publisher._requested is False)
