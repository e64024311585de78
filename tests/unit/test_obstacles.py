"""Whether a call on an instance of some class still reaches our wrapper."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import pytest

from tests.unit.stand_ins import UPDATE, call_through, make_module
from vllm_guard.targets import Patch

FAMILY = """
    class Scheduler:
        def update(self, output):
            return output

    class Inheriting(Scheduler):
        pass

    class CallingSuper(Scheduler):
        def update(self, output):
            return super().update(output)

    class CallingByClass(Scheduler):
        def update(self, output):
            return Scheduler.update(self, output)

    class CallingInside(Scheduler):
        def update(self, output):
            def inner():
                return super(CallingInside, self).update(output)
            return inner()

    class Overriding(Scheduler):
        def update(self, output):
            return None

    class BelowOverriding(Overriding):
        def update(self, output):
            return super().update(output)

    class Mixin:
        def update(self, output):
            return super().update(output)

    class DeafMixin:
        def update(self, output):
            return None

    class Mixed(Mixin, Scheduler):
        pass

    class MixedDeaf(DeafMixin, Scheduler):
        pass

    class MixedBehind(Scheduler, DeafMixin):
        pass

    class Diamond(CallingSuper, Inheriting):
        pass

    class DiamondOverridden(CallingSuper, Overriding):
        pass

    class Stranger:
        def update(self, output):
            return None

    class Unrelated:
        pass
"""

REACHED = (
    "Scheduler",
    "Inheriting",
    "CallingSuper",
    "CallingByClass",
    "CallingInside",
    "Mixed",
    "MixedBehind",
    "Diamond",
)
NOT_REACHED = {
    "Overriding": "Overriding.update overrides Scheduler.update and does not call it",
    "BelowOverriding": "Overriding.update overrides Scheduler.update and does not call it",
    "MixedDeaf": "DeafMixin.update overrides Scheduler.update and does not call it",
    "DiamondOverridden": "Overriding.update overrides Scheduler.update and does not call it",
    "Stranger": "Stranger.update overrides Scheduler.update and does not call it",
}


class Patched:
    """The family of classes with `Scheduler.update` wrapped, and who was seen by the wrapper."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.module: ModuleType = make_module(FAMILY)
        self.patch = Patch(UPDATE, self.module, self._note)
        self.patch.apply()

    def _note(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        self.seen.append(instance)
        return wrapped(*args, **kwargs)

    def reaches(self, name: str) -> bool:
        """Call it, and see whether the wrapper ran."""
        instance = getattr(self.module, name)()
        instance.update(1)
        return instance in self.seen


@pytest.fixture
def patched() -> Patched:
    """A patched family."""
    return Patched()


@pytest.mark.parametrize("name", REACHED)
def test_a_class_that_reaches_the_wrapper_has_no_obstacle(patched: Patched, name: str) -> None:
    """It inherits the method, or its override calls it; shown by calling it."""
    assert patched.reaches(name)
    assert patched.patch.obstacle(getattr(patched.module, name)) == ""


@pytest.mark.parametrize("name", NOT_REACHED)
def test_a_class_that_does_not_reach_it_is_named(patched: Patched, name: str) -> None:
    """The message says which override stands in the way; shown by calling it."""
    assert not patched.reaches(name)
    assert NOT_REACHED[name] in patched.patch.obstacle(getattr(patched.module, name))


def test_a_class_without_the_method_is_no_scheduler(patched: Patched) -> None:
    """It is named as what it is."""
    obstacle = patched.patch.obstacle(patched.module.Unrelated)
    assert obstacle == f"{patched.module.__name__}:Unrelated is no Scheduler"


def test_a_wrapper_on_top_of_ours_is_no_obstacle(patched: Patched) -> None:
    """Its ``__wrapped__`` leads to ours."""
    ours = vars(patched.module.Scheduler)["update"]

    @functools.wraps(ours)
    def on_top(self: Any, output: Any) -> Any:
        return ours.__get__(self)(output)

    patched.module.Scheduler.update = on_top
    assert patched.reaches("Scheduler")
    assert patched.patch.obstacle(patched.module.Scheduler) == ""


def test_a_replacement_after_us_is_an_obstacle(patched: Patched) -> None:
    """For the class and for those that inherit it."""
    patched.module.Scheduler.update = lambda self, output: None
    for name in ("Scheduler", "Inheriting", "CallingSuper"):
        assert not patched.reaches(name)
        obstacle = patched.patch.obstacle(getattr(patched.module, name))
        assert obstacle.startswith(f"Scheduler.update was replaced by {__name__}:")


def test_the_original_put_back_is_an_obstacle(patched: Patched) -> None:
    """Another tool's undo takes ours out with its own; a wrapper equals what it wraps."""
    patched.module.Scheduler.update = patched.patch.original
    assert not patched.reaches("Scheduler")
    assert patched.patch.obstacle(patched.module.Scheduler) != ""


def test_a_wrapper_around_the_original_instead_of_ours_is_an_obstacle(patched: Patched) -> None:
    """Two patchers that remembered the same original overwrite each other."""
    original = patched.patch.original

    @functools.wraps(original)
    def theirs(*args: Any) -> Any:
        return original(*args)

    patched.module.Scheduler.update = theirs
    assert not patched.reaches("Scheduler")
    assert patched.patch.obstacle(patched.module.Scheduler) != ""


def test_the_wrapper_need_not_do_anything_to_be_found() -> None:
    """It is recognised by what it is, not by what it does."""
    module = make_module(FAMILY)
    patch = Patch(UPDATE, module, call_through)
    assert patch.obstacle(module.Scheduler) != ""
    patch.apply()
    assert patch.obstacle(module.Scheduler) == ""
