"""Judging whose a function is, and putting one wrapper in and out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.unit.stand_ins import MODULE, SCHEDULE, UPDATE, call_through, make_module
from vllm_guard.states import Finding, Verdict
from vllm_guard.targets import Patch, Target, judge


@pytest.fixture
def module() -> ModuleType:
    """The stand-in module, untouched."""
    return make_module()


def decorate(module: ModuleType, decorator: Callable[[Any], Any]) -> None:
    """Put the result of ``decorator`` in the place of ``Scheduler.update``."""
    module.Scheduler.update = decorator(vars(module.Scheduler)["update"])


def forwarding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap like a well-behaved third party."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def replacing(_function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace like a monkey patch of a vendor."""

    def update(self: Any, output: Any) -> Any:
        return output

    return update


def verdict(finding: Finding | None) -> Verdict | None:
    """Return the verdict alone."""
    return finding and finding.verdict


@pytest.mark.parametrize("target", [SCHEDULE, UPDATE], ids=lambda target: target.attribute)
def test_an_untouched_function_can_be_wrapped(module: ModuleType, target: Target) -> None:
    """Nothing is held against it."""
    assert judge(target, module) is None


@pytest.mark.parametrize("path", ["Scheduler.gone", "Gone.update", "calls.append"])
def test_what_does_not_exist_is_absent(module: ModuleType, path: str) -> None:
    """A missing method, a missing class, and a name that is no class."""
    finding = judge(Target(MODULE, path, ("self",)), module)
    assert finding == Finding(Verdict.ABSENT, f"{MODULE}:{path} does not exist")


def test_an_inherited_method_is_absent_from_the_class() -> None:
    """Wrapping it there would leave out everybody who inherits it elsewhere."""
    module = make_module("class Base:\n    def update(self): pass\nclass Scheduler(Base): pass")
    assert verdict(judge(Target(MODULE, "Scheduler.update", ("self",)), module)) is Verdict.ABSENT


def test_a_replaced_function_is_foreign_and_says_whose(module: ModuleType) -> None:
    """Its author is named."""
    decorate(module, replacing)
    finding = judge(UPDATE, module)
    assert verdict(finding) is Verdict.FOREIGN
    assert finding is not None
    assert f"was replaced by {__name__}:replacing" in finding.evidence


def test_a_replacement_that_borrows_the_name_is_foreign_all_the_same(module: ModuleType) -> None:
    """``__module__`` and ``__qualname__`` can be copied, the code cannot."""

    def disguised(function: Any) -> Any:
        replacement = functools.wraps(function)(replacing(function))
        del replacement.__wrapped__
        return replacement

    decorate(module, disguised)
    assert verdict(judge(UPDATE, module)) is Verdict.FOREIGN


def test_a_replaced_class_is_foreign(module: ModuleType) -> None:
    """A vendor's class under vLLM's name is not ours to wrap."""
    module.Scheduler = make_module(name="vendor.scheduler").Scheduler  # type: ignore[attr-defined]
    finding = judge(UPDATE, module)
    assert finding == Finding(Verdict.FOREIGN, f"{MODULE}:Scheduler is vendor.scheduler's")


def test_a_wrapper_around_the_original_is_no_obstacle(module: ModuleType) -> None:
    """Tracing and profiling tools call the original, and say so by ``__wrapped__``."""
    decorate(module, lambda function: forwarding(forwarding(function)))
    assert judge(UPDATE, module) is None


def test_a_wrapper_that_wraps_itself_does_not_hang(module: ModuleType) -> None:
    """A broken ``__wrapped__`` chain ends where it repeats."""

    def circular(function: Any) -> Any:
        wrapper: Any = replacing(function)
        wrapper.__wrapped__ = wrapper
        return wrapper

    decorate(module, circular)
    assert verdict(judge(UPDATE, module)) is Verdict.FOREIGN


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("self, output", None),
        ("self, output, is_stale=False", None),
        ("self, output, *args, **kwargs", None),
        ("self, result", Verdict.UNKNOWN),
        ("self", Verdict.UNKNOWN),
        ("self, is_stale, output", Verdict.UNKNOWN),
        ("self, *args", Verdict.UNKNOWN),
    ],
)
def test_parameters_must_begin_with_the_names_we_know(
    parameters: str, expected: Verdict | None
) -> None:
    """More may follow; another name or order is a shape that we do not recognise."""
    module = make_module(f"class Scheduler:\n    def update({parameters}): pass")
    finding = judge(UPDATE, module)
    assert verdict(finding) is expected
    assert finding is None or finding.evidence.startswith(f"{MODULE}:Scheduler.update takes (self")


def test_applying_and_undoing_restores_the_exact_object(module: ModuleType) -> None:
    """Not an equal function: the same one, and in the same class dictionary."""
    before = vars(module.Scheduler)["update"]
    patch = Patch(UPDATE, module, call_through)
    patch.apply()
    applied = vars(module.Scheduler)["update"]
    assert applied is not before
    assert (applied.__wrapped__, applied.__name__) == (before, "update")
    assert patch.undo()
    assert vars(module.Scheduler)["update"] is before


def test_the_wrapper_is_called_with_the_instance_and_arguments(module: ModuleType) -> None:
    """Positions and keywords arrive as the caller gave them."""
    seen = []

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append((instance, args, kwargs))
        return wrapped(*args, **kwargs)

    Patch(UPDATE, module, wrapper).apply()
    scheduler = module.Scheduler()
    assert scheduler.update(1) == 1
    assert scheduler.update(output=2) == 2
    assert seen == [(scheduler, (1,), {}), (scheduler, (), {"output": 2})]


def test_undoing_leaves_a_later_wrapper_in_place(module: ModuleType) -> None:
    """Taking ours out from under it would undo the other's work."""
    patch = Patch(UPDATE, module, call_through)
    patch.apply()
    decorate(module, forwarding)
    theirs = vars(module.Scheduler)["update"]
    assert not patch.undo()
    assert vars(module.Scheduler)["update"] is theirs
    assert module.Scheduler().update(1) == 1


def test_undoing_what_somebody_restored_changes_nothing(module: ModuleType) -> None:
    """The original is back already."""
    patch = Patch(UPDATE, module, call_through)
    before = patch.original
    patch.apply()
    module.Scheduler.update = before
    assert not patch.undo()
    assert vars(module.Scheduler)["update"] is before
