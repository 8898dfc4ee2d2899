# make demo: two simulated nodes train on this machine.   make test: everything is tested.   make help: the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MADE_FROM := setup.cfg setup.py pyproject.toml constraints.txt
PYTEST_ARGS ?=
# Two files of tests at a time; the tests of one file share labs and runs, so they stay together.
AT_ONCE := -n 2 --dist loadfile
# What needs neither Slurm nor processes that run for long.
UNIT := $(addprefix tests/,model diagnosis slurm slurm_text script config reports logs runs operations protocol \
  preflight/causes preflight/session preflight/checks preflight/probes preflight/test_majority.py \
  preflight/test_registry.py preflight/test_thresholds.py coordinator/test_coordinator.py \
  coordinator/test_coordinator_ends.py coordinator/test_coordinator_failures.py coordinator/test_hang_monitor.py \
  coordinator/test_notifications.py coordinator/test_recovery.py coordinator/test_restarts.py \
  coordinator/test_termination.py agent/test_agent.py agent/test_sidecars.py local rank_hooks bench/test_advice.py \
  bench/test_reading.py bench/test_result.py bench/test_study.py coordinator/test_slurm_job.py \
  coordinator/test_run_directory.py lab/test_lab_conf.py lab/test_lab_spec.py lab/test_lab_needs.py test_defaults.py test_layers.py)
# Debian suites with another Slurm: 20.11, 24.11 and 26.05.
SLURM_SUITES ?= bullseye trixie sid

.PHONY: help demo test test-hydra test-submitit test-cuda-standin unit lint bench test-slurm-versions slurm recordings schemas stub docs dist bundle clean

help:
	@echo 'make demo                 install into $(VENV) and train on 2 simulated nodes x 2 ranks'
	@echo 'make test                 install what the tests need (Slurm too, as root on Debian or Ubuntu) and run them'
	@echo 'make unit                 the tests that need neither Slurm nor processes that run for long'
	@echo 'make test-hydra           all of hydra'"'"'s own tests of launchers, on our launcher'
	@echo 'make test-submitit        all of submitit'"'"'s own tests of executors and plug-ins, on our executor'
	@echo 'make test-cuda-standin    the GPU path on the CUDA build of torch, without a GPU: a download of 0.5 GB'
	@echo 'make lint                 ruff and mypy'
	@echo 'make bench                measure against submitit, squeue, srun and torchrun, side by side'
	@echo 'make test-slurm-versions  the tests that need Slurm, on every Slurm version that can be had here'
	@echo 'make docs                 build the documentation as a site into build/docs'
	@echo 'make recordings           ask every Slurm of this machine anew what tests/recorded holds of it'
	@echo 'make dist                 build the wheel and the source archive into dist/'
	@echo 'make bundle               the same for machines without a network, with all that it needs but torch'
	@echo 'make clean                remove what was built, and $(VENV)'
	@echo 'PYTHON=… picks the Python that makes $(VENV), PYTEST_ARGS=… goes to pytest'

demo: $(VENV)/.installed
	$(BIN)/clusterrun submit --cluster local --nodes 2 --ranks-per-node 2 --follow jobs/train.py
	@echo '  these commands are in $(BIN): source $(BIN)/activate, then type them as they stand'

test: $(VENV)/.installed-dev slurm
	$(BIN)/python -m pytest $(AT_ONCE) $(PYTEST_ARGS)

test-hydra: $(VENV)/.installed-dev
	CLUSTERRUN_TEST_HYDRA=all $(BIN)/python -m pytest tests/test_hydra_launcher.py $(PYTEST_ARGS)

test-submitit: $(VENV)/.installed-dev
	CLUSTERRUN_TEST_SUBMITIT=all $(BIN)/python -m pytest tests/test_submitit_suite.py $(PYTEST_ARGS)

# TORCH=2.6.0 picks another version of torch. In a virtual environment of its own, below build/.
test-cuda-standin:
	$(MAKE) -C tests/cuda_standin test PYTHON='$(PYTHON)'

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m 'not lab and not slow' $(UNIT) $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.installed-dev slurm
	$(BIN)/python -m benchmarks

# The tests that use a lab, on this machine's own Slurm and on every other one that can be fetched or is here.
test-slurm-versions: $(VENV)/.installed-dev slurm
	$(BIN)/python -m tests.slurm_versions $(SLURM_SUITES) -- $(PYTEST_ARGS)

# What Slurm answers to our questions, asked anew: after a column is added in clusterrun/slurm/queries.py.
recordings: $(VENV)/.installed-dev slurm
	$(BIN)/python -m tests.record_slurm

slurm: $(VENV)/.installed-dev
	@sh tests/install_slurm.sh $(BIN)/clusterrun

# docs/schemas, from the views that the JSON documents are made from.
schemas: $(VENV)/.installed
	$(BIN)/python -m tests.make_schemas

# A warning ends it, so does a link that leads nowhere. docs/ has the pages, website/ what makes a site of them.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -E -W --keep-going -q -c website -b html docs build/docs
	@echo 'built: build/docs/index.html'

# What editors read of the Python functions: every option of the table, by name.
stub: $(VENV)/.installed
	$(BIN)/python -m tests.make_stub

dist: $(VENV)/.installed-dev
	$(BIN)/python -m build

# For machines without a network: wheels of clusterrun and all that it needs but torch, with an installer.
bundle: $(VENV)/.installed-dev
	sh packaging/bundle.sh $(BIN)/python dist

# Where ensurepip is missing (Debian keeps it in a package of its own) the pip that is there brings a pip.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip install --quiet --target \
	    "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" pip; }

$(VENV)/.installed: $(MADE_FROM) | $(BIN)/python
	@echo 'installing clusterrun and torch into $(VENV): some minutes the first time, depending on the network'
	$(PIP) install --quiet --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(MADE_FROM) | $(BIN)/python
	@echo 'installing clusterrun, torch and the test tools into $(VENV): some minutes the first time'
	$(PIP) install --quiet --constraint constraints.txt --editable '.[torch,dev,docs]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
