# make demo     train a Transformer to translate, score it, and draw its attention
# make test     ruff, the type checker and the fast tests (under 8 minutes on 2 cores)
# make system   browser tests, documentation commands, longer trainings (under 30 minutes)
# make docs     the tour, all other documents and the API reference as a site in build/site (some 6 minutes the first time)
# make torture  kill -9, full disks, damaged files, malformed input, by the hundred; prints the counts
# make audit    known vulnerabilities of the dependencies (pip-audit) and of the source (bandit); says what it could check, never fails
# make bench    regard and its peers on the CPU, interleaved, as ratios (some 5 minutes on 2 idle cores)
# make bench-gpu  regard and its peers on one idle GPU, as a table with ratios (under 20 minutes, most of it compilation)
# make test-gpu   the tests that need a GPU (under 6 minutes)
# make reproduce RECIPE=recipes/x.toml [SEEDS="1 2 3"] [JOBS=1]   train a recipe again and say whether it reaches its reported score
# Each target installs what it needs into .venv: make setup the package alone, make dev the test tools too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
# models of other libraries that the tests watch, in a folder of their own: transformers imports any torchvision that it finds
FOREIGN := torchvision==0.28.0 timm==1.0.30 open_clip_torch==3.3.0 diffusers==0.42.1 ftfy==6.3.1 wcwidth
# loggers that make system tests offline, with what they need beyond the test tools (210 MB, half a minute)
LOGGERS := wandb==0.28.2 sentry-sdk==2.75.0 mlflow-skinny==3.17.2 sqlalchemy==2.0.44 alembic==1.20.1 Mako==1.4.3 cryptography==50.0.2 \
	cffi==2.1.1 pycparser==3.12 databricks-sdk==0.156.0 cachetools==7.3.1 sqlparse==0.6.1 python-dotenv==1.2.4 \
	importlib_metadata==9.1.0 zipp==4.1.2 opentelemetry-sdk==1.45.2 opentelemetry-proto==1.45.2 \
	opentelemetry-semantic-conventions==0.66b2 gitpython==3.2.1 gitdb==4.0.12 smmap==5.0.3
DEV := $(VENV)/.dev
# a killed worker fails its test by name; if it were restarted, the others would wait forever (pytest-xdist #1378)
SHARED := --dist loadfile --max-worker-restart 0
# system tests of one demo, which is trained once, and those that measure time or have time limits: one after another
ALONE := $(patsubst %,tests/system/test_%.py,demo site screenshots server torchrun)

# tests of kernels, CUDA graphs and images that run on a GPU where there is one
GPU_TESTS := tests/attention/test_gpu.py tests/attention/test_decode_kernel.py tests/attention/test_weights_kernel.py tests/layers tests/decoding/test_cuda_graphs.py \
	tests/decoding/test_beam_kernel.py tests/decoding/test_next_tokens.py tests/training/test_cuda_graphs.py \
	tests/training/test_losses_gpu.py tests/training/test_checkpoint_writer.py tests/training/test_precision.py tests/batches/test_images_gpu.py

.PHONY: setup dev demo test check system torture audit lock docs bench bench-gpu test-gpu reproduce clean

setup: $(RUNTIME)

$(RUNTIME): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

dev: $(DEV)

$(DEV): $(RUNTIME)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps --upgrade --target $(VENV)/foreign $(FOREIGN)
	touch $@

demo: setup
	$(BIN)/regard demo

check: dev
	$(BIN)/ruff format --check src tests docs benchmarks .ci
	$(BIN)/ruff check src tests docs benchmarks .ci
	$(BIN)/mypy

test: check
	$(BIN)/pytest -m "not system and not torture" -n auto $(SHARED)

$(VENV)/.loggers: Makefile $(RUNTIME)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps --upgrade --target $(VENV)/loggers $(LOGGERS)
	touch $@

system: dev $(VENV)/.loggers
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test,browser]"
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium) || echo "no chromium: the browser tests will be skipped"
	OMP_NUM_THREADS=1 $(BIN)/pytest -m system -rfEs --tb=short -n logical $(SHARED) --ignore=tests/torture $(ALONE:%=--ignore=%)
	$(BIN)/pytest -m system -rfEs --tb=short $(ALONE)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m system -rfEs tests/torture

torture: dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m torture -rs tests

audit:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit bandit
	$(BIN)/python .ci/audit.py

lock: dev
	$(BIN)/python .ci/lock.py

docs: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python docs/settings.py
	$(BIN)/python docs/tree.py
	$(BIN)/python docs/recipes.py
	$(BIN)/python docs/notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: dev
	for part in startup decoding generation encoding images training; do $(BIN)/python benchmarks/cpu_$$part.py || exit 1; done

bench-gpu: dev
	$(BIN)/python benchmarks/gpu_table.py
	$(BIN)/python benchmarks/watch.py

test-gpu: dev
	$(BIN)/pytest -q $(GPU_TESTS) -n 4 $(SHARED)

reproduce: setup
	@test -n "$(RECIPE)" || { echo 'which recipe? make reproduce RECIPE=recipes/x.toml [SEEDS="1 2 3"] [JOBS=1] [ARGS="--set …"]' >&2; exit 2; }
	$(BIN)/regard reproduce $(RECIPE) --seeds "$(SEEDS)" --jobs $(or $(JOBS),1) $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
