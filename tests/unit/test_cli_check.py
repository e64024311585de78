"""`vllm-guard check`: its gates, exit codes, formats and messages, on small builds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.unit.site_folder import SCHEDULER, Site
from vllm_guard.cli import gate, main
from vllm_guard.cli.gate import FAULTS, Known
from vllm_guard.states import Finding, Verdict

Captured = pytest.CaptureFixture[str]

ENTRY_POINT = "[vllm.general_plugins]\nvllm_guard = vllm_guard:register\n"


def found(verdict: Verdict, **faults: Verdict) -> gate.Findings:
    """Findings with one verdict, but for these faults."""
    named = {fault.replace("_", "-"): other for fault, other in faults.items()}
    return {
        guard: {fault: Finding(named.get(fault, verdict), f"{fault} seen") for fault in names}
        for guard, names in FAULTS.items()
    }


def messages(complaints: object) -> list[str]:
    """The complaints as the user sees them."""
    return [str(complaint) for complaint in complaints]  # type: ignore[attr-defined]


def states(state: str, mode: str = "auto") -> dict[str, dict[str, str]]:
    """What a process says of its guards."""
    return {guard: {"state": state, "mode": mode, "detail": "because"} for guard in FAULTS}


class TestGates:
    def test_nothing_is_complained_of_where_all_that_is_needed_is_in_force(self) -> None:
        needed = found(Verdict.NEEDED)
        known = Known(needed, needed, states("applied"))
        assert messages(gate.cannot_apply(known)) == []
        assert messages(gate.disagreeing(known)) == []

    @pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.FOREIGN])
    def test_a_doubt_names_the_fault_the_evidence_and_what_to_do(self, verdict: Verdict) -> None:
        known = Known(found(Verdict.FIXED, reset=verdict))
        (message,) = messages(gate.cannot_apply(known))
        assert message.startswith("stale: does not act on what it is not certain of")
        assert f"reset {verdict}: reset seen" in message
        assert "vllm-guard report" in message
        assert "VLLMGUARD_STALE=force" in message

    @pytest.mark.parametrize("mode", ["off", "force"])
    def test_a_doubt_about_a_guard_that_is_switched_off_or_forced_is_none(self, mode: str) -> None:
        doubtful = found(Verdict.UNKNOWN)
        state = "off" if mode == "off" else "applied"
        assert messages(gate.cannot_apply(Known(doubtful, doubtful, states(state, mode)))) == []

    def test_a_guard_that_is_needed_and_not_in_force_is_complained_of(self) -> None:
        known = Known(found(Verdict.NEEDED), None, states("failed"))
        for message in messages(gate.cannot_apply(known)):
            assert "is needed and not in force: failed, because" in message

    def test_what_vllm_does_not_load_is_not_in_force_and_no_bug_to_report(self) -> None:
        known = Known(found(Verdict.NEEDED), None, states("not loaded"))
        shown = messages(gate.cannot_apply(known))
        assert shown == [
            f"{guard}: is needed and not in force: not loaded, because" for guard in FAULTS
        ]

    @pytest.mark.parametrize(
        ("state", "mode", "words"),
        [("off", "off", "is switched off"), ("observing", "observe", "only observes")],
    )
    def test_a_needed_guard_that_is_switched_off_is_a_warning(
        self, state: str, mode: str, words: str
    ) -> None:
        known = Known(found(Verdict.NEEDED), None, states(state, mode))
        assert messages(gate.cannot_apply(known)) == []
        shown = messages(gate.switched_off(known))
        assert len(shown) == len(FAULTS)
        for guard, message in zip(FAULTS, shown, strict=True):
            assert message.startswith(f"{guard}: is needed and {words}")
            assert f"unset VLLMGUARD_{guard.upper()} and VLLMGUARD" in message

    @pytest.mark.parametrize("verdict", [Verdict.FIXED, Verdict.ABSENT])
    def test_switching_off_what_is_not_needed_is_no_warning(self, verdict: Verdict) -> None:
        known = Known(found(verdict), None, states("off", "off"))
        assert messages(gate.switched_off(known)) == []

    def test_a_forced_guard_has_to_be_in_force(self) -> None:
        known = Known(found(Verdict.UNKNOWN), None, states("failed", "force"))
        assert len(messages(gate.cannot_apply(known))) == len(FAULTS)

    def test_source_and_behaviour_must_agree_and_what_was_run_counts(self) -> None:
        static = found(Verdict.NEEDED)
        live = found(Verdict.NEEDED, one_row=Verdict.FIXED)
        known = Known(static, live)
        (message,) = messages(gate.disagreeing(known))
        assert message.startswith("mm_merge: one-row is needed by the source")
        assert "fixed by running it" in message
        assert known.findings("mm_merge")["one-row"].verdict is Verdict.FIXED

    def test_a_fix_that_landed_is_named_with_what_to_do(self) -> None:
        known = Known(found(Verdict.FIXED))
        first, *_ = messages(gate.counted_as_finding(known, [Verdict.FIXED]))
        stale = next(
            m for m in messages(gate.counted_as_finding(known, [Verdict.FIXED])) if "48" in m
        )
        assert first.startswith("clamp: ")
        assert "#48245" in stale
        assert "has retired by itself" in stale
        assert "drop the expectation" in stale

    def test_expectations_of_guards_and_of_single_faults(self) -> None:
        known = Known(found(Verdict.NEEDED, reset=Verdict.FIXED))
        good = gate.parse_expectations("clamp=needed, stale.reset=fixed,stale=needed")
        assert messages(gate.unexpected(known, good)) == []
        bad = gate.parse_expectations("stale.reset=needed,mm_merge=fixed")
        shown = messages(gate.unexpected(known, bad))
        assert "stale.reset was expected to be needed and is fixed" in shown[0]
        assert "mm_merge was expected to be fixed and is needed" in shown[1]

    def test_requiring_a_fix_complains_until_it_is_there(self) -> None:
        (message,) = messages(gate.not_fixed(Known(found(Verdict.NEEDED)), ["stale"]))
        assert "the upstream fix is not in this build" in message
        assert messages(gate.not_fixed(Known(found(Verdict.ABSENT)), ["stale"])) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--expect", "clump=needed"], "no guard named 'clump' (there are: clamp, stale,"),
        (["--expect", "clamp"], "'clamp' is not GUARD=VERDICT"),
        (["--expect", "clamp.reset=fixed"], "clamp has no fault named 'reset'"),
        (["--expect", "clamp=gone"], "'gone' is no verdict (there are: needed,"),
        (["--fail-on", "gone"], "'gone' is no verdict"),
        (["--require-fixed", "clump"], "no guard named 'clump'"),
        (["--require-fixed", "clamp", "--fail-on", "fixed"], "asks one thing only"),
        (["no-such-folder/"], "no-such-folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: Captured
) -> None:
    assert main(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert words in line


def test_an_error_of_our_own_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Exit code 1 says that there is one."""
    monkeypatch.setattr("vllm_guard.cli.check._look", lambda _given: 1 / 0)
    assert main(["check"]) == 2
    assert "please report it" in capsys.readouterr().err


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with a vLLM that has a scheduler and nothing else."""
    site = Site(tmp_path)
    site.add_vllm()
    site.add_distribution("vllm-guard", "", ENTRY_POINT)
    return site


def lines(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command printed; it has nothing to say on standard error."""
    assert ended.stderr == ""
    return ended.stdout.splitlines()


