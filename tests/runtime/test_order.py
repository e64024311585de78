"""Every order of importing vLLM, registering and taking the guards out again."""

from __future__ import annotations

import pytest

from tests.runtime.inside import DEAD, METHODS, RIGHT
from tests.runtime.process import Miniature
from vllm_guard.settings import GUARD_NAMES, guard_variable

ALL = list(METHODS)


def test_without_the_guard_the_engine_dies(miniature: Miniature) -> None:
    """Else the tests of this folder would show nothing."""
    assert miniature.run("report(serve())").result == DEAD


def test_register_then_import(miniature: Miniature) -> None:
    """The order of a real process: armed first, applied by the import."""
    outcome = miniature.run("""
        vllm_guard.register()
        before = state()
        import vllm.v1.core.sched.scheduler
        report([before, state(), wrapped(), serve()])
    """)
    assert outcome.result == ["armed", "applied", ALL, RIGHT]


def test_import_then_register(miniature: Miniature) -> None:
    """What is imported completely is patched at once."""
    outcome = miniature.run("""
        import vllm.v1.core.sched.async_scheduler
        vllm_guard.register()
        report([state(), wrapped(), serve()])
    """)
    assert outcome.result == ["applied", ALL, RIGHT]


def test_registering_imports_nothing_of_vllm(miniature: Miniature) -> None:
    """Not even the package; what it would import is vLLM's decision."""
    outcome = miniature.run("""
        vllm_guard.register()
        report(sorted({name.partition(".")[0] for name in sys.modules} & {"vllm", "torch"}))
    """)
    assert outcome.result == []


@pytest.mark.parametrize("place", ["before", "after"])
def test_registering_twice_wraps_once(miniature: Miniature, place: str) -> None:
    """Plugins are loaded several times; the second time changes and says nothing."""
    code = ["vllm_guard.register()", "vllm_guard.register()"]
    code.insert({"before": 2, "after": 0}[place], "import vllm.v1.core.sched.scheduler")
    outcome = miniature.run("\n".join([*code, "report(wrapped())"]))
    assert outcome.result == ALL
    assert len(outcome.lines("INFO")) == 1


@pytest.mark.parametrize("imported", ["before", "after"])
def test_unpatching_restores_the_exact_objects(miniature: Miniature, imported: str) -> None:
    """Whether they were wrapped at once or by the import; the fault is back with them."""
    miniature.append("originals = dict(vars(Scheduler))\n")
    steps = ["import vllm.v1.core.sched.scheduler as target", "vllm_guard.register()"]
    steps = steps if imported == "before" else steps[::-1]
    restored = """
applied = wrapped()
vllm_guard.unpatch()
same = [vars(target.Scheduler)[name] is found for name, found in target.originals.items()]
report([applied, wrapped(), all(same), len(same) > 5, vllm_guard.status()["guards"], serve()])
"""
    outcome = miniature.run("\n".join(steps) + restored)
    assert outcome.result == [ALL, [], True, True, {}, DEAD]


def test_unpatching_before_the_import_disarms(miniature: Miniature) -> None:
    """Nothing is wrapped by an import that comes later."""
    outcome = miniature.run("""
        vllm_guard.register()
        vllm_guard.unpatch()
        import vllm.v1.core.sched.scheduler
        report([wrapped(), serve()])
    """)
    assert outcome.result == [[], DEAD]


def test_unpatching_what_was_never_registered_is_nothing(miniature: Miniature) -> None:
    """Nor is doing it twice."""
    outcome = miniature.run("""
        vllm_guard.unpatch()
        vllm_guard.register()
        vllm_guard.unpatch()
        vllm_guard.unpatch()
        report(vllm_guard.status()["enabled"])
    """)
    assert outcome.result is False


