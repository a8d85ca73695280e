# Development tasks. `make` lists the targets.
# Each target sets up its environment on first use. Requires Python 3.10 or newer, git and make.

PYTHON ?= python3
TEXT ?= Hello from Legato.
OUT ?= out.wav
ARGS ?=
TORCH_INDEX ?=
CONSTRAINTS ?= constraints.txt

# `make voice`: CPU seconds (one core) for synthesizing training speech, the two codec phases, and the talker.
SPEECH_S ?= 18000
CODEC_S ?= 7200
CODEC_GAN_S ?= 3600
TALKER_S ?= 5400

VENV := .venv
PARITY_VENV := .venv-parity
VOICE_VENV := .venv-voice
DOCS_VENV := .venv-docs
CLUSTER_VENV := .venv-cluster
CLIENTS_VENV := .venv-clients
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PARITY_PIP := $(PARITY_VENV)/bin/python -m pip --disable-pip-version-check --quiet
VOICE_PIP := $(VOICE_VENV)/bin/python -m pip --disable-pip-version-check --quiet
MADE := $(VENV)/made.stamp
RUN := $(VENV)/run.stamp
DEV := $(VENV)/dev.stamp
PARITY := $(PARITY_VENV)/made.stamp
VOICE := $(VOICE_VENV)/made.stamp
DOCS := $(DOCS_VENV)/made.stamp
CLUSTER := $(CLUSTER_VENV)/made.stamp
CLIENTS := $(CLIENTS_VENV)/made.stamp

# Passed through the environment, so that quotes and dollar signs in the text are preserved.
export LEGATO_SAY_TEXT := $(value TEXT)

.DEFAULT_GOAL := help
.PHONY: help say test test-clients test-cluster test-sanitizers check format docs docs-serve parity parity-full voice clean clean-all

help:
	@echo 'Legato: exact streaming inference for Qwen3-TTS-class speech models'
	@echo
	@echo '  make say TEXT="Hello from Legato."   synthesize with the embedded voice; writes out.wav'
	@echo '  make test                            run all tests (ARGS="-k codec -x" is passed to pytest)'
	@echo '  make test-clients                    run clients of other projects against a server, in a separate environment'
	@echo '  make test-cluster                    run the cluster tests, with two replicas on Ray Serve, in a separate environment'
	@echo '  make test-sanitizers                 run the C tests of the thread pool under ASan, UBSan and TSan'
	@echo '  make check                           check lint, formatting and types'
	@echo '  make format                          fix lint and formatting'
	@echo '  make docs                            build the documentation site in build/site; warnings are errors'
	@echo '  make docs-serve                      serve the site at http://127.0.0.1:8001 and rebuild on changes'
	@echo '  make parity                          compare with the official package, in a separate environment'
	@echo '  make parity-full                     the same, also at the full 0.6B size'
	@echo '  make voice                           train the embedded voice (about ten CPU hours on one core)'
	@echo '  make clean, make clean-all           remove generated files; clean-all also removes environments'
	@echo
	@echo '  OUT=file.wav      output of `make say`              ARGS="..."   extra arguments of the command'
	@echo '  PYTHON=python3.12 Python that creates .venv'
	@echo '  TORCH_INDEX=URL   package index for torch. On Linux, PyPI has the CUDA build (several GB);'
	@echo '                    https://download.pytorch.org/whl/cpu has the smaller CPU build'
	@echo
	@echo '`make say` installs the command $(BIN)/legato; see `$(BIN)/legato --help`.'

say: $(RUN)
	@$(BIN)/legato say -o "$(OUT)" $(ARGS) -- "$$LEGATO_SAY_TEXT"

test: $(DEV)
	@$(BIN)/python -m pytest $(ARGS)

test-clients: $(RUN) $(CLIENTS)
	@$(BIN)/python -m clients.run --python $(CLIENTS_VENV)/bin/python $(ARGS)

test-cluster: $(CLUSTER)
	@$(CLUSTER_VENV)/bin/python -m pytest tests/cluster $(ARGS)

# The kernels' thread pool under the address, undefined behaviour and thread sanitizers, with 1, 2 and 3 threads.
POOL_TEST := tests/kernels/pool_test.c legato/kernels/thread_pool.c -Ilegato/kernels -std=gnu11 -O1 -g -pthread
test-sanitizers:
	@mkdir -p build
	@for sanitizer in address,undefined thread; do \
	  $(CC) -fsanitize=$$sanitizer -fno-sanitize-recover=all $(POOL_TEST) -o build/pool_test || exit 1; \
	  for threads in 1 2 3; do echo "$$sanitizer, $$threads threads"; build/pool_test $$threads || exit 1; done; done

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p legato -p tests

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet
	@echo 'wrote build/site/index.html'

docs-serve: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs serve --dev-addr 127.0.0.1:8001

parity: $(RUN) $(PARITY)
	@$(BIN)/python -m parity.run --oracle $(PARITY_VENV)/bin/python $(ARGS)

