# `make demo` and `make test` do all the set-up; CI runs `make check` and `make test`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help demo test prove check format constraints clean

PY := .venv/bin/python
#: Written last, so that an interrupted set-up is done again.
READY := .venv/.laurel-ready

help:
	@printf '%s\n' \
	  'make demo         three regions on this machine: score, rank, kill a region, fail over, prove it' \
	  'make test         all tests, those without Ray first' \
  'make prove        10,000 simulated schedules, every mutant, five minutes of chaos on real processes' \
	  'make check        format, lint, types, import contracts' \
	  'make format       let ruff format the code and mend what it can' \
	  'make constraints  write the installed versions into constraints.txt' \
	  'make clean        remove .venv and the caches of the tools'

demo: $(READY)
	@$(PY) -m demo.main

test: $(READY)
	@$(PY) -m pytest

prove: $(READY)
	@echo '== 10,000 schedules from fixed seeds'; .venv/bin/laurel simulate --runs 10000 --seed 0
	@echo '== mutants: each must be caught'; .venv/bin/laurel simulate --mutants
	@echo '== five minutes of chaos on three real regions'; .venv/bin/laurel drill chaos --minutes 5 --seed 1

check: $(READY)
	@echo '== format'; $(PY) -m ruff format --check .
	@echo '== lint'; $(PY) -m ruff check .
	@echo '== types'; $(PY) -m mypy
	@echo '== import contracts'; .venv/bin/lint-imports

format: $(READY)
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

$(READY): pyproject.toml constraints.txt
	@set -euo pipefail; \
	if [ ! -x $(PY) ]; then \
	  found=; \
	  for name in python3.11 python3.12 python3.13 python3; do \
	    if command -v $$name >/dev/null && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$name; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then echo 'Laurel needs Python 3.11 or newer; install it and run make again.' >&2; exit 2; fi; \
	  echo "== creating .venv with $$($$found --version)"; \
	  $$found -m venv .venv || { rm -rf .venv; echo "$$found has no venv module; install it (Debian: apt-get install python3-venv) and run make again." >&2; exit 2; }; \
	fi
	@echo '== installing Laurel and what it needs into .venv (a minute or two, once)'
	@$(PY) -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[server,dev]'
	@# Regions start three times as fast from compiled files. Some packages ship templates that are no valid Python: not our failure.
	@echo '== compiling bytecode'
	@$(PY) -m compileall -q -j 0 .venv/lib actors boards chaos config drills failover journal laurel ledger regions simulation >/dev/null 2>&1 || true
	@touch $@

constraints: $(READY)
	@{ head -n 1 constraints.txt; .venv/bin/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+=='; } > .venv/constraints.new
	@mv .venv/constraints.new constraints.txt
	@touch $(READY)

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
