"""A real vLLM engine on a CPU: the library behind the engine tests and behind ``make demo``."""
