"""The counters of all processes of a server, on the server's own ``/metrics``.

Guards act in EngineCore and in workers; another process serves ``/metrics``. There a collector adds
up what the processes of the same run have written to the state folder. A collector, because vLLM up
to 0.23 unregisters every metric that has "vllm" in its name.

prometheus_client is vLLM's requirement and not ours: it is imported here only after vLLM's module
has imported it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_guard import runs
from vllm_guard.log import logger
from vllm_guard.private_folder import NotPrivate
from vllm_guard.process_report import ProcessReport
from vllm_guard.report_reader import read_run
from vllm_guard.targets import Patch, Target, judge
from vllm_guard.this_process import is_alive

if TYPE_CHECKING:
    from prometheus_client.core import Metric

TRIGGERS = "vllm_guard_triggers"
INTERNAL_ERRORS = "vllm_guard_internal_errors"
INFO = "vllm_guard"
EFFECTIVE = "vllm_guard_effective"

_SEVERAL_PROCESSES = Target(
    "prometheus_client.multiprocess", "MultiProcessCollector.collect", ("self",)
)


class Collector:
    """Gives the counters of a run to a registry of prometheus_client.

    Args:
        folder: The state folder; None: the default one.
        run: The run of this process.
        make_report: Returns the report of this process as it is now.
    """

    def __init__(
        self, folder: Path | None, run: str, make_report: Callable[[], ProcessReport]
    ) -> None:
        self._folder = folder
        self._run = run
        self._make_report = make_report

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values: what a registry asks for to find name clashes."""
        return _Families().all()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics; takes a millisecond or so, and never raises."""
        families = _Families()
        try:
            families.fill(list(self._reports()))
        except Exception:
            logger.exception("vllm-guard: its metrics are incomplete")
        return families.all()

    def _reports(self) -> Iterator[ProcessReport]:
        # From memory: newer than its file, and there even where no file can be written.
        own = self._make_report()
        yield own
        try:
            with runs.open_run(self._folder, self._run, make=False) as folder:
                for report in read_run(folder):
                    if isinstance(report, ProcessReport) and report.pid != own.pid:
                        yield report
        except (OSError, NotPrivate):
            # The publisher of this process works on the same folder and has said what is wrong.
            return


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        self.triggers = CounterMetricFamily(
            TRIGGERS,
            "How often a guard acted: how often the upstream fault met this server's traffic.",
            labels=["guard", "reason", "action"],
        )
        self.internal_errors = CounterMetricFamily(
            INTERNAL_ERRORS,
            "Errors in a guard itself; vLLM went on as if the guard were not there.",
            labels=["guard"],
        )
        self.info = InfoMetricFamily(
            INFO,
            "What a guard found and does in each running process of this server.",
            labels=["guard", "verdict", "state", "process"],
        )
        self.effective = GaugeMetricFamily(
            EFFECTIVE,
            "Whether calls reach a guard that should act (1) or do not (0); since the first"
            " Scheduler or model runner of the process was built.",
            labels=["guard", "process"],
        )

    def all(self) -> list[Metric]:
        return [self.triggers, self.internal_errors, self.info, self.effective]

    def fill(self, reports: list[ProcessReport]) -> None:
        triggers: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        errors: defaultdict[str, int] = defaultdict(int)
        infos: set[tuple[str, str, str, str]] = set()
        effective: dict[tuple[str, str], bool] = {}
        for report in reports:
            alive = is_alive(report.pid, report.started)
            for name, guard in report.guards.items():
                errors[name] += guard.internal_errors
                for trigger in guard.triggers:
                    triggers[name, trigger.reason, trigger.action] += trigger.times
                # What a process did counts for ever; what it is ends with it.
                if alive:
                    infos.add((name, guard.verdict, guard.state, report.role))
                if alive and guard.effective is not None:
                    key = (name, report.role)
                    effective[key] = guard.effective and effective.get(key, True)
        for labels, count in sorted(triggers.items()):
            self.triggers.add_metric(labels, count)
        for name, count in sorted(errors.items()):
            self.internal_errors.add_metric([name], count)
        for values in sorted(infos):
            self.info.add_metric(values, {})
        for pair, is_effective in sorted(effective.items()):
            self.effective.add_metric(pair, is_effective)


class Endpoint:
    """Puts the collector behind the ``/metrics`` of this process.

    Args:
        collector: What to put there.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._is_registered = False
        self._patch: Patch | None = None

    def attach(self) -> None:
        """Begin; prometheus_client has been imported."""
        from prometheus_client import REGISTRY, multiprocess

        REGISTRY.register(self._collector)
        self._is_registered = True
        # With several API servers every scrape makes a registry of its own, with nothing in it
        # but prometheus_client's collector of the metrics of several processes.
        if judge(_SEVERAL_PROCESSES, multiprocess) is None:
            self._patch = Patch(_SEVERAL_PROCESSES, multiprocess, self._with_ours)
            self._patch.apply()

    def detach(self) -> None:
        """Undo what `attach` did."""
        if self._patch is not None:
            self._patch.undo()
            self._patch = None
        if self._is_registered:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(self._collector)
            self._is_registered = False

    def _with_ours(
        self, wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any
    ) -> Iterable[Metric]:
        return [*wrapped(*args, **kwargs), *self._collector.collect()]
