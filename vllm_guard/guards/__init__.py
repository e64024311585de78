"""The guards: one module each, with its faults, its targets, its probe and its rules."""

from vllm_guard.guards import clamp, mm_merge, stale

DEFINITIONS = (clamp.DEFINITION, stale.DEFINITION, mm_merge.DEFINITION)
