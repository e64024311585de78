"""The switches, read from the environment.

No name begins with ``VLLM_``: vLLM warns about such variables when it does not know them, and
fails on them under ``--fail-on-environ-validation``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from vllm_guard.states import Mode
from vllm_guard.this_process import RUN_VARIABLE

PREFIX = "VLLMGUARD"
GUARD_NAMES = ("clamp", "stale", "mm_merge")

_T = TypeVar("_T")


def guard_variable(guard: str) -> str:
    """Return the name of the variable that switches ``guard``, as ``VLLMGUARD_CLAMP``."""
    return f"{PREFIX}_{guard.upper()}"


class Settings(NamedTuple):
    """What the user asked for.

    Args:
        enabled: ``VLLMGUARD``; false beats everything else.
        modes: One `Mode` for each guard name.
        mm_max_delta: ``VLLMGUARD_MM_MAX_DELTA``, share of an item's placeholders, 0 to 1.
        strict: ``VLLMGUARD_STRICT``; a guard that should apply and does not stops start-up.
        state_dir: ``VLLMGUARD_STATE_DIR``; None for the default.
        problems: One line for each variable that could not be used.
    """

    enabled: bool = True
    modes: Mapping[str, Mode] = MappingProxyType(dict.fromkeys(GUARD_NAMES, Mode.AUTO))
    mm_max_delta: float = 0.25
    strict: bool = False
    state_dir: Path | None = None
    problems: tuple[str, ...] = ()

    def mode(self, guard: str) -> Mode:
        """Return the mode of ``guard``, with the main switch taken into account."""
        return self.modes[guard] if self.enabled else Mode.OFF


def _one_of(**words: _T) -> Callable[[str], _T]:
    def convert(text: str) -> _T:
        return words[text.lower()]

    return convert


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


class _Reader:
    """Reads variables one by one and remembers what was wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.known: list[str] = []
        self.problems: list[str] = []

    def read(self, name: str, convert: Callable[[str], _T], accepted: str, default: _T) -> _T:
        self.known.append(name)
        text = self.environ.get(name, "").strip()
        if not text:
            return default
        try:
            return convert(text)
        except (KeyError, ValueError, RuntimeError):  # RuntimeError: ~user without such a user
            self.problems.append(
                f"{name}={text!r} is not a value it takes ({accepted}); the default is used"
            )
            return default

    def reject_unknown(self) -> None:
        for name in sorted(self.environ):
            ours = name.startswith((f"{PREFIX}_", "VLLM_GUARD"))
            if ours and name not in (*self.known, RUN_VARIABLE):
                self.problems.append(
                    f"{name} is not a variable of vllm-guard and is ignored"
                    f" (there are: {', '.join(self.known)})"
                )


def read(environ: Mapping[str, str]) -> Settings:
    """Read the settings; a value that cannot be used becomes a line in `Settings.problems`.

    Args:
        environ: Usually ``os.environ``.

    >>> chosen = read({"VLLMGUARD_CLAMP": "observe", "VLLMGUARD_MM_MAX_DELTA": "2"})
    >>> str(chosen.mode("clamp")), str(chosen.mode("stale")), chosen.mm_max_delta
    ('observe', 'auto', 0.25)
    >>> print(*chosen.problems)
    VLLMGUARD_MM_MAX_DELTA='2' is not a value it takes (a number from 0 to 1); the default is used
    >>> str(read({"VLLMGUARD": "off", "VLLMGUARD_CLAMP": "force"}).mode("clamp"))
    'off'
    """
    reader = _Reader(environ)
    enabled = reader.read(PREFIX, _one_of(on=True, off=False), "on, off", True)
    to_mode = _one_of(**{mode.value: mode for mode in Mode})
    modes = {
        guard: reader.read(guard_variable(guard), to_mode, ", ".join(map(str, Mode)), Mode.AUTO)
        for guard in GUARD_NAMES
    }
    mm_max_delta = reader.read(f"{PREFIX}_MM_MAX_DELTA", _share, "a number from 0 to 1", 0.25)
    strict = reader.read(f"{PREFIX}_STRICT", _one_of(**{"1": True, "0": False}), "1, 0", False)
    state_dir = reader.read(f"{PREFIX}_STATE_DIR", _absolute, "an absolute path", None)
    reader.reject_unknown()
    return Settings(enabled, modes, mm_max_delta, strict, state_dir, tuple(reader.problems))


def _absolute(text: str) -> Path | None:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise ValueError(text)
    return path
