# Each target works on a fresh clone: it makes .venv and installs the versions that constraints.txt pins.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The demo needs no group for developers; if one is installed, its environment is used.
DEMO := $(if $(wildcard $(READY)),$(READY),$(VENV)/.demo)
# The pins also apply to the environment in which pip builds the compiled extension.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: engines gpu vectors web test-web test-node demo test test-rest test-shapes test-all check lint types layers parity bench figures docs-tables dist slow sanitize format clean

demo: $(DEMO)
	$(BIN)/ropewalk doctor tiny --methods yarn,llama3,dca --report doctor-report

# The tests to run while working: two processes, each of which takes whole files. Each has one thread, also the processes
# that tests start: the tensors are tiny, and a second thread would spin. Bytecode is kept, also where the shell forbids it:
# compiling the tests and the package in every process takes a tenth of the time.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(READY)
	$(PYTEST) -m "not slow and not thorough"

# The tests that `make test` leaves out: the costly ones, and those of the lower subpackages with shape checks. Compilers,
# other processes and wrong calls are tested without them.
test-rest: test-shapes
	$(PYTEST) -m "thorough and not slow"

test-shapes: $(READY)
	$(PYTEST) --shapes -m "not slow and not thorough" tests/rope tests/rotation tests/models --ignore=tests/rotation/backends \
	  $(addprefix --ignore=tests/models/test_,$(addsuffix .py,classifier distributed generate parity_transformers training))

test-all: test test-rest

check: lint types layers

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# The order of the subpackages and the ban on circles: the contracts in pyproject.toml.
layers: $(READY)
	$(BIN)/lint-imports

# Compare every rotary class and causal family of transformers with ours, and random configs, drawn from SEED (else the
# date): the records and docs/models.md. To resume, run it again. With OLDEST=1: random
# configs with the oldest transformers that is supported.
OLDEST_ENV := build/oldest
parity: $(if $(OLDEST),$(OLDEST_ENV)/.ready,$(READY))
	OMP_NUM_THREADS=1 $(if $(OLDEST),$(OLDEST_ENV)/bin,$(BIN))/python -m tests.parity $(if $(OLDEST),--random) \
	  $(if $(SEED),--seed $(SEED))

# The oldest transformers before all that $(VENV) has.
$(OLDEST_ENV)/.ready: $(READY)
	$(BIN)/python -m venv $(OLDEST_ENV)
	$(OLDEST_ENV)/bin/python -c "import pathlib, sysconfig; \
	  pathlib.Path(sysconfig.get_path('purelib'), 'zz_rest.pth').write_text('import site; site.addsitedir(\"' + \
	  sysconfig.get_path('purelib').replace('$(OLDEST_ENV)', '$(VENV)') + '\")')"
	env -u PIP_CONSTRAINT $(OLDEST_ENV)/bin/python -m pip install --quiet \
	  transformers==5.17.0 huggingface-hub==1.33.0 httpx==0.28.1 httpcore==1.0.9
	touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/rotation.py
	$(BIN)/python benchmarks/attention.py

# Test and time what needs a GPU. It takes this checkout's environment if there is one, else the machine's own Python, and
# installs nothing.
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
gpu:
	$(GPU_PYTHON) -m pytest -q tests/gpu
	$(GPU_PYTHON) -m pytest -q tests/rotation/backends -k "cuda or triton" -m "not slow"
	$(GPU_PYTHON) benchmarks/rotation.py --device cuda