parity-full: $(RUN) $(PARITY)
	@$(BIN)/python -m parity.run --oracle $(PARITY_VENV)/bin/python --full $(ARGS)

# Every step can be interrupted and resumed (recipes/embedded/README.md).
RECIPE := cd recipes/embedded && ../../$(VOICE_VENV)/bin/python
voice: $(VOICE)
	$(RECIPE) assets.py
	$(RECIPE) texts.py
	$(RECIPE) teacher.py --held-out 10
	$(RECIPE) teacher.py --cpu-seconds $(SPEECH_S)
	$(RECIPE) features.py
	$(RECIPE) codec_train.py spectral --budget-s $(CODEC_S)
	$(RECIPE) codec_train.py adversarial --budget-s $(CODEC_GAN_S)
	$(RECIPE) codec_export.py
	$(RECIPE) train_durations.py
	$(RECIPE) train_lm.py --cpu-seconds $(TALKER_S)
	$(RECIPE) export.py
	$(RECIPE) export.py --check
	$(RECIPE) evaluate.py --systems voice

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis out.wav
	find legato tests parity recipes -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean
	rm -rf $(VENV) $(PARITY_VENV) $(VOICE_VENV) $(DOCS_VENV) $(CLUSTER_VENV) $(CLIENTS_VENV) clients/npm/node_modules

# --- environments ----------------------------------------------------------------------------------------------------

define require_python
@command -v "$(PYTHON)" >/dev/null || { \
	  echo "'$(PYTHON)' was not found. Install Python 3.10 or newer, or set PYTHON: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "Legato requires Python 3.10 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Use another: make PYTHON=python3.11 ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
endef

$(MADE):
	$(require_python)
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

# torch is most of the download, so only its progress is shown.
define install_torch
@$(1)/bin/python -c 'import torch' 2>/dev/null || { \
	  if [ -n "$(TORCH_INDEX)" ]; then set -- --no-deps --index-url "$(TORCH_INDEX)"; else set --; fi; \
	  if [ -z "$(TORCH_INDEX)" ] && [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null; then \
	    echo 'No NVIDIA GPU was found. To avoid the CUDA build (several GB), stop and add'; \
	    echo '  TORCH_INDEX=https://download.pytorch.org/whl/cpu'; fi; \
	  $(1)/bin/python -m pip --disable-pip-version-check install "$$@" "$$(grep '^torch==' constraints.txt)"; }
endef

$(RUN): pyproject.toml constraints.txt $(MADE)
	@echo 'Creating $(VENV).'
	$(call install_torch,$(VENV))
	$(PIP) install -c "$(CONSTRAINTS)" -e '.[server]'
	@touch $@

# The official package has its own environment. Its dependencies are pinned in parity/requirements.txt; it is installed
# with --no-deps because it also requires the packages of its demo.
$(PARITY): parity/requirements.txt
	$(require_python)
	@echo 'Creating $(PARITY_VENV).'
	"$(PYTHON)" -m venv $(PARITY_VENV)
	$(call install_torch,$(PARITY_VENV))
	$(PARITY_PIP) install -r parity/requirements.txt
	$(PARITY_PIP) install --no-deps qwen-tts==0.1.1
	@touch $@

$(VOICE): recipes/embedded/requirements.txt
	$(require_python)
	@echo 'Creating $(VOICE_VENV).'
	"$(PYTHON)" -m venv $(VOICE_VENV)
	$(call install_torch,$(VOICE_VENV))
	$(VOICE_PIP) install -r recipes/embedded/requirements.txt -e .
	$(VOICE_PIP) install --no-deps resemblyzer==0.1.4
	@touch $@

$(CLIENTS): clients/requirements.txt clients/constraints.txt clients/npm/package.json
	$(require_python)
	@echo 'Creating $(CLIENTS_VENV).'
	"$(PYTHON)" -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install -c clients/constraints.txt -r clients/requirements.txt
	@if command -v npm >/dev/null; then npm install --prefix clients/npm --silent --no-audit --no-fund; else \
	  echo 'npm was not found: the npm clients are skipped'; fi
	@touch $@

# An environment of its own: Ray brings other event loops and HTTP parsers, which uvicorn would use.
$(CLUSTER): pyproject.toml constraints.txt
	$(require_python)
	@echo 'Creating $(CLUSTER_VENV).'
	"$(PYTHON)" -m venv $(CLUSTER_VENV)
	$(call install_torch,$(CLUSTER_VENV))
	$(CLUSTER_VENV)/bin/python -m pip --disable-pip-version-check --quiet install -c "$(CONSTRAINTS)" -e '.[server,dev,cluster]'
	@touch $@

$(DOCS): docs/requirements.txt
	$(require_python)
	@echo 'Creating $(DOCS_VENV).'
	"$(PYTHON)" -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install -r docs/requirements.txt
	@touch $@

$(DEV): $(RUN)
	$(PIP) install -c "$(CONSTRAINTS)" -e '.[server,dev]'
	@touch $@
