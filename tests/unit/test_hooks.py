"""Calling back when a module has been imported; whole processes are in `tests/runtime`."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest

from tests.runtime.swallowed import SwallowedErrors
from vllm_guard import hooks


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported and has not been."""
    unique = f"guarded_{tmp_path.name}"
    (tmp_path / f"{unique}.py").write_text("imported = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield unique
    sys.modules.pop(unique, None)


@pytest.fixture
def half_imported(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in ``sys.modules`` whose code has not come to its end."""
    module = ModuleType("half_imported")
    module.__spec__ = ModuleSpec("half_imported", None)
    module.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "half_imported", module)
    return module


def test_a_hook_waits_for_the_import_and_sees_the_whole_module(name: str) -> None:
    """Its code has run to the end, and the hook is called once."""
    seen = []
    hooks.when_imported(name, lambda module: seen.append((module, module.imported)))
    assert seen == []
    module = importlib.import_module(name)
    importlib.import_module(name)
    assert seen == [(module, True)]


def test_a_hook_for_a_module_that_is_there_is_called_at_once(name: str) -> None:
    """Import first, register later."""
    module, seen = importlib.import_module(name), []
    hooks.when_imported(name, seen.append)
    assert seen == [module]


def test_a_hook_that_raises_harms_neither_the_import_nor_other_hooks(
    name: str, swallowed_errors: SwallowedErrors, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged with the module's name."""
    seen = []
    error = RuntimeError("ours")

    def failing(_module: ModuleType) -> None:
        raise error

    hooks.when_imported(name, failing)
    hooks.when_imported(name, seen.append)
    assert [importlib.import_module(name)] == seen
    assert f"the hook for {name} failed" in caplog.text
    assert swallowed_errors.take() == [error]


def test_a_forgotten_hook_is_not_called(name: str) -> None:
    """One that is registered afterwards is, once."""
    forgotten, seen = [], []
    hooks.when_imported(name, forgotten.append)
    hooks.forget_all()
    hooks.when_imported(name, seen.append)
    module = importlib.import_module(name)
    assert (forgotten, seen) == ([], [module])


def test_a_module_removed_and_imported_again_is_hooked_again(name: str) -> None:
    """A new registration after the first import concerns the second."""
    seen = []
    hooks.when_imported(name, lambda module: None)
    importlib.import_module(name)
    del sys.modules[name]
    hooks.when_imported(name, seen.append)
    assert [importlib.import_module(name)] == seen


def test_a_half_imported_module_counts_as_not_imported(half_imported: ModuleType) -> None:
    """Its classes may not be there yet; with the next import after its end the hook is called."""
    seen = []
    hooks.when_imported("half_imported", seen.append)
    assert hooks.fully_imported("half_imported") is None
    sys.modules.pop("colorsys", None)
    importlib.import_module("colorsys")
    assert seen == []
    half_imported.__spec__._initializing = False  # type: ignore[union-attr]
    del sys.modules["colorsys"]
    importlib.import_module("colorsys")
    assert seen == [half_imported]


def test_an_import_that_ends_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's; nothing else would tell of its end."""

    class Ending(ModuleSpec):
        """Says that the import goes on, and is at its end when asked again."""

        _initializing = property(lambda self: True, lambda self, value: None)  # type: ignore[assignment]

    module, seen = ModuleType("ending"), []
    module.__spec__ = Ending("ending", None)
    monkeypatch.setitem(sys.modules, "ending", module)
    hooks.when_imported("ending", seen.append)
    assert seen == [module]


def test_an_import_that_another_thread_has_just_begun(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been past the finders that were there, and is not in ``sys.modules`` yet."""
    begun, registered, called = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        """Finds the module, and takes its time."""

        @staticmethod
        def find_spec(wanted: str, path: object = None, target: object = None) -> object:
            if wanted != name:
                return None
            begun.set()
            registered.wait(10)
            return PathFinder.find_spec(wanted)

    monkeypatch.setattr(sys, "meta_path", [Slow, *sys.meta_path])
    seen = []
    thread = threading.Thread(target=importlib.import_module, args=[name])
    thread.start()
    begun.wait(10)
    hooks.when_imported(name, lambda module: (seen.append(module.imported), called.set()))
    assert seen == []
    registered.set()
    thread.join()
    assert called.wait(10)
    assert seen == [True]


def test_nothing_of_ours_stays_among_the_finders(half_imported: ModuleType) -> None:
    """Forgetting the hooks takes off whatever waits for half imported modules."""
    before = list(sys.meta_path)
    hooks.when_imported("half_imported", lambda module: None)
    hooks.forget_all()
    assert sys.meta_path == before


@pytest.mark.parametrize("entry", [None, object()], ids=["None", "without spec"])
def test_odd_entries_of_sys_modules_are_no_error(
    entry: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``None`` forbids an import; an object without ``__spec__`` counts as imported."""
    seen = []
    monkeypatch.setitem(sys.modules, "odd", entry)  # type: ignore[arg-type]
    hooks.when_imported("odd", seen.append)
    assert hooks.fully_imported("odd") is entry
    assert seen == ([] if entry is None else [entry])
    hooks.forget_all()
