"""What processes tell each other: from the entry point to the file, the metrics and the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.inside import RIGHT
from tests.runtime.process import Miniature

# The helpers of the programs below. A fork inherits them, a spawned child imports them.
HELPERS = """
import json, multiprocessing, os, signal, time
from pathlib import Path
from tests.runtime.inside import *
from vllm_guard import report_reader
from vllm_guard.cli import processes
from vllm_guard.cli.formats.standing import running_lines

STATE = Path(os.environ["VLLMGUARD_STATE_DIR"])

def reports():
    return {report.role: report for _, found in report_reader.read_all(STATE) for report in found}

def clamp(role):
    return reports()[role].guards["clamp"]

def counted(role):
    return {t.reason: t.times for t in clamp(role).triggers} if role in reports() else {}

def engine():
    vllm_guard.register()
    assert serve() == RIGHT
    while counted("EngineCore") != {"prefill-token": 2}:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

def run_engine(how):
    child = multiprocessing.get_context(how).Process(target=engine, name="EngineCore")
    child.start()
    child.join()
    return child.exitcode

def scrape():
    import prometheus_client
    from vllm.v1.metrics.prometheus import get_prometheus_registry
    text = prometheus_client.generate_latest(get_prometheus_registry()).decode()
    return [line for line in text.splitlines() if line.startswith("vllm_guard_triggers_total")]
