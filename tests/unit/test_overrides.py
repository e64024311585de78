"""Whose code stands in the place of a target: what the static probes find in a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.site_folder import Site
from vllm_guard.guards.clamp import DEFINITION
from vllm_guard.probes.static.overrides import find_overrides
from vllm_guard.probes.static.program import Program
from vllm_guard.probes.static.sources import Tree

IMPORT = "from vllm.v1.core.sched.scheduler import Scheduler"


def found(folder: Path, code: str, path: str = "vllm_vendor/patched.py") -> dict[str, str]:
    """Return what is overridden by whom, with ``code`` beside a small vLLM."""
    site = Site(folder)
    site.add_vllm()
    site.write(path, code)
    overridden = find_overrides(Program(Tree(folder)), DEFINITION.targets)
    return {target.path: where for target, where in overridden.items()}


OVERRIDES = {
    "a subclass": f"{IMPORT}\nclass Own(Scheduler):\n    def schedule(self): return None\n",
    "by module": (
        "import vllm.v1.core.sched.scheduler as s\n"
        "class Own(s.Scheduler):\n    def schedule(self): return None\n"
    ),
    "of a subclass": (
        f"{IMPORT}\nclass Empty(Scheduler): pass\n"
        "class Own(Empty):\n    def schedule(self): return None\n"
    ),
    "under another name": (
        f"{IMPORT} as Base\nclass Own(Base):\n    def schedule(self): return None\n"
    ),
    "with a mixin, over lines": (
        f"{IMPORT}\nfrom vendor import Mixin\n"
        "class Own(\n    Mixin,\n    Scheduler,\n):\n    def schedule(self): return None\n"
    ),
}


@pytest.mark.parametrize("code", OVERRIDES.values(), ids=OVERRIDES.keys())
def test_a_method_that_does_not_call_the_base_overrides_it(tmp_path: Path, code: str) -> None:
    """However the class is derived."""
    [(path, where)] = found(tmp_path, code).items()
    assert path == "Scheduler.schedule"
    assert where.startswith("vllm_vendor/patched.py:")
    assert where.endswith("Own.schedule overrides Scheduler.schedule and does not call it")


def test_it_is_found_inside_vllm_too(tmp_path: Path) -> None:
    """A vendor's own files there."""
    assert found(tmp_path, OVERRIDES["a subclass"], "vllm/vendor/patched.py")


REPLACEMENTS = {
    "assigned": f"{IMPORT}\nScheduler.schedule = print\n",
    "in a function, by module": (
        "def apply():\n    import vllm.v1.core.sched.scheduler as s\n"
        "    s.Scheduler.schedule = print\n"
    ),
    "setattr": f"{IMPORT}\nsetattr(Scheduler, 'schedule', print)\n",
    "under another name": f"{IMPORT} as Base\nBase.schedule = print\n",
}


@pytest.mark.parametrize("code", REPLACEMENTS.values(), ids=REPLACEMENTS.keys())
def test_an_assignment_replaces_it(tmp_path: Path, code: str) -> None:
    """Wherever it stands."""
    [(path, where)] = found(tmp_path, code).items()
    assert path == "Scheduler.schedule"
    assert where.startswith("vllm_vendor/patched.py:")
    assert where.endswith(" replaces Scheduler.schedule")


HARMLESS = {
    "calls super": (
        f"{IMPORT}\nclass Own(Scheduler):\n    def schedule(self): return super().schedule()\n"
    ),
    "calls the base": (
        f"{IMPORT}\nclass Own(Scheduler):\n"
        "    def schedule(self): return Scheduler.schedule(self)\n"
    ),
    "another method": f"{IMPORT}\nclass Own(Scheduler):\n    def plan(self): return None\n",
    "another Scheduler": (
        "class Scheduler: pass\nclass Own(Scheduler):\n    def schedule(self): return None\n"
    ),
    "a comment": f"{IMPORT}\n# Scheduler.schedule = print\n",
    "a docstring": f'"""Scheduler.schedule = print"""\n{IMPORT}\n',
    "an attribute of an instance": (
        f"{IMPORT}\nclass Own(Scheduler):\n    def plan(self): self.schedule = print\n"
    ),
    "a comparison": f"{IMPORT}\ndef f(x): return Scheduler.schedule == x\n",
}


@pytest.mark.parametrize("code", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_only_looks_like_it_is_nothing(tmp_path: Path, code: str) -> None:
    """Names and texts do not count."""
    assert found(tmp_path, code) == {}


def test_a_package_of_somebody_else_is_not_looked_at(tmp_path: Path) -> None:
    """In site-packages there are thousands; what patches vLLM has its name."""
    assert found(tmp_path, REPLACEMENTS["assigned"], "other/patched.py") == {}


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    """Each folder is looked at once."""
    site = Site(tmp_path)
    site.add_vllm()
    (tmp_path / "vllm" / "again").symlink_to(tmp_path / "vllm")
    files = list(Tree(tmp_path).files())
    assert len(files) == len(list((tmp_path / "vllm").rglob("*.py")))
