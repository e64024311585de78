"""Calling back when a module has been imported completely.

wrapt's post-import hooks do the work. Three things are added: a hook never raises into the
importer (the import would fail, and a second import would succeed without us), a hook fires at
once for a module that is fully imported, and a module that is half imported counts as not
imported yet.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Container
from contextlib import suppress
from importlib import _bootstrap
from importlib.machinery import ModuleSpec
from types import ModuleType

import wrapt

from vllm_guard.log import logger

Hook = Callable[[ModuleType], None]

# What to call for each module name. wrapt cannot forget a hook, so ours look here when fired.
# Any thread may add a hook or fire: each takes out what it calls, one by one.
_waiting: defaultdict[str, deque[Hook]] = defaultdict(deque)
_known_to_wrapt: set[str] = set()
_registering: set[str] = set()

# importlib's own: nothing else tells of an import that has not got as far as sys.modules.
_begun: Container[str] = getattr(_bootstrap, "_module_locks", ())
_wait_for_import: Callable[[str], None] = getattr(
    _bootstrap, "_lock_unlock_module", lambda _name: None
)


def fully_imported(name: str) -> ModuleType | None:
    """Return the module ``name`` if it is in ``sys.modules`` and its import has ended."""
    module = sys.modules.get(name)
    if module is None or _being_imported(module):
        return None
    return module


def _being_imported(module: ModuleType) -> bool:
    # importlib sets this on the spec for the length of the import; it is what importlib itself
    # asks before it trusts sys.modules.
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def when_imported(name: str, hook: Hook) -> None:
    """Call ``hook`` with the module ``name``, now or as soon as its import has ended.

    Args:
        name: Absolute module name.
        hook: Called once; what it raises is logged, never passed on.
    """
    _waiting[name].append(hook)
    module = sys.modules.get(name)
    if module is None:
        if name not in _known_to_wrapt:
            _ask_wrapt(name)
    elif _being_imported(module):
        _watch(module)
    else:
        _fire(name, module)


def _ask_wrapt(name: str) -> None:
    _known_to_wrapt.add(name)
    _registering.add(name)
    try:
        wrapt.register_post_import_hook(_on_import, name)
    finally:
        _registering.discard(name)
    # Another thread may have been past wrapt's finder, and have had no module to watch yet.
    if name in _begun:
        with suppress(RuntimeError):  # no more threads
            threading.Thread(target=_wait, args=[name], name="vllm-guard", daemon=True).start()
    elif (module := fully_imported(name)) is not None:
        _fire(name, module)


def _wait(name: str) -> None:
    """Fire when an import that another thread has begun has ended; imports nothing itself."""
    _wait_for_import(name)
    if (module := fully_imported(name)) is not None:
        _fire(name, module)


def forget_all() -> None:
    """Drop every hook that has not fired."""
    _waiting.clear()


def _on_import(module: ModuleType) -> None:
    name = module.__name__
    _known_to_wrapt.discard(name)
    if name in _registering and _being_imported(module):
        # Another thread began to import it just now, and wrapt does not wait for the end.
        _watch(module)
    else:
        _fire(name, module)


def _fire(name: str, module: ModuleType) -> None:
    waiting = _waiting[name]
    while waiting:
        with suppress(IndexError):  # another thread fires as well
            hook = waiting.popleft()
            _call(hook, name, module)


def _call(hook: Hook, name: str, module: ModuleType) -> None:
    try:
        hook(module)
    except Exception:
        logger.exception("vllm-guard: the hook for %s failed; it goes on unguarded", name)


class _Watched(ModuleSpec):
    """The spec of a module whose import had begun before we came.

    Such a module has passed wrapt's finder already, and Python has no event for its end; but
    importlib clears this flag then, whether the import succeeded or not.
    """

    @property
    def _initializing(self) -> bool:
        return bool(vars(self).get("_initializing"))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value
        if value:
            return
        self.__class__ = ModuleSpec  # type: ignore[assignment]
        _on_end(self.name)


def _on_end(name: str) -> None:
    module = fully_imported(name)
    if module is not None:
        _fire(name, module)
    elif _waiting[name] and name not in _known_to_wrapt:
        _ask_wrapt(name)


def _watch(module: ModuleType) -> None:
    try:
        module.__spec__.__class__ = _Watched
        if not _being_imported(module):  # another thread has come to its end just before
            _on_end(module.__name__)
    except TypeError:  # a spec of an importer's own make
        logger.warning(
            "vllm-guard: %s is being imported by an importer that cannot be followed; it goes on"
            " unguarded",
            module.__name__,
        )
