"""What `vllm-guard check` complains of: each gate turns what is known into complaints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vllm_guard import patches
from vllm_guard.cli.errors import CommandError
from vllm_guard.guards import DEFINITIONS
from vllm_guard.settings import guard_variable
from vllm_guard.states import Finding, Mode, State, Verdict, worst

FAULTS = {definition.name: definition.faults for definition in DEFINITIONS}

Findings = dict[str, dict[str, Finding]]
"""By guard and fault."""

_HARMLESS = (Verdict.FIXED, Verdict.ABSENT)
_NOT_CERTAIN = (Verdict.UNKNOWN, Verdict.FOREIGN)
_IN_FORCE = (State.APPLIED, State.OBSERVING)
_REPORT = "report it with what `vllm-guard report` prints"


class Complaint(NamedTuple):
    """Something to be done.

    Args:
        guard: Which guard it is about; empty where it is about the environment.
        message: What was found, and what to do next.
    """

    guard: str
    message: str

    def __str__(self) -> str:
        return f"{self.guard}: {self.message}" if self.guard else self.message


class Known(NamedTuple):
    """What is known of a build.

    Args:
        static: What its source says.
        live: What running it has shown; None where it was not run.
        guards: What `vllm_guard.status` says of each guard in a new process; empty where there
            is none.
    """

    static: Findings
    live: Findings | None = None
    guards: dict[str, dict[str, Any]] = {}  # noqa: RUF012  never changed

    def findings(self, guard: str) -> dict[str, Finding]:
        """The finding that counts, for each fault.

        Where both agree that is what the source says, since it names the place; else what running
        it has shown.
        """
        found = dict(self.static[guard])
        for fault, live in (self.live or {}).get(guard, {}).items():
            if found[fault].verdict is not live.verdict:
                found[fault] = live
        return found

    def verdict(self, guard: str) -> Verdict:
        """The worst of a guard's faults."""
        return worst(finding.verdict for finding in self.findings(guard).values())

    def evidence(self, guard: str, verdicts: Iterable[Verdict]) -> str:
        """The faults of a guard that have one of these verdicts, and what that rests on."""
        wanted = tuple(verdicts)
        return "; ".join(
            f"{fault} {finding.verdict}: {finding.evidence}"
            for fault, finding in self.findings(guard).items()
            if finding.verdict in wanted
        )


class Expectation(NamedTuple):
    """What a team expects of the build it has pinned.

    Args:
        guard: Name of the guard.
        fault: Name of one of its faults; empty for the guard as a whole.
        verdict: What it should be.
    """

    guard: str
    fault: str
    verdict: Verdict


def parse_expectations(text: str) -> list[Expectation]:
    """Parse ``clamp=needed,stale.no-queue=fixed``.

    Raises:
        CommandError: A guard, fault or verdict does not exist.

    >>> for guard, fault, verdict in parse_expectations("clamp=needed, stale.no-queue=fixed"):
    ...     print(guard, fault or "as a whole", verdict)
    clamp as a whole needed
    stale no-queue fixed
    """
    expectations = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, separator, verdict = item.partition("=")
        if not separator:
            raise CommandError(f"--expect {item!r} is not GUARD=VERDICT or GUARD.FAULT=VERDICT")
        guard, _, fault = name.strip().partition(".")
        parse_guard(guard)
        if fault and fault not in FAULTS[guard]:
            faults = ", ".join(FAULTS[guard])
            raise CommandError(f"{guard} has no fault named {fault!r} (there are: {faults})")
        expectations.append(Expectation(guard, fault, parse_verdict(verdict)))
    return expectations


def parse_guard(name: str) -> str:
    """Return the name of a guard.

    Raises:
        CommandError: There is none of that name.
    """
    if name not in FAULTS:
        raise CommandError(f"there is no guard named {name!r} (there are: {', '.join(FAULTS)})")
    return name


def parse_verdict(word: str) -> Verdict:
    """Return a verdict.

    Raises:
        CommandError: There is no such verdict.
    """
    try:
        return Verdict(word.strip())
    except ValueError:
        known = ", ".join(Verdict)
        raise CommandError(f"{word.strip()!r} is no verdict (there are: {known})") from None