@pytest.mark.parametrize("place", range(5))
def test_registering_again_applies_again(miniature: Miniature, place: int) -> None:
    """Wherever the import happens between register, unpatch, register."""
    steps = ["vllm_guard.register()", "vllm_guard.unpatch()", "vllm_guard.register()", ""]
    steps.insert(place, "import vllm.v1.core.sched.scheduler")
    outcome = miniature.run("\n".join([*steps, "report([state(), wrapped(), serve()])"]))
    assert outcome.result == ["applied", ALL, RIGHT]


def test_registering_again_reads_the_environment_again(miniature: Miniature) -> None:
    """That is how a guard is switched off in a running process."""
    outcome = miniature.run("""
        import os
        import vllm.v1.core.sched.scheduler
        vllm_guard.register()
        vllm_guard.unpatch()
        os.environ["VLLMGUARD_CLAMP"] = "off"
        vllm_guard.register()
        report([state(), wrapped()])
    """)
    assert outcome.result == ["off", []]


@pytest.mark.parametrize("switches", [["VLLMGUARD"], [*map(guard_variable, GUARD_NAMES)]])
@pytest.mark.parametrize("strict", ["0", "1"])
def test_switched_off_means_nothing_is_wrapped_anywhere(
    miniature: Miniature, switches: list[str], strict: str
) -> None:
    """Neither before nor after the import, no finder is left, and strict has nothing to ask."""
    outcome = miniature.run(
        """
        finders = list(sys.meta_path)
        vllm_guard.register()
        import vllm.v1.core.sched.scheduler
        report([wrapped(), sys.meta_path == finders, state(), serve()])
        """,
        VLLMGUARD_STRICT=strict,
        **dict.fromkeys(switches, "off"),
    )
    assert outcome.result == [[], True, "off", DEAD]


def test_observing_counts_and_lets_the_engine_do_what_it_does(miniature: Miniature) -> None:
    """It dies as before, and the log says of what."""
    outcome = miniature.run(
        "vllm_guard.register(); died = serve();"
        "report([died, state(), vllm_guard.status()['guards']['clamp']['triggers']])",
        VLLMGUARD_CLAMP="observe",
    )
    died, observing, triggers = outcome.result
    assert (died, observing) == (DEAD, "observing")
    assert triggers["prefill-token"] == {"observed": 1}


def test_the_first_trigger_is_in_the_log_and_the_rest_follows_at_the_end(
    miniature: Miniature,
) -> None:
    """Two of the five frames bring a token that they may not deliver."""
    outcome = miniature.run("vllm_guard.register(); report(serve())")
    first, last = outcome.lines("WARNING")
    assert "request r: 1 token(s) returned" in first
    assert "prefill-token, blanked" in first
    assert "1 more of prefill-token" in last


def test_one_line_at_the_start_says_what_is_in_force(miniature: Miniature) -> None:
    """The build, the guard, its state and the verdict."""
    outcome = miniature.run(
        "import vllm.v1.core.sched.scheduler; vllm_guard.register(); report(serve())"
    )
    (line,) = outcome.lines("INFO")
    assert "vLLM 0.20.0+das.dtk2604 (release 0.20.0, Hygon DCU)" in line
    assert "clamp applied, verdict needed" in line


BREAK = """
def fail(*args):
    raise RuntimeError("ours")
import vllm_guard.runtime
vllm_guard.{broken} = fail
vllm_guard.register()
"""


def test_registering_never_raises(miniature: Miniature) -> None:
    """vLLM calls plugins without a ``try``; the engine starts without us, and a line says so."""
    outcome = miniature.run(
        BREAK.format(broken="runtime.start") + "died = serve(); report([died, wrapped()])",
        swallows=True,
    )
    assert outcome.result == [DEAD, []]
    assert "vllm-guard could not start; vLLM runs without it" in outcome.log


def test_a_version_that_cannot_be_found_out_does_not_stop_the_guards(miniature: Miniature) -> None:
    """It is for the log line only."""
    outcome = miniature.run(
        BREAK.format(broken="installed.find") + "report([serve(), state()])", swallows=True
    )
    assert outcome.result == [RIGHT, "applied"]
