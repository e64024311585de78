"""What tests know of merges without importing torch or vLLM into their own process."""

from __future__ import annotations

TEXT = -1.0
"""What text positions hold before and after a merge."""

PLACES = (1, 2, 3, 4, 6, 7)
"""Which of the eight positions of `tests.embeddings.merges` are placeholders."""
