"""Log lines under the logging that vLLM configures, JSON included, in a flood of triggers."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_guard.counters import INTERVAL, Counters
from vllm_guard.log import logger


class JsonFormatter(logging.Formatter):
    """As a ``VLLM_LOGGING_CONFIG_PATH`` file names one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"level": record.levelname, "logger": record.name, "text": record.getMessage()}
        return json.dumps(fields)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The file that everything of vLLM goes to: a handler of the logger ``vllm`` and no other."""
    file = tmp_path / "vllm.log"
    vllm = logging.getLogger("vllm")
    before = vllm.handlers[:], vllm.level, vllm.propagate
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": JsonFormatter}},
            "handlers": {
                "file": {"class": "logging.FileHandler", "filename": file, "formatter": "json"}
            },
            "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
        }
    )
    yield file
    vllm.handlers[0].close()
    vllm.handlers[:], vllm.level, vllm.propagate = before


def lines(log: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_ten_thousand_triggers_are_at_most_twelve_lines_of_vllm_s_own_log(log: Path) -> None:
    now = 0.0
    counters = Counters("clamp", lambda: now)
    for number in range(10_000):
        counters.record("prefill-token", "blanked", f"request r{number}: 1 token(s)")
        now += 10 * INTERVAL / 10_000
    counters.flush()
    found = lines(log)
    assert 2 <= len(found) <= 12
    assert {line["logger"] for line in found} == {"vllm.vllm_guard"}
    assert found[-1]["text"].endswith("10000 in all.")


def test_vllm_s_level_decides_whether_each_trigger_is_a_line(log: Path) -> None:
    logging.getLogger("vllm").setLevel(logging.DEBUG)
    counters = Counters("clamp")
    for _ in range(5):
        counters.record("prefill-token", "blanked", "request r")
    assert [line["level"] for line in lines(log)] == ["WARNING"] + 4 * ["DEBUG"]


def test_nothing_is_configured_here() -> None:
    assert logger.name == "vllm.vllm_guard"
    assert logger.level == logging.NOTSET
    assert logger.propagate