def test_an_installed_build_is_read_and_run(site: Site) -> None:
    ended = site.run("check")
    shown = lines(ended)
    assert shown[0].endswith("(source read, code run)")
    assert any(line.split()[:3] == ["clamp", "needed", "applied"] for line in shown)
    assert shown[-1] == "nothing to do"
    assert ended.returncode == 0


def test_what_was_expected_differently_is_a_finding(site: Site) -> None:
    ended = site.run("check", "--expect", "clamp=fixed")
    assert ended.returncode == 1
    (finding,) = [line for line in lines(ended) if line.startswith("finding: ")]
    assert "clamp was expected to be fixed and is needed" in finding


@pytest.mark.parametrize("switch", ["VLLMGUARD", "VLLMGUARD_CLAMP"])
def test_warnings_are_findings_if_strict(site: Site, switch: str) -> None:
    """Here that a guard is needed and switched off: it may be meant, and must not be forgotten."""
    loose = site.run("check", **{switch: "off"})
    strict = site.run("check", "--strict", **{switch: "off"})
    assert (loose.returncode, strict.returncode) == (0, 1)
    told = "clamp: is needed and is switched off"
    assert [line for line in lines(loose) if line.startswith(f"warning: {told}")]
    assert lines(loose)[-1] == "no finding, but warnings"
    assert [line for line in lines(strict) if line.startswith(f"finding: {told}")]


