"""A miniature of vLLM: the few modules and classes that vllm-guard looks for, and the fault."""

__version__ = "0.20.0+das.dtk2604"
