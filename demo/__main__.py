"""Four acts on a real engine, then a table; exit code 0 only if all that is claimed held."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from demo.claims import Claim, claims
from demo.report import INTRODUCTION, show_act, show_table
from tests.engine.arms import FAULT_GUARDED, FAULT_UNGUARDED, HEALTHY_GUARDED, HEALTHY_UNGUARDED
from tests.engine.experiment import Experiment
from tests.engine.model import make_model
from tests.engine.outcome import Outcome
from tests.engine.server import ServerFailed

ACTS = (HEALTHY_UNGUARDED, FAULT_UNGUARDED, FAULT_GUARDED, HEALTHY_GUARDED)
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def play(folder: Path) -> list[Claim]:
    """Play all acts and print what happens.

    Args:
        folder: For model, logs and records.

    Returns:
        All that was claimed.
    """
    print(INTRODUCTION, flush=True)
    experiment = Experiment(make_model(folder / "model"))
    outcomes: list[Outcome] = []
    all_claims: list[Claim] = []
    for number, arm in enumerate(ACTS, start=1):
        print(f"{number}. {arm.name}", flush=True)
        outcome = experiment.run(arm, folder / f"act-{number}")
        outcomes.append(outcome)
        act_claims = list(claims(outcome, outcomes[0]))
        all_claims += act_claims
        show_act(outcome, act_claims)
    show_table(outcomes)
    return all_claims


def main() -> int:
    """Return the exit code: 0 all held, 1 something did not, 130 interrupted."""
    for number in ENDING_SIGNALS:
        signal.signal(number, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="vllm-guard-demo-"))
    try:
        broken = [claim.text for claim in play(folder) if not claim.holds]
    except ServerFailed as error:
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
