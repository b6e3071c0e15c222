# Two commands set everything up: `make run` (the main job on a shipped trace) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test check lint types format wheel clean evaluate quality mismatch samples parity validate-llamacpp kills compare overlap validate \
  validate-long-context bench

MODEL := reference_runtime/weights/tiny-smallthinker-q8_0.gguf
CORPUS ?= output/corpus
N_TOKENS ?= 4096

run: $(READY)
	$(BIN)/moeplan plan --model smallthinker-4b-a0.6b --hardware raspberry-pi-5-nvme --trace tiny-smallthinker-switching \
	  --ram-cap 1GiB --target-tokens-per-s 20 --output output/report.html

test: $(READY)
	$(BIN)/python -m pytest -n 2

check: format lint types test

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

wheel: $(READY)
	rm -rf build
	$(BIN)/python -m build --wheel --no-isolation

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

# Slow, not part of CI; needs a Debian system's apt-get for the texts.
evaluate: $(CORPUS)/sizes.json
	OMP_NUM_THREADS=1 $(BIN)/python -m reference_runtime.training.evaluate $(MODEL) $(CORPUS)

# The first N_TOKENS of each domain's held-out text; the LM-head predictor is fitted on the development text.
quality: $(CORPUS)/sizes.json
	OMP_NUM_THREADS=1 $(BIN)/python -m reference_runtime.quality.table $(MODEL) $(CORPUS)/*.validation.npy \
	  --predictor-text $(CORPUS)/*.development.npy --n-tokens $(N_TOKENS)

mismatch: $(CORPUS)/sizes.json
	OMP_NUM_THREADS=1 $(BIN)/python -m reference_runtime.quality.router_mismatch $(MODEL) $(CORPUS)/*.validation.npy

samples: $(CORPUS)/sizes.json
	OMP_NUM_THREADS=1 $(BIN)/python -m reference_runtime.training.record_samples $(MODEL) $(CORPUS) --output traces/samples

# Slow, not part of CI: compiles llama.cpp and fetches PyTorch, several GB.
PARITY := output/parity-venv

parity: $(PARITY)/.ready
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests $(PARITY)/bin/python -m parity

# Speed beside llama.cpp on a random-weight model of the 4B's shape (2.1 GiB, made here), all in RAM.
BIG := output/random-4b.gguf

compare: $(PARITY)/.ready $(BIG)
	PYTHONPATH=.:tests $(PARITY)/bin/python -m parity.speed $(BIG)

overlap: $(READY) $(BIG)
	$(BIN)/moeplan run --model $(BIG) --prepare
	$(BIN)/python -m reference_runtime.measure $(BIG) --ram-cap "740 MB" --threads 1

# Slow, not part of CI: how fast sweeps and their parts are, beside libcachesim where it can be installed.
# BENCH=--quick only shows that it works.
BENCHMARK_VENV := output/benchmark-venv

bench: $(READY)
	test -f $(BENCHMARK_VENV)/.ready || { $(PYTHON) -m venv $(BENCHMARK_VENV) \
	  && $(BENCHMARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench]' \
	  && touch $(BENCHMARK_VENV)/.ready; } || echo "libcachesim cannot be installed here" >&2
	$(BIN)/python -m benchmarks --libcachesim $(BENCHMARK_VENV)/bin/python $(BENCH)

# Measure this machine, run the grid for real and compare; nothing else should run meanwhile.  Goes on where it stopped.
GRID := output/validation

validate: $(BIG) $(GRID)/profile.yaml
	$(BIN)/python -m reference_runtime.validation_grid $(GRID) --model-4b $(BIG)
	test -f $(GRID)/profile-after.yaml || \
	  $(BIN)/moeplan hardware probe --read $(EXPERTS) --output $(GRID)/profile-after.yaml
	$(BIN)/moeplan validate $(GRID)

# A few cells at a context where some reads are clearly hidden and others clearly not, from the same probe.
LONG := output/validation-long-context

validate-long-context: $(BIG) $(GRID)/profile.yaml
	mkdir -p $(LONG)
	test -f $(LONG)/profile.yaml || cp $(GRID)/profile.yaml $(LONG)/profile.yaml
	$(BIN)/python -m reference_runtime.validation_grid $(LONG) --model-4b $(BIG) \
	  --grid reference_runtime/validation_grid/long_context.yaml
	$(BIN)/moeplan validate $(LONG) --output-folder reports/validation/long-context

# The probe reads the experts that the runs will read: some disks read what was just written faster than old files.
EXPERTS := $(BIG).experts/experts.bundle

$(GRID)/profile.yaml: | $(BIG)
	mkdir -p $(GRID)
	$(BIN)/moeplan run --model $(BIG) --prepare
	$(BIN)/moeplan hardware probe --read $(EXPERTS) --output $@

# The simulator against llama.cpp: in RAM, and, as root on control groups v1, on a mapped file under a memory limit.
validate-llamacpp: $(PARITY)/.ready $(BIG) $(GRID)/profile.yaml
	PYTHONPATH=.:tests $(PARITY)/bin/python -m parity.validate_llama_cpp $(BIG) --output output/validate-llamacpp.json \
	  --n-runs 1 --profile $(GRID)/profile.yaml

$(BIG): | $(READY)
	$(BIN)/moeplan model synthesize --model smallthinker-4b-a0.6b --quantisation Q4_0 --output $(BIG)

$(PARITY)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PARITY)
	CMAKE_ARGS=-DLLAVA_BUILD=OFF $(PARITY)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-binary llama-cpp-python -e '.[parity]'
	touch $@

$(CORPUS)/sizes.json: | $(READY)
	$(BIN)/python -m reference_runtime.training.corpus $(CORPUS) --model $(MODEL)

# Slow, not part of CI: a sweep killed 50 times at random moments.
kills: $(READY)
	$(BIN)/python tests/sweep_kills.py 50

clean:
	rm -rf build dist output *.egg-info
