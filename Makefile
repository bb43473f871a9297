# Every target sets up what it needs: a Python from 3.11 on, git and make are enough.
#   make demo         plan, run and prove a small training step; writes demo.json
#   make test         the quick tests            make test-all     every test
#   make test-newest  every quick test on the newest Python and the newest jax, unlocked
#   make lint         what CI checks             make format       what lint can mend by itself
#   make bench        the benchmark scripts      make lock         requirements.lock, anew

SHELL := /bin/bash
VENV := .venv
NEWEST := .venv-newest
WORKERS ?= 2
ARGS ?=
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PYTEST := -m pytest --numprocesses $(WORKERS) --dist loadgroup

# $(call find_python,VERSIONS): the first that runs, is 3.11 or later and can make a venv (a shim may be on the PATH
# and not run; Debian keeps ensurepip in a package of its own).
define find_python
for version in $(1); do \
  for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version*/bin/python; do \
    if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
      echo "$$python"; exit 0; \
    fi; \
  done; \
done; \
echo "No Python from 3.11 on that can make a venv was found (on Debian: apt-get install python3-venv)." >&2; exit 1
endef

.PHONY: demo test test-all test-newest lint format bench lock clean

demo: $(VENV)/.installed
	$(VENV)/bin/shardwright train

test: $(VENV)/.installed
	$(VENV)/bin/python $(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.installed
	$(VENV)/bin/python $(PYTEST) $(ARGS)

test-newest: $(NEWEST)/.installed
	$(NEWEST)/bin/python $(PYTEST) -m "not slow" $(ARGS)

lint: $(VENV)/.installed
	@status=0; \
	for check in "ruff check" "ruff format --check" "mypy"; do \
	  echo "$$check"; $(VENV)/bin/$$check || status=1; \
	done; \
	exit $$status

format: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

bench:
	@for script in benchmarks/*.py; do \
	  [ -e "$$script" ] || continue; \
	  printf '%-48s %s\n' "$$script" "$$(sed -n '/^"""/{s/^"""//; s/"""$$//; p; q}' "$$script")"; \
	done

# Resolved in a venv of its own, so that what lies in .venv by chance does not enter the lock.
lock:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && python=$$($(call find_python,3.11)) && \
	"$$python" -m venv "$$dir/venv" && "$$dir/venv/bin/python" $(PIP_INSTALL) '.[dev]' && \
	{ head -n 1 requirements.lock; \
	  "$$dir/venv/bin/python" -m pip freeze --exclude shardwright; } > "$$dir/lock" && \
	cp "$$dir/lock" requirements.lock

clean:
	rm -rf $(VENV) $(NEWEST)

$(VENV)/.installed: requirements.lock pyproject.toml
	@[ -x $(VENV)/bin/python ] || { python=$$($(call find_python,3.11 3.12 3.13 3.14 3)) && "$$python" -m venv $(VENV); }
	$(VENV)/bin/python $(PIP_INSTALL) --requirement requirements.lock
	$(VENV)/bin/python $(PIP_INSTALL) --no-deps --editable .
	@touch $@

$(NEWEST)/.installed: pyproject.toml
	@[ -x $(NEWEST)/bin/python ] || { python=$$($(call find_python,3.14 3.13 3.12 3.11 3)) && "$$python" -m venv $(NEWEST); }
	$(NEWEST)/bin/python $(PIP_INSTALL) --upgrade --upgrade-strategy eager --editable '.[dev]'
	@touch $@
