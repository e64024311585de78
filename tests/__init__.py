"""Tests of vllm-guard, from single functions up to a real engine."""
