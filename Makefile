# Everything a newcomer needs: `make demo` shows what heatmover does, `make test` checks it.
# Each target prepares its own part of .venv once; later runs start at once.

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
PYTEST_FLAGS ?=
# Processes that share the tests, file by file: one for each core. One more finishes no sooner on two idle cores (302 s
# beside 298 s), for every process loads and collects everything.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')

# Where an environment keeps its programs. On Windows make needs a shell of Unix, such as that of Git.
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)

.DEFAULT_GOAL := help
.PHONY: help demo test lowest prerelease browser bench paper docs dist clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed-demo ## simulate a cohort, compare its samples, write demo-output/ with a report
	$(BIN)/heatmover demo --out demo-output --force

# Every check runs even if an earlier one failed, so that one run shows all there is to mend; pytest comes
# last because its closing line is the summary people and machines look for. It keeps what it compiles of the tests,
# also where the environment forbids that: else every process, and every one that a test starts, compiles it again.
# The order of files is that of tests/conftest.py.
test: $(VENV)/.installed-test ## ruff, mypy and pytest (PYTEST_FLAGS="--cov" adds coverage)
	@failed=0; \
	run() { echo "+ $$*"; "$$@" || failed=1; }; \
	run $(BIN)/ruff check .; \
	run $(BIN)/ruff format --check .; \
	run $(BIN)/mypy; \
	if [ $$failed = 1 ]; then echo "A check above failed, so this run will fail whatever the tests say."; fi; \
	run env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 12 $(PYTEST_FLAGS); \
	exit $$failed

# The bounds in pyproject.toml are promises, so they are tested. The environment is its own and is made anew when a
# bound changes; the compiled kernels are kept apart too, for each version of numba discards those of another.
# Wheels only, except where a package has none (FlowIO): an old version that would have to be compiled is no promise.
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

# What will break next: the newest version of everything, pre-releases included, brought up to date at every run.
PRERELEASE := .venv-prerelease
prerelease: ## pytest with the newest versions of everything, pre-releases included
	$(PYTHON) -m venv $(PRERELEASE)
	$(PRERELEASE)/$(SCRIPTS)/python -m pip install -q $(PIP_FLAGS) --pre --upgrade --upgrade-strategy eager \
	  --only-binary :all: --no-binary heatmover,flowio -c constraints.txt -e '.[test]'
	NUMBA_CACHE_DIR=$(abspath $(PRERELEASE))/numba $(PRERELEASE)/$(SCRIPTS)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_FLAGS)

# The report is tested in a real browser, which this installs (with sudo, for a user who may). Without one its tests are skipped, or fail if CI or
# HEATMOVER_REQUIRE_BROWSER is set; this target itself never fails. One line says what it did.
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

# Figures and numbers of the paper. Full, into docs/results: see docs/results/scale.md for Fig. 6, the longest. QUICK=1: minutes, into benchmarks/output/paper.
# DATA=mnist.npz adds Table 1, which needs MNIST. The cells of Fig. 6 are simulated, for the paper's are not public.
paper: $(VENV)/.installed-bench ## every figure and table of the paper, Fig. 6 with simulated cells (QUICK=1: minutes; DATA=mnist.npz adds Table 1)
	$(BIN)/python benchmarks/paper/all.py $(if $(QUICK),--quick) $(if $(DATA),--data $(DATA))

# -E reads every page anew: an unchanged page may show a result that changed code no longer gives. Pages of names that
# are no longer public would stay, so they go first. Two processes: each starts kernels that use all cores.
docs: $(VENV)/.installed-docs ## the documentation, checked, into docs/_build/html
	rm -rf docs/reference/generated docs/_build/html
	$(BIN)/python -m sphinx -q -E -W --keep-going -j 2 -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "open docs/_build/html/index.html"

# TAG=v1.2.3 checks a release: tag, version, changelog and citation agree. REPOSITORY=owner/name (and CONTACT=user) fills the conda recipe
# and scverse's entry into build/packaging.
dist: $(VENV)/.installed-dist ## wheel and sdist into dist/, checked; the demo and a quick test from the wheel
	$(BIN)/python .ci/dist.py --pip-flags='$(PIP_FLAGS)' --tag='$(TAG)' --repository='$(REPOSITORY)' --contact='$(CONTACT)'

clean: ## remove what the other targets made, except .venv, .venv-lowest and .venv-prerelease
	rm -rf build dist demo-output benchmarks/output docs/_build docs/jupyter_execute docs/reference/generated
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra. The constraints also bind what an extra pulls in: geomloss (bench) brings torch.
# Asking for pip rather than for the directory also repairs a .venv whose creation was interrupted. What was installed is
# compiled by all cores, for pip would use one: that is nearly half of the work, 97 of 206 s for the packages of the tests.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Expected $(PYTHON) to be Python 3.11 or newer; try make PYTHON=python3.12." >&2; exit 1; }; \
	  $(PYTHON) -m venv $(VENV); }
	@echo "Installing heatmover[$*] into $(VENV) (once; it may take some minutes) ..."
	$(BIN)/python -m pip install -q $(PIP_FLAGS) --no-compile -c constraints.txt -e '.[$*]'
	@$(BIN)/python -c 'import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2, workers=0)'
	@touch $@
