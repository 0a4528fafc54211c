# make demo   watch a Transformer learn to translate, and look at what it attends to
# make test   ruff, the type checker, laws and tiny systems (under 8 minutes on 2 cores)
# make docs   the tour and all other documents as a site in build/site (some 6 minutes the first time)
# make torture  kill -9, full disks, damaged files, malformed input, by the hundred; prints the counts
# make audit  known weaknesses of the dependencies and of the source, where the tools are there; never fails
# make bench  us and the peers on the CPU, in turns, as ratios (some 5 minutes on 2 cores; leave the machine alone meanwhile)
# make bench-gpu  likewise on one GPU, alone (compiling takes most of it), with Multi30k in data/multi30k
# All set up what they need; make setup does that part alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# a process that is killed fails its test by name; replaced, the others would wait for it forever (pytest-xdist #1378)
SHARED := --dist loadfile --max-worker-restart 0
# the system tests that measure time, or would be hurried by others at their side
ALONE := $(patsubst %,tests/system/test_%.py,demo site page views server ranks)

.PHONY: setup demo test check system torture audit lock docs bench bench-gpu clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	touch $@

demo: setup
	$(BIN)/regard demo

check: setup
	$(BIN)/ruff check src tests docs benchmarks
	$(BIN)/mypy

test: check
	$(BIN)/pytest -m "not system and not torture" -n auto $(SHARED)

system: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test,browser]"
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium) || echo "no chromium: the browser tests will be skipped"
	OMP_NUM_THREADS=1 $(BIN)/pytest -m system -rs -n logical $(SHARED) --ignore=tests/torture $(ALONE:%=--ignore=%)
	$(BIN)/pytest -m system -rs $(ALONE)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m system -rs tests/torture

torture: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -m torture -rs tests

audit: setup
	$(BIN)/python .ci/audit.py

lock: setup
	$(BIN)/python .ci/lock.py

docs: setup
	$(BIN)/python docs/settings.py
	$(BIN)/python docs/build.py

bench: setup
	for part in startup decoding generation encoding training; do $(BIN)/python benchmarks/cpu_$$part.py || exit 1; done

bench-gpu: setup
	for work in "training gpt2" "training base" "training vit" "decoding base" "decoding base --rows 1" "decoding gpt2 --rows 1" \
	    "decoding gpt2 --rows 64" "decoding bert"; do $(BIN)/python benchmarks/gpu_$$work || exit 1; done
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/growth.py --only works --precision bf16

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
