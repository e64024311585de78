"""Two faults on real engines, act by act, then tables; exit code 0 only if all claims held."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from demo import images, tokens
from tests.engine.server import ServerFailed
from tools.environment import InstallFailed

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTRODUCTION = """
vllm-guard demo, on this CPU. "No guard" is VLLMGUARD=off, with the package installed; it is checked
that nothing is wrapped then."""


def main() -> int:
    """Return the exit code: 0 all held, 1 something did not, 130 interrupted."""
    for number in ENDING_SIGNALS:
        signal.signal(number, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="vllm-guard-demo-"))
    print(INTRODUCTION, flush=True)
    try:
        claims = [*tokens.play(folder), *images.play(folder)]
        broken = [claim.text for claim in claims if not claim.holds]
    except (ServerFailed, InstallFailed) as error:
        broken = [str(error)]
    except KeyboardInterrupt:
        print("\ninterrupted; the server has been stopped", file=sys.stderr)
        shutil.rmtree(folder)
        return 130
    if broken:
        print("\nThis did not hold:", *(f"  {text}" for text in broken), sep="\n")
        print(f"Logs and records: {folder}")
        return 1
    print("\nAll of it held.")
    shutil.rmtree(folder)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt once; a second signal must not interrupt the stopping of the server."""
    for signal_number in ENDING_SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
