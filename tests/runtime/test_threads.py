"""Threads that import, register, unpatch and fork while others do something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.inside import METHODS, RIGHT
from tests.runtime.process import Miniature

ROUNDS = 40
GUARDED = ["applied", list(METHODS), []]

HELPERS = """
import importlib, os, random, threading, time
from functools import partial
from types import SimpleNamespace
import vllm_guard
from tests.runtime.inside import *

ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler"
load = importlib.import_module
logging.getLogger().setLevel(logging.WARNING)
# So often that a thread may lose its turn anywhere.
sys.setswitchinterval(1e-6)

def start_afresh():
    vllm_guard.unpatch()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]

def at_once(*calls):
    "Call each in a thread of its own; return the errors, and who is still at it after a while."
    failed = []
    barrier = threading.Barrier(len(calls))
    def run(call):
        try:
            barrier.wait()
            call()
        except BaseException as error:
            failed.append(repr(error))
    threads = [threading.Thread(target=run, args=[call], daemon=True) for call in calls]
    for thread in threads: thread.start()
    for thread in threads: thread.join(10)
    return failed + [thread.name for thread in threads if thread.is_alive()]

def after_up_to(seconds, call):
    time.sleep(random.random() * seconds)
    call()

def until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)

def serve_healthily(frames=8):
    "As ``serve``, with a worker that returns no token of an unfinished prefill."
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.request import Request
    scheduler, request = AsyncScheduler(), Request("r", PROMPT_LENGTH)
    scheduler.add_request(request)
    for token in range(frames):
        output = scheduler.schedule()
        is_prefilled = request.num_computed_tokens >= request.num_tokens
        row = [token] if is_prefilled else []
        scheduler.update_from_output(output, SimpleNamespace(
            sampled_token_ids=[row], req_id_to_index={"r": 0}, pooler_output=None))
    return request.output_token_ids

def counts_by_pid():
    from pathlib import Path
    from vllm_guard import report_reader
    found = report_reader.read_all(Path(os.environ["VLLMGUARD_STATE_DIR"]))
    return {
        report.pid: sum(t.times for guard in report.guards.values() for t in guard.triggers)
        for _, reports in found for report in reports
    }
"""


@pytest.fixture
def helpers(tmp_path: Path) -> Path:
    """A folder with what the programs use."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


@pytest.mark.parametrize(
    "names",
    ["SCHEDULER, SCHEDULER", "SCHEDULER, ASYNC_SCHEDULER", "ASYNC_SCHEDULER, 'vllm.v1.request'"],
    ids=["the-same", "one-and-its-user", "a-user-and-what-it-needs"],
)
def test_threads_that_import_at_once_again_and_again(
    miniature: Miniature, helpers: Path, names: str
) -> None:
    """Each target is wrapped once, no import fails, and no thread waits for ever."""
    outcome = miniature.run(
        f"""
        from helpers import *
        found = []
        for _ in range({ROUNDS}):
            start_afresh()
            vllm_guard.register()
            failed = at_once(*[partial(load, name) for name in ({names})])
            load(SCHEDULER)
            found.append([state(), wrapped(), failed])
        report(found)
        """,
        paths=(helpers,),
    )
    assert outcome.result == [GUARDED] * ROUNDS


def test_registering_at_any_moment_of_another_thread_s_import(
    miniature: Miniature, helpers: Path
) -> None:
    """At once, or when that import has ended."""
    outcome = miniature.run(
        f"""
        from helpers import *
        found = []
        for _ in range({ROUNDS}):
            start_afresh()
            register = partial(after_up_to, 3e-3, vllm_guard.register)
            failed = at_once(partial(load, SCHEDULER), register)
            until(lambda: wrapped() == list(METHODS))
            found.append([state(), wrapped(), failed])
        report(found)
        """,
        paths=(helpers,),
    )
    assert outcome.result == [GUARDED] * ROUNDS


@pytest.mark.parametrize("when", ["before", "after"])
def test_registering_from_threads_at_once(miniature: Miniature, helpers: Path, when: str) -> None:
    """It is done once; before the target is imported or after it."""
    outcome = miniature.run(
        f"""
        from helpers import *
        found = []
        for _ in range({ROUNDS}):
            start_afresh()
            if {when!r} == "after":
                load(SCHEDULER)
            failed = at_once(*[vllm_guard.register] * 3)
            load(SCHEDULER)
            found.append([state(), wrapped(), failed])
        report(found)
        """,
        paths=(helpers,),
    )
    assert outcome.result == [GUARDED] * ROUNDS


def test_unpatching_while_other_threads_are_served(miniature: Miniature, helpers: Path) -> None:
    """Nobody notices, whichever frames the guards have known."""
    outcome = miniature.run(
        f"""
        from helpers import *
        right = serve_healthily()
        answers, over = [], threading.Event()
        def serve_on():
            while not over.is_set():
                answers.append(serve_healthily())
        def switch():
            try:
                for _ in range({ROUNDS}):
                    vllm_guard.register()
                    time.sleep(0.002)
                    vllm_guard.unpatch()
            finally:
                over.set()
        failed = at_once(switch, serve_on, serve_on)
        report([failed, len(answers) > 50, [a for a in answers if a != right], wrapped()])
        """,
        paths=(helpers,),
    )
    assert outcome.result == [[], True, [], []]


def test_a_fork_while_another_thread_is_inside_of_us(miniature: Miniature, helpers: Path) -> None:
    """The child has not that thread, and does not wait for it: imports go on and are guarded."""
    outcome = miniature.run(
        """
        from helpers import *
        import signal
        inside, over = threading.Event(), threading.Event()
        def look_at_a_module():
            with vllm_guard.runtime._lock:
                inside.set()
                over.wait(20)
        vllm_guard.register()
        threading.Thread(target=look_at_a_module, daemon=True).start()
        inside.wait(10)
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            os._exit(0 if serve() == RIGHT and state() == "applied" else 1)
        status = os.waitpid(pid, 0)[1]
        over.set()
        report([status, serve(), state()])
        """,
        paths=(helpers,),
    )
    assert outcome.result == [0, RIGHT, "applied"]


def test_parent_and_child_of_a_plain_fork_count_each_for_itself(
    miniature: Miniature, helpers: Path
) -> None:
    """Under their own numbers; both are guarded, and the child's end changes nothing."""
    outcome = miniature.run(
        """
        from helpers import *
        vllm_guard.register()
        served = [serve()]
        until(lambda: counts_by_pid() == {os.getpid(): 2})
        pid = os.fork()
        if not pid:
            good = [serve() == RIGHT, serve() == RIGHT, state() == "applied"]
            until(lambda: counts_by_pid().get(os.getpid()) == 4)
            os._exit(0 if all(good) else 1)
        status = os.waitpid(pid, 0)[1]
        between = counts_by_pid() == {os.getpid(): 2, pid: 4}
        served.append(serve())
        until(lambda: counts_by_pid().get(os.getpid()) == 4)
        report([status, served, between, counts_by_pid() == {os.getpid(): 4, pid: 4}, wrapped()])
        """,
        paths=(helpers,),
    )
    assert outcome.result == [0, [RIGHT, RIGHT], True, True, list(METHODS)]
