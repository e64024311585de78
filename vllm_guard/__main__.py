"""``python -m vllm_guard``: the same as the ``vllm-guard`` command."""

import sys

from vllm_guard.cli import main

if __name__ == "__main__":
    sys.exit(main())