"""


@pytest.fixture
def helpers(tmp_path: Path) -> Path:
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


def test_a_process_writes_down_what_its_guards_do(miniature: Miniature, helpers: Path) -> None:
    outcome = miniature.run(
        """
        from helpers import *
        vllm_guard.register()
        before = clamp("unknown")
        serve()
        while not clamp("unknown").triggers:
            time.sleep(0.01)
        after = clamp("unknown")
        report([[g.verdict, g.state, g.effective] for g in (before, after)]
            + [counted("unknown"), abs(after.triggers[0].last - time.time()) < 60])
        """,
        paths=(helpers,),
    )
    assert outcome.result == [
        ["unasked", "armed", None],
        ["needed", "applied", True],
        {"prefill-token": 2},
        True,
    ]


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize("imported", ["before", "after"])
@pytest.mark.parametrize("servers", ["one", "several"])
def test_triggers_of_an_engine_that_is_killed_are_on_the_metrics_of_its_server(
    miniature: Miniature, helpers: Path, how: str, imported: str, servers: str
) -> None:
    """Whether the module behind /metrics was there before the guards or not; after a restart too.

    Several API servers have a registry each.
    """
    pytest.importorskip("prometheus_client")
    first = "from vllm.v1.metrics.prometheus import get_prometheus_registry"
    (helpers / "main.py").write_text(
        f"from helpers import *\n"
        f"{first if imported == 'before' else ''}\n"
        f"if __name__ == '__main__':\n"
        f"    vllm_guard.register()\n"
        f"    codes = [run_engine({how!r}) for _ in range(2)]\n"
        f"    report([codes, scrape()])\n"
    )
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(helpers)} if servers == "several" else {}
    outcome = miniature.run(
        f"import runpy; runpy.run_path({str(helpers / 'main.py')!r}, run_name='__main__')"
        if how == "fork"
        else f"""
        import subprocess
        ended = subprocess.run(
            [sys.executable, {str(helpers / "main.py")!r}], stdout=subprocess.PIPE, check=True)
        print(ended.stdout.decode(), flush=True)
        """,
        paths=(helpers,),
        **environment,
    )
    sample = 'vllm_guard_triggers_total{action="blanked",guard="clamp",reason="prefill-token"} 4.0'
    assert outcome.result == [[-9, -9], [sample]]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_server_that_ends_leaves_an_empty_folder(
    miniature: Miniature, helpers: Path, how: str
) -> None:
    """Though its engine, which is ended by a signal while the server ends, cleans up nothing."""
    (helpers / "main.py").write_text(
        f"from helpers import *\n"
        f"def engine():\n"
        f"    vllm_guard.register()\n"
        f"    serve()\n"
        f"    time.sleep(60)\n"
        f"if __name__ == '__main__':\n"
        f"    vllm_guard.register()\n"
        f"    context = multiprocessing.get_context({how!r})\n"
        f"    context.Process(target=engine, name='EngineCore', daemon=True).start()\n"
        f"    while not counted('EngineCore'):\n"
        f"        time.sleep(0.01)\n"
    )
    outcome = miniature.run(
        f"""
        from helpers import *
        import subprocess
        subprocess.run([sys.executable, {str(helpers / "main.py")!r}], check=True)
        report(os.listdir(STATE))
        """,
        paths=(helpers,),
    )
    assert outcome.result == []


def test_a_replaced_guard_is_seen_from_outside(
    miniature: Miniature, helpers: Path, vendor: Path
) -> None:
    """Not effective, with who replaced what; on /metrics and by the command."""
    outcome = miniature.run(
        """
        from helpers import *
        vllm_guard.register()
        import vendor
        from vllm.v1.core.sched.scheduler import Scheduler
        vendor.schedule.__globals__["original"] = lambda self: None
        vendor.replace()
        Scheduler()
        report([clamp("unknown").effective, list(running_lines(processes.read(STATE)))])
        """,
        paths=(helpers, vendor),
    )
    effective, lines = outcome.result
    assert effective is False
    shown = [line.strip() for line in lines]
    at = shown.index("clamp      verdict needed    state applied   NOT EFFECTIVE")
    assert shown[at + 1] == "Scheduler.schedule was replaced by vendor:schedule"


def test_a_tracer_on_top_leaves_a_guard_effective(miniature: Miniature, helpers: Path) -> None:
    """One that wraps with wrapt, as tracers do, before the Scheduler is built."""
    outcome = miniature.run(
        """
        from helpers import *
        import wrapt
        vllm_guard.register()
        import vllm.v1.core.sched.scheduler
        traced = []
        for name in ("Scheduler.schedule", "Scheduler.update_from_output"):
            @wrapt.patch_function_wrapper(SCHEDULER, name)
            def trace(wrapped, instance, args, kwargs):
                traced.append(wrapped.__name__)
                return wrapped(*args, **kwargs)
        report([serve(), clamp("unknown").effective, len(traced)])
        """,
        paths=(helpers,),
    )
    assert outcome.result == [RIGHT, True, 10]


@pytest.mark.parametrize("switch", ["VLLMGUARD", "guards"])
def test_switched_off_nothing_is_written(miniature: Miniature, helpers: Path, switch: str) -> None:
    guards = ("VLLMGUARD_CLAMP", "VLLMGUARD_STALE", "VLLMGUARD_MM_MERGE")
    outcome = miniature.run(
        """
        from helpers import *
        vllm_guard.register()
        serve()
        report([list(STATE.iterdir()), "VLLMGUARD_RUN" in os.environ])
        """,
        paths=(helpers,),
        **dict.fromkeys(guards if switch == "guards" else (switch,), "off"),
    )
    assert outcome.result == [[], False]


def test_unpatching_leaves_nothing_behind(miniature: Miniature, helpers: Path) -> None:
    """No file, no variable; and registering again begins a new run."""
    outcome = miniature.run(
        """
        from helpers import *
        vllm_guard.register()
        serve()
        before = os.environ["VLLMGUARD_RUN"]
        vllm_guard.unpatch()
        left = [list(STATE.iterdir()), "VLLMGUARD_RUN" in os.environ]
        vllm_guard.register()
        report([*left, os.environ["VLLMGUARD_RUN"] != before, list(reports())])
        """,
        paths=(helpers,),
    )
    assert outcome.result == [[], False, True, ["unknown"]]


def test_an_unusable_folder_changes_nothing_for_the_engine(
    miniature: Miniature, helpers: Path
) -> None:
    outcome = miniature.run(
        """
        vllm_guard.register()
        report([serve(), state(), effective()])
        """,
        VLLMGUARD_STATE_DIR="/proc",
    )
    assert outcome.result == [RIGHT, "applied", True]
    assert len([line for line in outcome.lines("WARNING") if "cannot be shown" in line]) == 1


@pytest.mark.parametrize("copies", ["one", "two"])
def test_two_copies_of_the_plugin_apply_once(
    miniature: Miniature, tmp_path: Path, copies: str
) -> None:
    """Such as a stale egg-info beside a wheel: vLLM calls every entry point that it finds."""
    entry = "[vllm.general_plugins]\nvllm_guard = vllm_guard:register\n"
    names = ["vllm_guard-0.1.0.dist-info", "vllm_guard.egg-info", "vllm_guard_old-0.0.1.dist-info"]
    for name in names if copies == "two" else names[:1]:
        folder = tmp_path / "site" / name
        folder.mkdir(parents=True)
        distribution = "vllm-guard-old" if "old" in name else "vllm-guard"
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n"
        (folder / ("PKG-INFO" if "egg" in name else "METADATA")).write_text(metadata)
        (folder / "entry_points.txt").write_text(entry)
    outcome = miniature.run(
        """
        from importlib.metadata import entry_points
        plugins = [p for p in entry_points(group="vllm.general_plugins") if p.name == "vllm_guard"]
        for plugin in plugins:
            plugin.load()()
        import vllm.v1.core.sched.scheduler
        report([len(plugins) > 1, wrapped(), serve()])
        """,
        paths=(tmp_path / "site",),
    )
    several, wrapped, tokens = outcome.result
    assert several or copies == "one"
    assert len(wrapped) == len(set(wrapped))
    assert tokens == RIGHT
    assert len([line for line in outcome.lines("INFO") if "(pid " in line]) <= 2