# Run checkpoints of many families in engines, and record which rope each applies: benchmarks/results/engines.json and the
# tables of docs/engines.md. ENGINES chooses: mlx,llama.cpp,onnx,vllm,sglang. Each has an environment in build/engines with
# the versions of benchmarks/engines/NAME.txt; what cannot be installed is skipped. To resume, run it again. SMALL=1 compares
# few families with the record instead. From vllm, sglang and mlx, tables.py also records the ropes of configs that tests
# read (benchmarks/results/engine-tables.json): sglang has no other part. With vllm, the plug-in runs in it (vllm-plugin.json).
# SMOLLM2=FOLDER, the checkpoint SmolLM2-135M-Instruct: `verify` judges vLLM's servers of it (verify-servers-vllm.json).
ENGINES ?= mlx,llama.cpp,onnx,vllm,sglang
comma := ,
engines: $(READY)
	for name in $(subst $(comma), ,$(ENGINES)); do benchmarks/engines/install.sh $$name || test $$? = 3 || exit 1; done
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines/matrix.py --engines $(ENGINES) $(if $(SMALL),--small)
	$(if $(SMALL),,OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines/tables.py --engines $(ENGINES))
	$(if $(SMALL),,$(if $(findstring vllm,$(ENGINES)),OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines/plugin.py))
	$(if $(SMOLLM2),OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines/servers.py $(SMOLLM2))
	$(if $(SMALL),,$(BIN)/python scripts/docs_records.py)

# Write the conformance vectors anew: those of every config that vectors/ has.
vectors: $(READY)
	$(BIN)/ropewalk vectors --out vectors $(foreach file,$(wildcard vectors/*.json),$(wildcard tests/fixtures/*/$(notdir $(file))))

# Build the explorer's page in the package from web/; the lock file pins esbuild, TypeScript and d3.
web: web/node_modules/.package-lock.json
	cd web && npm run --silent build

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	cd web && npm ci --no-fund --no-audit
	touch $@

# Run web/'s own tests, and compare a new build with the package's byte for byte.
test-node: web/node_modules/.package-lock.json
	cd web && npm run --silent types && npm test --silent
	mkdir -p build/web && cp src/ropewalk/figures/explorer.html build/web
	$(MAKE) web
	cmp build/web/explorer.html src/ropewalk/figures/explorer.html

# Also test web/ in a real browser. If Chromium is missing, this installs Debian's (as root).
test-web: $(READY) test-node
	command -v chromium || apt-get install -y chromium
	$(BIN)/python -m pytest -q -rs tests/figures/test_browser.py tests/figures/test_live_model.py tests/figures/test_explorer.py

figures: $(READY)
	$(BIN)/python scripts/figures.py

# Write the tables of records, of names and of commands into README and docs/.
docs-tables: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/docs_records.py

slow: $(READY)
	$(BIN)/python -m pytest -m slow --timeout 3600

# Test a separate build of the extension under AddressSanitizer and UndefinedBehaviourSanitizer. GCC's runtime must be
# loaded before Python; Python's own leaks are not reported.
sanitize: $(READY)
	rm -f build/sanitize/_kernels*.so
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/sanitize/wheel \
	  --config-settings=build-dir=build/sanitize --config-settings=cmake.define.ROPEWALK_SANITIZE=ON .
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 TRITON_INTERPRET=0 \
	  $(BIN)/python scripts/pytest_with.py build/sanitize/_kernels*.so -q tests/rotation

# Build the release into dist: the source archive, a wheel built from it, and that wheel checked and named for every Linux
# that can run it. For other machines use `cibuildwheel`, which reads pyproject.toml.
# The files of a wheel have the time of the commit, so that two builds of it are equal byte for byte.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2> /dev/null || date +%s)
dist: $(VENV)/.dist
	rm -rf dist build/dist
	env -u PIP_CONSTRAINT $(BIN)/python -m build --outdir build/dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/dist/*.whl
	cp build/dist/*.tar.gz dist/

$(VENV)/.dist: $(READY)
	$(BIN)/python -m pip install --quiet --group release
	touch $@

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# pip installs groups (PEP 735) from 25.1 on; a new environment of Python 3.11 has 23.2, which is enough for the demo.
$(READY): WANTED := -e . --group dev
$(VENV)/.demo: WANTED := -e '.[cli,figures]'
$(READY) $(VENV)/.demo: pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/ropewalk/rotation/backends/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(findstring group,$(WANTED)),$(BIN)/python -m pip install --quiet --upgrade pip)
	$(BIN)/python -m pip install --quiet torch==2.13.0 numpy
	$(BIN)/python -m pip install --quiet $(WANTED)
	touch $@

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install --quiet -e . --group bench
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
