"""The dashboard and the alert rules ask for metrics and labels that a scrape has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_guard.process_report import GuardReport, ProcessReport, Trigger
from vllm_guard.states import State, Verdict

prometheus = pytest.importorskip("prometheus_client")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "grafana"
ADDED_BY_PROMETHEUS = {"instance", "job"}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each sample that the collector gives."""
    from vllm_guard.metrics import Collector

    guard = GuardReport("needed", "applied", True, "", (Trigger("r", "a", 1, 0.0),), 1)
    report = ProcessReport(1, 0, "EngineCore", {"clamp": guard})
    collector = Collector(Path("/nonexistent"), "1-0", lambda: report)
    samples = [sample for family in collector.collect() for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def strings(found: Any) -> Iterator[str]:
    """Yield every text in a JSON document."""
    if isinstance(found, dict):
        found = list(found.values())
    for inner in found if isinstance(found, list) else ():
        yield from strings(inner)
    if isinstance(found, str):
        yield found


def dashboard() -> Any:
    return json.loads((FOLDER / "dashboard.json").read_text())


def expressions() -> list[str]:
    """Return all PromQL of dashboard and rules."""
    rules = re.findall(r"expr: \|\n(.*?)\n {8}\w", (FOLDER / "alerts.yml").read_text(), re.DOTALL)
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    assert len(rules) == 2
    return [*rules, *panels]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_asks_for_what_is_there(
    expression: str, exported: dict[str, set[str]]
) -> None:
    names = set(re.findall(r"\bvllm_guard_\w+", expression))
    assert names
    assert names <= exported.keys()
    labels = set().union(*(exported[name] for name in names)) | ADDED_BY_PROMETHEUS
    grouped = [name for by in re.findall(r"by \(([^)]*)\)", expression) for name in by.split(", ")]
    matched = re.findall(r"(\w+)=~?\"", expression)
    assert {*grouped, *matched} <= labels


def test_every_metric_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    shown = " ".join(strings(dashboard()))
    assert all(name in shown for name in exported)


def test_values_of_labels_are_words_of_the_code() -> None:
    words = {"verdict": {v.value for v in Verdict}, "state": {s.value for s in State}}
    found = re.findall(r"(verdict|state)=~\"([\w|]+)\"", (FOLDER / "alerts.yml").read_text())
    assert {label for label, _ in found} == set(words)
    for label, values in found:
        assert set(values.split("|")) <= words[label]


def test_panels_have_ids_and_titles_of_their_own() -> None:
    panels = dashboard()["panels"]
    for key in ("id", "title"):
        assert len({panel[key] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)
