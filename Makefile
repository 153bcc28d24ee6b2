# Thin verbs over CMakePresets.json and scripts/. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-vm bench fuzz lint format docs wheel clean
MAKEFLAGS += --no-print-directory

PYTHON := .venv/bin/python
SECONDS_PER_FUZZER ?= 600

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## set everything up, then show the example, its speed, its layers, and seven attacks that fail inside
	@scripts/setup.sh demo
	@$(PYTHON) examples/demo.py

test: ## set everything up, then unit, integration, security, style and sanitizer tests (11 minutes on two cores with nothing compiled yet)
	@scripts/setup.sh test
	@$(PYTHON) tests/run.py

test-all: ## the same, then the virtual machine, chaos, installations and one minute of each fuzzer
	@scripts/setup.sh test --vm --fuzz
	@scripts/wheel.sh
	@$(PYTHON) tests/run.py --all

test-vm: ## only the virtual machines: cgroup v2, AppArmor, Linux 5.10, Ubuntu 24.04; built from packages on first use
	@scripts/setup.sh test --vm
	@tests/vm/run.sh

bench: ## measure against the peers that are installed; prints a table and fills the one in README.md
	@scripts/setup.sh test --bench
	@scripts/bench.sh

fuzz: ## run each fuzzer for SECONDS_PER_FUZZER (600) seconds; corpus in fuzz/corpus
	@scripts/setup.sh test --fuzz
	@scripts/fuzz.sh $(SECONDS_PER_FUZZER)

lint: ## check formatting, clang-tidy, Python and shell scripts
	@scripts/setup.sh test --lint
	@scripts/lint.sh check

format: ## rewrite C++ and Python files in the project's format
	@scripts/setup.sh test
	@scripts/lint.sh format

docs: ## check the documents: links, commands, options, help texts
	@scripts/setup.sh test
	@$(PYTHON) -m pytest -q -rs tests/style

wheel: ## build the wheel into dist/: one file for every Python from 3.10 on
	@scripts/setup.sh demo
	@scripts/wheel.sh

clean: ## remove build/, dist/ and .venv/
	rm -rf build dist .venv
