"""The same on the real vLLM of this environment.

Importing it takes seconds, so one process does that and each program runs in a fork of it: a
fresh process that has vLLM loaded, the scheduler's own module excepted, and nothing of ours.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.releases.isolated import REPOSITORY
from tests.runtime.inside import METHODS
from tests.runtime.process import run_program

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="no vLLM is installed for this Python"
)

ENTRY_POINTS = "[vllm.general_plugins]\nvllm_guard = vllm_guard:register\n"

ORDER = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from tests.runtime.inside import *
from vllm_guard.targets import unwrapped
armed = state()
import vllm.v1.core.sched.scheduler
applied = [state(), wrapped()]
originals = [list(unwrapped(found))[-1] for found in attributes()]
vllm_guard.unpatch()
restored = [now is then for now, then in zip(attributes(), originals)]
vllm_guard.register()
verdict = vllm_guard.status()["guards"]["clamp"]["verdict"]
result = [armed, applied, restored, [state(), wrapped()], verdict]
"""

HALF_IMPORTED = """
from tests.runtime.inside import *
import wrapt
during = []
@wrapt.when_imported("vllm.v1.core.sched.request_queue")
def in_the_middle(module):
    during.append(hasattr(sys.modules[SCHEDULER], "Scheduler"))
    vllm_guard.register()
    during.append(state())
import vllm.v1.core.sched.scheduler
import vllm.v1.core.sched.async_scheduler
result = [during, state(), wrapped()]
"""

THREADS = """
from tests.runtime.inside import *
import importlib, threading
vllm_guard.register()
names = [SCHEDULER, "vllm.v1.core.sched.async_scheduler", SCHEDULER]
found, barrier = [], threading.Barrier(len(names))
def load(name):
    barrier.wait()
    importlib.import_module(name)
    found.append([state(), wrapped()])
threads = [threading.Thread(target=load, args=[name]) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
result = found
"""

NEW_MODULES = """
import sys
import vllm.v1.core.sched.scheduler
before = set(sys.modules)
import vllm_guard
vllm_guard.register()
new = {name.partition(".")[0] for name in set(sys.modules) - before}
from tests.runtime.inside import *
result = {"new": sorted(new), "state": state()}
"""

PROGRAMS = {"order": ORDER, "half": HALF_IMPORTED, "new": NEW_MODULES, "threads": THREADS}

LOAD_AND_FORK = """
import multiprocessing, sys
import vllm.plugins, vllm.v1.core.kv_cache_manager, vllm.v1.structured_output
assert "vllm.v1.core.sched.scheduler" not in sys.modules
assert not {"vllm_guard", "wrapt"} & set(sys.modules)
context = multiprocessing.get_context("fork")

def run(code, queue):
    names = {}
    exec(code, names)
    queue.put([names["result"], [repr(error) for error in names["swallowed"].take()]])

def fork(code):
    queue = context.SimpleQueue()
    child = context.Process(target=run, args=(code, queue))
    child.start()
    child.join()
    assert child.exitcode == 0
    result, swallowed = queue.get()
    assert swallowed == []
    return result

results = {name: fork(code) for name, code in PROGRAMS.items()}
from tests.runtime.inside import report
report(results)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, its bytecode and its entry point, as if installed."""
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "vllm_guard", folder / "vllm_guard", ignore=ignored)
    shutil.copytree(REPOSITORY / "patches", folder / "vllm_guard" / "patches")
    info = folder / "vllm_guard-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-guard\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture(scope="module")
def results(site: Path) -> dict[str, Any]:
    """What each program gave, by name."""
    outcome = run_program(
        f"PROGRAMS = {PROGRAMS!r}\n{LOAD_AND_FORK}",
        paths=(site,),
        environment={"VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"},
        prelude="",
        timeout=120,
    )
    found: dict[str, Any] = outcome.result
    return found


def test_vllm_finds_and_runs_us_and_every_order_works(results: dict[str, Any]) -> None:
    """Through its own plugin loader; then unpatched to the exact objects and applied again."""
    applied = ["applied", list(METHODS)]
    assert results["order"] == ["armed", applied, [True] * len(METHODS), applied, "needed"]


def test_a_scheduler_module_that_is_half_imported(results: dict[str, Any]) -> None:
    """Registered while it runs its own imports: patched when it is complete."""
    assert results["half"] == [[False, "armed"], "applied", list(METHODS)]


def test_registering_imports_nothing_of_vllm_or_torch(results: dict[str, Any]) -> None:
    """Not even where the target is there and is probed and patched at once."""
    assert results["new"]["state"] == "applied"
    assert not {"vllm", "torch", "prometheus_client"} & set(results["new"]["new"])


def test_threads_that_import_at_once(results: dict[str, Any]) -> None:
    """Each target is wrapped once, before any of them goes on."""
    assert results["threads"] == [["applied", list(METHODS)]] * 3
