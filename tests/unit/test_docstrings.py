"""The examples in docstrings are true, on every Python and without vLLM."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import vllm_guard

MODULES = [
    found.name
    for found in pkgutil.walk_packages(vllm_guard.__path__, "vllm_guard.")
    # Importing that one runs the command.
    if found.name != "vllm_guard.__main__"
]
WITH_EXAMPLES = [
    name
    for name in MODULES
    if (spec := importlib.util.find_spec(name))
    and spec.origin
    and ">>> " in Path(spec.origin).read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module, report=True)
    assert found.attempted > 0
    assert found.failed == 0


def test_what_users_read_of_first_has_examples() -> None:
    assert {"vllm_guard.settings", "vllm_guard.installed", "vllm_guard.states"} <= {*WITH_EXAMPLES}
