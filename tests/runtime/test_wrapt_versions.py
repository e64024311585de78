"""The same behaviour on every wrapt that the package accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.cached import PYTHON, filled_once, pip
from tests.runtime.inside import DEAD, METHODS, RIGHT
from tests.runtime.process import Miniature


@pytest.fixture(params=["1.14", "1.17", "2"])
def wrapt(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A version of wrapt and the folder it is in; downloaded once."""
    version: str = request.param
    return version, filled_once(
        f"wrapt-{version}-{PYTHON}",
        lambda folder: (
            pip("install", "--no-deps", "--target", str(folder), f"wrapt=={version}.*") and None
        ),
    )


@pytest.mark.parametrize("imported", ["before", "after"])
def test_patching_and_undoing(miniature: Miniature, wrapt: tuple[str, Path], imported: str) -> None:
    """Applied, effective and undone, whenever the import happens."""
    version, folder = wrapt
    steps = ["import vllm.v1.core.sched.async_scheduler", "vllm_guard.register()"]
    outcome = miniature.run(
        "\n".join(["import wrapt", *(steps if imported == "before" else steps[::-1])])
        + """
result = [wrapt.__version__, state(), wrapped(), serve(), effective()]
vllm_guard.unpatch()
report([*result, wrapped(), serve()])
""",
        paths=(folder,),
    )
    found, *rest = outcome.result
    assert found.startswith(f"{version}.")
    assert rest == ["applied", list(METHODS), RIGHT, True, [], DEAD]


def test_an_import_that_fails_first(miniature: Miniature, wrapt: tuple[str, Path]) -> None:
    """The hook is still there for the import that succeeds."""
    miniature.edit(
        "TOKENS_A_FRAME = 4",
        "import sys\nif not hasattr(sys, 'device_ready'): raise ImportError('device')\n"
        "TOKENS_A_FRAME = 4",
    )
    outcome = miniature.run(
        """
        vllm_guard.register()
        try:
            import vllm.v1.core.sched.scheduler
        except ImportError:
            sys.device_ready = True
        report([state(), serve(), state()])
        """,
        paths=(wrapt[1],),
    )
    assert outcome.result == ["armed", RIGHT, "applied"]
