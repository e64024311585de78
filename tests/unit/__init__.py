"""Tests of single modules: pure Python, neither vLLM nor torch."""
