"""Healthy steps that look unusual, on every release."""

from __future__ import annotations

from typing import Any

from tests.releases.isolated import INSTALLED
from tests.scheduler.matrix import RELEASES

PATIENT_WITH_DRAFTERS = RELEASES[RELEASES.index("0.24.0") :]


def test_unusual_healthy_steps_are_bit_identical_without_a_trigger(
    release: str, result: Any
) -> None:
    steps = result["shapes"]["steps"]
    patient = release == INSTALLED or release in PATIENT_WITH_DRAFTERS
    assert ("drafter v1" in steps, "drafter v2" in steps) == (patient, patient)
    for name, found in steps.items():
        assert (name, found["identical"]) == (name, True)
        assert found["marked"] >= len("first")
    guard = result["shapes"]["guard"]
    assert (guard["triggers"], guard["internal_errors"]) == ({}, [])
