"""The guards' metrics of a running server, read as Prometheus reads them."""

from __future__ import annotations

import http.client
import time
from collections import Counter
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Trigger = tuple[str, str, str]


@dataclass
class Scrape:
    """What one scrape showed of the guards.

    Args:
        triggers: Counts by guard, reason and action.
        states: The state of each guard by process.
        effective: Whether a guard is effective by process and guard, where that is known.
        seconds: How long the answer took.
    """

    triggers: Counter[Trigger] = field(default_factory=Counter)
    states: dict[str, dict[str, str]] = field(default_factory=dict)
    effective: dict[tuple[str, str], bool] = field(default_factory=dict)
    internal_errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def scrape(port: int) -> Scrape:
    """Ask the server on this machine for its metrics.

    Args:
        port: Of the server.
    """
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = read(text)
    found.seconds = time.monotonic() - begin
    return found


def read(text: str) -> Scrape:
    """Return what metrics in the text format show of the guards."""
    found = Scrape()
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if name == "vllm_guard_triggers_total":
                found.triggers[labels["guard"], labels["reason"], labels["action"]] += int(value)
            elif name == "vllm_guard_internal_errors_total":
                found.internal_errors[labels["guard"]] += int(value)
            elif name == "vllm_guard_info":
                found.states.setdefault(labels["process"], {})[labels["guard"]] = labels["state"]
            elif name == "vllm_guard_effective":
                found.effective[labels["process"], labels["guard"]] = bool(value)
    return found
