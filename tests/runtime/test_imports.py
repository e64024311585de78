"""Imports that go wrong, overlap, or have begun before us."""

from __future__ import annotations

from tests.runtime.inside import METHODS, RIGHT
from tests.runtime.process import Miniature

ALL = list(METHODS)


def register_in_the_middle(miniature: Miniature) -> None:
    """Let the scheduler's module call register() before its class exists."""
    miniature.edit(
        "TOKENS_A_FRAME = 4",
        "import vllm_guard\nvllm_guard.register()\n"
        "during = vllm_guard.status()['guards']['clamp']['state']\nTOKENS_A_FRAME = 4",
    )


def test_a_half_imported_module_is_patched_when_it_is_complete(miniature: Miniature) -> None:
    """Not while its class is missing."""
    register_in_the_middle(miniature)
    outcome = miniature.run("""
        import vllm.v1.core.sched.scheduler as target
        report([target.during, serve(), state(), wrapped()])
    """)
    assert outcome.result == ["armed", RIGHT, "applied", ALL]


def test_a_half_imported_module_is_patched_before_its_class_is_used(miniature: Miniature) -> None:
    """Also where nothing more is imported between its end and the first Scheduler."""
    register_in_the_middle(miniature)
    outcome = miniature.run("""
        from vllm.v1.core.sched.scheduler import Scheduler
        Scheduler()
        report(state())
    """)
    assert outcome.result == "applied"


def test_registering_again_in_the_middle_of_the_import(miniature: Miniature) -> None:
    """Armed before, taken out and armed again while the module runs: wrapped once."""
    miniature.edit(
        "TOKENS_A_FRAME = 4",
        "import vllm_guard\nvllm_guard.unpatch()\nvllm_guard.register()\nTOKENS_A_FRAME = 4",
    )
    outcome = miniature.run("""
        vllm_guard.register()
        import vllm.v1.core.sched.scheduler
        import colorsys
        report([state(), wrapped(), serve()])
    """)
    assert outcome.result == ["applied", ALL, RIGHT]


def test_an_import_that_fails_first_and_succeeds_later(miniature: Miniature) -> None:
    """The guard waits for the module that really comes."""
    miniature.edit(
        "TOKENS_A_FRAME = 4",
        "import sys\nif not hasattr(sys, 'device_ready'): raise ImportError('device')\n"
        "TOKENS_A_FRAME = 4",
    )
    outcome = miniature.run("""
        vllm_guard.register()
        try:
            import vllm.v1.core.sched.scheduler
        except ImportError as error:
            failure = str(error)
        between = state()
        sys.device_ready = True
        import vllm.v1.core.sched.scheduler
        report([failure, between, state(), wrapped(), serve()])
    """)
    assert outcome.result == ["device", "armed", "applied", ALL, RIGHT]


def test_a_half_imported_module_that_fails_is_patched_when_it_succeeds(
    miniature: Miniature,
) -> None:
    """Registered in the middle of an import that comes to nothing."""
    miniature.edit(
        "TOKENS_A_FRAME = 4",
        "import sys, vllm_guard\nvllm_guard.register()\n"
        "if not hasattr(sys, 'device_ready'): raise ImportError('device')\nTOKENS_A_FRAME = 4",
    )
    outcome = miniature.run("""
        try:
            import vllm.v1.core.sched.scheduler
        except ImportError:
            sys.device_ready = True
        import vllm.v1.core.sched.scheduler
        report([serve(), state(), wrapped()])
    """)
    assert outcome.result == [RIGHT, "applied", ALL]


def test_an_error_while_looking_never_reaches_the_importer(miniature: Miniature) -> None:
    """Neither the first nor a second import fails, and the guard does not claim to wait."""
    outcome = miniature.run(
        """
        import vllm_guard.definition
        def fail(*args):
            raise RuntimeError("ours")
        vllm_guard.definition.judge = fail
        vllm_guard.register()
        import vllm.v1.core.sched.scheduler
        del sys.modules[SCHEDULER]
        import vllm.v1.core.sched.scheduler
        report(state())
        """,
        swallows=True,
    )
    assert outcome.result == "failed"
    assert "RuntimeError: ours" in outcome.log


