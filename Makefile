# Every target makes .venv and installs on first use, and again when pyproject.toml changed.
# PYTHON chooses the interpreter (3.11 to 3.13); ARGS are options of the command underneath.

SHELL := bash
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=

SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(SUITABLE)' 2> /dev/null && { echo "$$p"; break; }; done)

# Processes are started by the hundred: each would compile all of our code again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint bench soak
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@$(PY) -m dflashd.worker.pull smollm2-135m > /dev/null
	@$(PY) examples/demo.py $(ARGS)

test: $(VENV)/.installed-dev
	@$(PY) -m dflashd.worker.pull smollm2-135m > /dev/null
	@$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.installed-dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo
	@$(VENV)/bin/basedpyright

bench: $(VENV)/.installed
	@$(PY) -m dflashd.worker.pull smollm2-135m > /dev/null
	@$(PY) -m benchmarks $(ARGS)

# Hours: the simulation for millions of steps, then half an hour of real processes and faults.
soak: $(VENV)/.installed-dev
	@$(PY) -m tests.soak $(ARGS)

# pip's long account as one line of a terminal, or as a line per step; its errors as they are.
define install
	@set -o pipefail; tty=$$([ -t 1 ] && echo 1 || true); \
	$(PY) -m pip install --disable-pip-version-check --progress-bar off --editable '$(1)' \
	| awk -v tty="$$tty" '/^(Collecting|Downloading|Building|Installing)/ { \
		if (tty) printf "\r\033[K  %s %s", $$1, $$2; else if ($$1 != "Downloading") print "  " $$1, $$2; \
		fflush() } END { if (tty) printf "\r\033[K" }'
endef

# An interrupted step leaves no stamp, so the next make takes it again.
$(VENV)/.made:
	@[ -n "$(PYTHON)" ] || { echo "dflashd needs Python 3.11, 3.12 or 3.13 with venv and pip:" \
		"install one, or name it (make PYTHON=/path/to/python3.12)" >&2; exit 1; }
	@"$(PYTHON)" -c '$(SUITABLE)' || { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13 with venv" \
		"and pip: name another (make PYTHON=/path/to/python3.12)" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.made
	@echo "installing dflashd into $(VENV) (minutes the first time)"
	$(call install,.[http])
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.made
	@echo "installing dflashd and its development tools into $(VENV) (minutes the first time)"
	$(call install,.[dev])
	@touch $@ $(VENV)/.installed
