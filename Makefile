# Everything runs in an environment outside the checkout, built at first use by tools/environment.py.
PYTHON ?= python3
ENGINE = $(PYTHON) -m tools.environment
# Tests start its server; whatever they import comes from the other environment.
OLD_ENGINE = $(ENGINE) --engine 0.23.0

.PHONY: help demo test quick lint engine patches bench

help:
	@echo "make demo    two faults on real engines: without the guard, with it (3 minutes; the first time it also builds environments)"
	@echo "make test    everything (the first time it also downloads, and builds environments)"
	@echo "make quick   unit, runtime and scheduler tests on the installed vLLM (under 2 minutes)"
	@echo "make lint    ruff and mypy"
	@echo "make patches write PATCHES.md from patches/"
	@echo "make bench   what the guards cost, in tables; GATE=--gate fails where a limit is missed"
	@echo "make engine  build the environments only, and print their Pythons"

# Both environments first: what is built is built before the first act.
demo: engine
	@$(ENGINE) -m demo

# Two folders at a time: an engine leaves half of two cores idle.
test: lint engine
	$(ENGINE) -m pytest -q --timeout=900 -n 2 --no-loadscope-reorder tests
	$(ENGINE) -m nox

quick:
	$(ENGINE) -m pytest -q --timeout=60 -n 2 --dist loadfile --no-loadscope-reorder -m "not releases and not slow" tests/unit tests/runtime tests/scheduler

lint:
	$(ENGINE) -m ruff check .
	$(ENGINE) -m ruff format --check .
	$(ENGINE) -m mypy --strict vllm_guard

patches:
	$(ENGINE) -m tools.patches

bench:
	@$(ENGINE) -m benchmarks $(GATE)

engine:
	@$(ENGINE)
	@$(OLD_ENGINE)
