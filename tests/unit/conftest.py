"""Settings of the tools that these tests use."""

from hypothesis import settings

# A busy machine is slow, not wrong.
settings.register_profile("vllm-guard", deadline=None)
settings.load_profile("vllm-guard")