def cannot_apply(known: Known) -> Iterator[Complaint]:
    """Complain of guards whose verdict is not certain, or that are needed and cannot act.

    What the user has switched off himself is no complaint: see `switched_off`.
    """
    for guard in FAULTS:
        found = known.guards.get(guard, {})
        mode, state = found.get("mode"), found.get("state")
        if mode == Mode.OFF:
            continue
        doubts = known.evidence(guard, _NOT_CERTAIN)
        if doubts and mode != Mode.FORCE:
            yield Complaint(
                guard,
                f"does not act on what it is not certain of ({doubts}): look at that code, or"
                f" {_REPORT}; {guard_variable(guard)}=force applies it nevertheless",
            )
        elif known.verdict(guard) not in _HARMLESS and state not in (*_IN_FORCE, None):
            what_next = "" if state == State.NOT_LOADED else f"; {_REPORT}"
            yield Complaint(
                guard, f"is needed and not in force: {state}, {found['detail']}{what_next}"
            )


def switched_off(known: Known) -> Iterator[Complaint]:
    """Complain of guards that are needed and that the user's switches keep from acting."""
    for guard in FAULTS:
        found = known.guards.get(guard, {})
        mode, state = found.get("mode"), found.get("state")
        if known.verdict(guard) is Verdict.NEEDED and (
            mode == Mode.OFF or state == State.OBSERVING
        ):
            does = "is switched off" if mode == Mode.OFF else "only observes"
            yield Complaint(
                guard,
                f"is needed and {does}, so the fault has its way; unset"
                f" {guard_variable(guard)} and VLLMGUARD to have it act",
            )


def disagreeing(known: Known) -> Iterator[Complaint]:
    """Complain where reading the source and running it say different things."""
    for guard, faults in (known.live or {}).items():
        for fault, live in faults.items():
            static = known.static[guard][fault]
            if static.verdict is not live.verdict:
                yield Complaint(
                    guard,
                    f"{fault} is {static.verdict} by the source ({static.evidence}) and"
                    f" {live.verdict} by running it ({live.evidence}); what was run counts;"
                    f" {_REPORT}",
                )


def counted_as_finding(known: Known, verdicts: Iterable[Verdict]) -> Iterator[Complaint]:
    """Complain of guards with one of these verdicts."""
    wanted = tuple(verdicts)
    for guard in FAULTS:
        if known.verdict(guard) in wanted:
            yield Complaint(guard, _about(known, guard))


def unexpected(known: Known, expectations: Iterable[Expectation]) -> Iterator[Complaint]:
    """Complain of what is not as expected."""
    for guard, fault, expected in expectations:
        found = known.findings(guard)[fault].verdict if fault else known.verdict(guard)
        if found is not expected:
            name = f"{guard}.{fault}" if fault else guard
            about = _about(known, guard)
            yield Complaint(guard, f"{name} was expected to be {expected} and is {found}: {about}")


def not_fixed(known: Known, guards: Iterable[str]) -> Iterator[Complaint]:
    """Complain of guards whose upstream fix is not in the build."""
    for guard in guards:
        open_faults = [verdict for verdict in Verdict if verdict not in _HARMLESS]
        if known.verdict(guard) not in _HARMLESS:
            yield Complaint(
                guard,
                f"the upstream fix is not in this build"
                f" ({known.evidence(guard, open_faults)}); keep the guard",
            )


def _about(known: Known, guard: str) -> str:
    verdict = known.verdict(guard)
    evidence = known.evidence(guard, [verdict])
    if verdict is Verdict.FIXED:
        fixes = patches.read(guard).get("fixed-by", {})
        named = ", ".join(dict.fromkeys(fixes[fault] for fault in FAULTS[guard] if fault in fixes))
        return (
            f"the upstream fix ({named or 'unnamed'}) is in this build, and the guard has retired"
            f" by itself ({evidence}); drop the expectation, and vllm-guard when all have retired"
        )
    if verdict is Verdict.ABSENT:
        return f"this build does not have the code that the fault is in ({evidence})"
    if verdict is Verdict.NEEDED:
        return f"the fault is in this build ({evidence}); keep the guard"
    return f"nothing certain is known ({evidence}); {_REPORT}"
