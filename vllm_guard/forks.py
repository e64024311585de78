"""What has to start afresh in a forked child: locks, descriptors, counts of its parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

_renewals: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def renew_after_fork(thing: Any, renew: Callable[[Any], None]) -> None:
    """Call ``renew(thing)`` in every child that is forked, before it runs anything else.

    Args:
        thing: Not kept alive by this.
        renew: Writes no file and takes no lock: another thread may have held it in the parent.
    """
    _renewals[thing] = renew


def _renew_all() -> None:
    for thing, renew in list(_renewals.items()):
        renew(thing)


# Not multiprocessing's, which knows the children of multiprocessing only.
os.register_at_fork(after_in_child=_renew_all)