def test_an_allow_list_that_keeps_us_out_is_a_finding(site: Site) -> None:
    """Nothing would be guarded, whatever the process that was asked could do."""
    ended = site.run("check", VLLM_PLUGINS="lora, vllm_guard")
    shown = lines(ended)
    assert ended.returncode == 1
    assert any(line.split() == ["clamp", "needed", "not", "loaded"] for line in shown)
    (finding,) = [line for line in shown if line.startswith("finding: clamp: ")]
    assert "VLLM_PLUGINS='lora, vllm_guard' keeps vllm-guard out: add vllm_guard to it" in finding
    assert "report" not in finding


def test_json_is_the_document_of_audit_with_findings(site: Site) -> None:
    ended = site.run("check", "--format", "json", "--expect", "stale=needed")
    document = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert document["schema_version"] == 1
    assert document["ok"] is False
    assert [finding["guard"] for finding in document["findings"]] == ["stale"]
    (build,) = document["builds"]
    assert build["version"] == "0.20.0+das.dtk2604"
    assert [guard["guard"] for guard in build["guards"]] == list(FAULTS)


def test_github_annotates_findings_as_errors(site: Site) -> None:
    ended = site.run("check", "--format", "github", "--expect", "stale=needed")
    shown = lines(ended)
    assert all(line.startswith("::") for line in shown)
    assert [line for line in shown if line.startswith("::error title=vllm-guard check stale::")]


def test_another_build_is_read_only(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    other.folder.mkdir()
    other.add_vllm(SCHEDULER.replace("request.append_output_token_ids(token)", "pass"))
    ended = site.run("check", str(other.folder), "--fail-on", "absent")
    assert lines(ended)[0].endswith("(source read)")
    assert ended.returncode == 1
    required = site.run("check", str(other.folder), "--require-fixed", "stale")
    assert required.returncode == 0


def test_report_shows_what_is_asked_for_and_no_other_variable(site: Site) -> None:
    """In a block, with the home folder hidden."""
    ended = site.run("report", VLLMGUARD_STALE="off", HF_TOKEN="hf_secret", VLLM_API_KEY="secret")
    shown = lines(ended)
    assert (shown[0], shown[-1], ended.returncode) == ("```text", "```", 0)
    assert "secret" not in ended.stdout
    assert str(site.folder) not in ended.stdout
    assert "  VLLMGUARD_STALE='off'" in shown
    assert "by its source:" in shown
    assert "by running it:" in shown
    assert any(line.strip().startswith("vllm_guard = vllm_guard:register") for line in shown)


def test_report_without_a_usable_vllm_says_so_in_its_place(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("vllm/__init__.py", "raise OSError('libtorch_dcu.so: cannot open')\n")
    ended = site.run("report")
    assert ended.returncode == 0
    assert "libtorch_dcu.so: cannot open" in ended.stdout
