"""The README in two languages has the same commands, names and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.unit.site_folder import REPOSITORY
from vllm_guard import settings

ENGLISH = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHINESE = (REPOSITORY / "README.zh-CN.md").read_text(encoding="utf-8")


def variables(text: str) -> set[str]:
    return set(re.findall(r"\bVLLM_?GUARD\w*|\bVLLM_[A-Z_]+\b", text)) - {"VLLMGUARD_RUN"}


def commands(text: str) -> set[str]:
    """In a sentence or at the beginning of a line of an example."""
    return set(re.findall(r"(?:^|`)(make \w+|vllm-guard \w+|pip install \.)", text, re.MULTILINE))


def log_lines(text: str) -> list[str]:
    """The blocks at the top, which people search for."""
    return re.findall(r"^```\n((?:EngineCore|ValueError).*?)^```", text, re.MULTILINE | re.DOTALL)


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"\bvllm_guard_\w+", text))


def guards_by_row(text: str) -> list[str]:
    """The guard of each row of the tables, in order."""
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


def options(text: str) -> set[str]:
    return set(re.findall(r"`--[a-z-]+|(?<= )--[a-z-]+", text)) - {"--format"}


@pytest.mark.parametrize(
    "found_in",
    [variables, commands, log_lines, metric_names, guards_by_row],
    ids=lambda f: f.__name__,
)
def test_both_say_the_same(found_in: Callable[[str], object]) -> None:
    assert found_in(ENGLISH)
    assert found_in(CHINESE) == found_in(ENGLISH)


def test_the_chinese_page_names_no_option_that_the_english_does_not() -> None:
    assert options(CHINESE) <= options(ENGLISH)


def test_each_links_to_the_other() -> None:
    assert "](README.zh-CN.md)" in ENGLISH
    assert "](README.md)" in CHINESE


def test_every_switch_is_named() -> None:
    known = {settings.PREFIX, *map(settings.guard_variable, settings.GUARD_NAMES)}
    assert known <= variables(CHINESE)
