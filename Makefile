# Everything a newcomer needs: `make demo` shows what heatmover does, `make test` checks it.
# Each target installs what it needs into .venv once; later runs start immediately.

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
PYTEST_FLAGS ?=
# Number of processes that share the test files: one per core. A third process on two idle cores is not faster (302 s
# instead of 298 s), because every process imports and collects everything.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')

# Folder of the programs of an environment. On Windows make needs a Unix shell, for example Git Bash.
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)

.DEFAULT_GOAL := help
.PHONY: help demo test lowest prerelease browser bench paper docs dist clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed-demo ## simulate a cohort, compare its samples, write demo-output/ with a report
	$(BIN)/heatmover demo --out demo-output --force

# Every check runs even if an earlier one failed, so that one run shows everything to fix. pytest runs last because
# people and machines look for its summary line. PYTHONDONTWRITEBYTECODE is unset: otherwise every process, and every
# process that a test starts, compiles the tests again. tests/conftest.py determines the order of the files.
test: $(VENV)/.installed-test ## ruff, mypy and pytest (PYTEST_FLAGS="--cov" adds coverage)
	@failed=0; \
	run() { echo "+ $$*"; "$$@" || failed=1; }; \
	run $(BIN)/ruff check .; \
	run $(BIN)/ruff format --check .; \
	run $(BIN)/mypy; \
	if [ $$failed = 1 ]; then echo "A check above failed, so this run will fail whatever the tests say."; fi; \
	run env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 12 $(PYTEST_FLAGS); \
	exit $$failed

# The lower bounds in pyproject.toml are promises, so they are tested in a separate environment, which is built again
# when a bound changes. Compiled kernels are separate too, because numba discards kernels of another version.
# Only wheels are installed, except for a package that has none (FlowIO): versions without a wheel are not promised.
LOWEST := .venv-lowest
lowest: $(LOWEST)/.installed ## pytest with the lowest versions that pyproject.toml allows
	NUMBA_CACHE_DIR=$(abspath $(LOWEST))/numba $(LOWEST)/$(SCRIPTS)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_FLAGS)

$(LOWEST)/.installed: pyproject.toml constraints.txt .ci/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/$(SCRIPTS)/python .ci/lowest.py test > $(LOWEST)/constraints.txt
	@echo "Installing the lowest versions into $(LOWEST) (once; it may take some minutes) ..."
	$(LOWEST)/$(SCRIPTS)/python -m pip install -q $(PIP_FLAGS) --only-binary :all: --no-binary heatmover,flowio \
	  -c $(LOWEST)/constraints.txt -e '.[test]'
	@touch $@

# Shows what will break next: every run installs the newest version of everything, including pre-releases.
PRERELEASE := .venv-prerelease
prerelease: ## pytest with the newest versions of everything, including pre-releases
	$(PYTHON) -m venv $(PRERELEASE)
	$(PRERELEASE)/$(SCRIPTS)/python -m pip install -q $(PIP_FLAGS) --pre --upgrade --upgrade-strategy eager \
	  --only-binary :all: --no-binary heatmover,flowio -c constraints.txt -e '.[test]'
	NUMBA_CACHE_DIR=$(abspath $(PRERELEASE))/numba $(PRERELEASE)/$(SCRIPTS)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_FLAGS)

# Installs the browser in which the report is tested, with sudo if the user may. Without a browser these tests are
# skipped, or fail if CI or HEATMOVER_REQUIRE_BROWSER is set. This target never fails, and prints one line.
browser: ## install Chromium, in which the report is tested
	@if [ -n "$$HEATMOVER_CHROMIUM" ]; then echo "Browser for the tests: $$HEATMOVER_CHROMIUM."; exit 0; fi; \
	found=$$(command -v chromium || command -v chromium-browser || command -v google-chrome) && \
	  { echo "Browser for the tests: $$found."; exit 0; }; \
	if [ "$$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi; \
	if command -v apt-get >/dev/null && $$as_root true 2>/dev/null && { \
	  apt() { $$as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$$@"; }; \
	  apt update && apt install -y --no-install-recommends chromium fonts-liberation; } >/dev/null 2>&1; \
	then echo "Browser for the tests: installed Debian's chromium."; \
	else echo "Browser for the tests: none, and none could be installed; apt-get install chromium brings one."; fi

bench: $(VENV)/.installed-bench ## the benchmarks at small size, in one table
	$(BIN)/python benchmarks/all_small.py

# Figures and numbers of the paper, written into docs/results (docs/results/scale.md describes Fig. 6, the longest run).
# QUICK=1 takes minutes and writes into benchmarks/output/paper. DATA=mnist.npz adds Table 1, which needs MNIST. The
# cells of Fig. 6 are simulated, because the cells of the paper are not public.
paper: $(VENV)/.installed-bench ## every figure and table of the paper, Fig. 6 with simulated cells (QUICK=1: minutes; DATA=mnist.npz adds Table 1)
	$(BIN)/python benchmarks/paper/all.py $(if $(QUICK),--quick) $(if $(DATA),--data $(DATA))

# -E reads every page again, because an unchanged page may show a result that the changed code no longer gives. Pages of
# names that are no longer public are deleted first. Two processes, because each starts kernels that use all cores.
docs: $(VENV)/.installed-docs ## the documentation, checked, into docs/_build/html
	rm -rf docs/reference/generated docs/_build/html
	$(BIN)/python -m sphinx -q -E -W --keep-going -j 2 -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "open docs/_build/html/index.html"

# TAG=v1.2.3 checks that tag, version, changelog and citation of a release agree. REPOSITORY=owner/name (and
# CONTACT=user) writes the conda recipe and the scverse entry into build/packaging.
dist: $(VENV)/.installed-dist ## wheel and sdist into dist/, checked; the demo and a quick test from the wheel
	$(BIN)/python .ci/dist.py --pip-flags='$(PIP_FLAGS)' --tag='$(TAG)' --repository='$(REPOSITORY)' --contact='$(CONTACT)'

clean: ## remove what the other targets made, except .venv, .venv-lowest and .venv-prerelease
	rm -rf build dist demo-output benchmarks/output docs/_build docs/jupyter_execute docs/reference/generated
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra. The constraints also apply to dependencies of an extra: geomloss (bench) installs torch.
# The recipe tests for pip, not for the directory, so that it repairs a .venv whose creation was interrupted. All cores
# compile the installed packages, because pip would use one core for nearly half of the time: 97 of 206 s for `test`.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Expected $(PYTHON) to be Python 3.11 or newer; try make PYTHON=python3.12." >&2; exit 1; }; \
	  $(PYTHON) -m venv $(VENV); }
	@echo "Installing heatmover[$*] into $(VENV) (once; it may take some minutes) ..."
	$(BIN)/python -m pip install -q $(PIP_FLAGS) --no-compile -c constraints.txt -e '.[$*]'
	@$(BIN)/python -c 'import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2, workers=0)'
	@touch $@
