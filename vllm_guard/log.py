"""Our log lines, in vLLM's own logging.

A child of the ``vllm`` logger inherits its handlers, level, format and JSON configuration, so
nothing is configured here.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.vllm_guard")