def test_a_probe_that_raises_leaves_everything_as_it_was(miniature: Miniature) -> None:
    """The verdict is unknown, nothing is wrapped, the engine runs unguarded, a warning says so."""
    miniature.append("""
        def _raise(self, request, new_token_ids):
            raise RuntimeError(f"no {request.no_such_attribute}")
        Scheduler._update_request_with_output = _raise
    """)
    outcome = miniature.run("""
        from vllm.v1.core.sched.scheduler import Scheduler
        vllm_guard.register()
        applied = wrapped()
        Scheduler()
        report([state(), applied, vllm_guard.status()["guards"]["clamp"]["verdict"]])
    """)
    assert outcome.result == ["skipped", ["__init__"], "unknown"]
    assert [line for line in outcome.lines("WARNING") if "no_such_attribute" in line]


def test_two_threads_that_import_at_once(miniature: Miniature) -> None:
    """One of them runs the module, both get it patched, and nobody waits for ever."""
    miniature.edit("TOKENS_A_FRAME = 4", "import time\ntime.sleep(0.1)\nTOKENS_A_FRAME = 4")
    outcome = miniature.run("""
        import importlib, threading
        vllm_guard.register()
        found = []
        def load():
            found.append(importlib.import_module(SCHEDULER) and wrapped())
        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        report([found, state(), wrapped(), serve()])
    """)
    assert outcome.result == [[ALL, ALL], "applied", ALL, RIGHT]


def test_registering_while_another_thread_imports(miniature: Miniature) -> None:
    """Whichever comes first, the module ends up patched."""
    miniature.edit(
        "TOKENS_A_FRAME = 4",
        "import sys, time\nsys.importing.set()\ntime.sleep(0.1)\nTOKENS_A_FRAME = 4",
    )
    outcome = miniature.run("""
        import importlib, threading
        sys.importing = threading.Event()
        thread = threading.Thread(target=importlib.import_module, args=[SCHEDULER])
        thread.start()
        sys.importing.wait()
        vllm_guard.register()
        during = state()
        thread.join()
        report([during, serve(), state(), wrapped()])
    """)
    assert outcome.result == ["armed", RIGHT, "applied", ALL]


def test_a_fork_of_a_patched_process_is_guarded_and_counts_its_own(miniature: Miniature) -> None:
    """vLLM forks EngineCore from a process that has loaded the plugins."""
    outcome = miniature.run("""
        import multiprocessing
        vllm_guard.register()
        serve()
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=lambda: queue.put([state(), serve()]))
        child.start()
        child.join()
        report(queue.get())
    """)
    assert outcome.result == ["applied", RIGHT]
    first, *summaries = outcome.lines("WARNING")
    assert "prefill-token, blanked" in first
    # Two triggers each: the child ends first and begins to count, and to warn, from nothing.
    assert [line for line in summaries if "2 more" in line or "3 more" in line] == []
    assert len([line for line in summaries if "prefill-token, blanked" in line]) == 1
    assert len([line for line in summaries if "1 more of prefill-token" in line]) == 2


def test_each_module_of_a_guard_is_considered_when_it_comes(miniature: Miniature) -> None:
    """A guard's modules are imported at different times; all or nothing goes by module."""
    outcome = miniature.run("""
        from vllm_guard.states import Finding, Verdict
        from vllm_guard.targets import Target
        later = "vllm.v1.core.sched.async_scheduler"
        targets = (
            Target(SCHEDULER, "Scheduler.schedule", ("self",)),
            Target(later, "AsyncScheduler._update_after_schedule", ("self", "scheduled")),
        )
        def call(wrapped, instance, args, kwargs):
            return wrapped(*args, **kwargs)
        definition = vllm_guard.runtime.DEFINITIONS[0]
        vllm_guard.runtime.DEFINITIONS = (definition._replace(
            faults=("prefill-token",),
            targets=targets,
            probe=lambda module, _: {"prefill-token": Finding(Verdict.NEEDED, module.__name__)},
            wrappers=lambda guard: {target.path: call for target in targets},
        ),)
        vllm_guard.register()
        import vllm.v1.core.sched.scheduler
        first = wrapped()
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        second = vars(AsyncScheduler)["_update_after_schedule"]
        faults = vllm_guard.status()["guards"]["clamp"]["faults"]
        report([first, hasattr(second, "__wrapped__"), state(), list(faults)])
    """)
    assert outcome.result == [["__init__", "schedule"], True, "applied", ["prefill-token"]]
