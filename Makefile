# Licensed under the Apache License, Version 2.0; see LICENSE.
# `make help` lists the targets. Each makes what it needs: Debian packages where that is allowed, and .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
export PYTHONUNBUFFERED := 1
# Hundreds of processes of the tests import the package: compiling its 700 files takes most of a second of each.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# The interpreter that makes .venv; `make PYTHON=python3.12 ...` takes another one.
PYTHON ?= python3
# Test processes side by side.
JOBS ?= 2
# More arguments for pytest: `make test PYTEST_ARGS="-k target -x"`.
PYTEST_ARGS ?=
# `make onnx-suite ONNX_ARGS=--compiled` builds and loads each case, `--open` leaves dimensions open; `--pattern REGEX` chooses some.
ONNX_ARGS ?=

CXX_SOURCES = $(shell find src examples tests \( -name '*.h' -o -name '*.cc' -o -name '*.cpp' -o -name '*.c' \) 2>/dev/null | sort)
PY_SOURCES := $(wildcard setup.py cmake python tests/python examples benchmarks docs/site)

.PHONY: help demo generate examples test boards wheel test-python test-torch cost bench bench-dispatch bench-calls bench-profile bench-real bench-real-dynamic bench-real-decoders bench-sizes bench-sod2 bench-control-flow bench-staging serve-load docs tune-database gpu fuzz faults models opinfo operators onnx-suite onnx-zoo lint format pytest setup clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup  ## Compile an early-exit network, run it on inputs that leave at different exits, compare with PyTorch
	$(BIN)/python examples/demo.py

# `make generate GENERATE_ARGS="--pretrained gpt2"` takes a model from the Hugging Face hub.
GENERATE_ARGS ?=

generate: $(VENV)/.models  ## Compile generate() of an unedited GPT-2 of transformers, compare its tokens and speed with PyTorch
	$(BIN)/python examples/generate.py $(GENERATE_ARGS)

examples: $(VENV)/.examples  ## Train two networks on real data and compile them: accuracy against latency of early exits, a served writer that streams
	$(BIN)/python examples/early_exit.py --plot build/early_exit.svg
	$(BIN)/python examples/text_generator.py

$(VENV)/.examples: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e '.[serve,examples]'
	touch $@

test: lint pytest  ## All checks: linters, then the tests

# Rooms that run, read or rewrite the user's Python; `PYTEST_ARGS="-k sum"` chooses among their tests.
PYTHON_ROOMS := frontend frontend_exported frontend_onnx hcfg passes verify runtime zoo
PYTHON_VENV = .venv-$(notdir $(PYTHON))

test-python:  ## The tests in which versions of Python may differ, with another one: `make test-python PYTHON=python3.12`
	@command -v $(PYTHON) >/dev/null || { echo '$(PYTHON) is not on this machine: `pyenv install 3.12` (Debian: build-essential and the lib*-dev that it names), `uv python install 3.12`, or a distribution that has it (Ubuntu 22.04 has 3.10, Debian 12 3.11, Ubuntu 24.04 3.12, Debian 13 3.13), with its -venv package' >&2; exit 1; }
	$(MAKE) --no-print-directory VENV=$(PYTHON_VENV) setup
	$(PYTHON_VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup $(PYTHON_ROOMS:%=tests/python/%) tests/python/test_cli.py $(PYTEST_ARGS)

# NUMPY is that of constraints.txt if it is not said; with another one ml_dtypes is the newest that takes it. PyPI's builds of PyTorch bring CUDA
# libraries of their own (5 GB), with whose versions those of the extra `cuda` do not agree.
TORCH ?= 2.10
NUMPY ?=
TORCH_NAME = torch$(TORCH)$(NUMPY:%=-numpy%)
TORCH_VENV ?= .venv-$(TORCH_NAME)
TORCH_CONSTRAINTS = build/constraints-$(TORCH_NAME).txt
# What asks PyTorch what it is made of, runs its operators or reads its programs.
TORCH_TESTS = $(addprefix tests/python/,frontend_exported frontend_onnx hcfg passes compile onnx_export runtime) \
    $(wildcard tests/python/frontend/test_constructs_*.py) $(addprefix tests/python/frontend/test_,branches.py arrays.py random.py torch_operators.py)

test-torch:  ## The tests in which versions of PyTorch and NumPy may differ, with others: `make test-torch TORCH=2.10 NUMPY=1.26`
	mkdir -p build
	{ grep -vE '^(torch|setuptools|nvidia-.*$(NUMPY:%=|numpy|ml_dtypes))==' constraints.txt; echo 'setuptools>=77'; echo 'torch==$(TORCH).*'; $(NUMPY:%=echo 'numpy==%.*';) } >$(TORCH_CONSTRAINTS).new
	cmp -s $(TORCH_CONSTRAINTS).new $(TORCH_CONSTRAINTS) || cp $(TORCH_CONSTRAINTS).new $(TORCH_CONSTRAINTS)
	$(MAKE) --no-print-directory VENV=$(TORCH_VENV) CONSTRAINTS=$(TORCH_CONSTRAINTS) EXTRAS=dev,rpc,cross,serve setup
	$(TORCH_VENV)/bin/python -c 'import numpy, sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__, "NumPy", numpy.__version__)'
	$(TORCH_VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup $(TORCH_TESTS) $(PYTEST_ARGS)

bench-dispatch: setup  ## Measure what one control flow edge and one kernel call cost in the generated dispatcher
	$(BIN)/python benchmarks/dispatch.py

bench-calls: setup  ## Measure what a call from Python costs beyond one in C
	$(BIN)/python benchmarks/calls.py

# `make bench-profile PROFILE_ARGS="--networks act_rnn --rounds 100 --runs 1000"`
PROFILE_ARGS ?=

bench-profile: setup  ## Measure how much longer runs take while they are recorded
	$(BIN)/python benchmarks/profiling.py $(PROFILE_ARGS)

# `make bench-control-flow CONTROL_FLOW_ARGS="--networks act_rnn --rounds 3"`
bench-control-flow: $(VENV)/.bench  ## Measure networks against the unrolled traces of their paths, and ONNX Runtime in the same way
	$(BIN)/python benchmarks/control_flow.py $(CONTROL_FLOW_ARGS)

# `make bench-sizes SIZES_ARGS="--networks 'transformer, tokens' --threads 2"`
SIZES_ARGS ?=

bench-sizes: $(VENV)/.bench  ## Measure networks whose callers decide a size against static builds of each size, ONNX Runtime and OpenVINO
	$(BIN)/python benchmarks/sizes.py $(SIZES_ARGS)

# `make bench-sod2 SOD2_ARGS="--networks SkipNet RANet --calls 20"`
SOD2_ARGS ?=

bench-sod2: $(VENV)/.bench $(VENV)/.models  ## Measure SoD2's networks on inputs of random shapes, time and memory, next to ONNX Runtime and TVM
	PYTHONPATH=benchmarks $(BIN)/python -m sod2 $(SOD2_ARGS)

# `make bench-real REAL_ARGS="--networks 'BERT-base, 128 tokens' --precisions fp32 --batches 1 8 --threads 1 2"`
REAL_ARGS ?=

bench-real: $(VENV)/.bench $(VENV)/.models  ## Measure networks of real size in 32, 16 and 8 bits next to PyTorch, ONNX Runtime and OpenVINO
	PYTHONPATH=benchmarks $(BIN)/python -m real_size $(REAL_ARGS)

# `make bench-real-dynamic REAL_DYNAMIC_ARGS="--networks 'SkipNet-101, 224' --rounds 3"`
REAL_DYNAMIC_ARGS ?=

bench-real-dynamic: $(VENV)/.bench $(VENV)/.models  ## Measure networks of real size with control flow, path by path, next to PyTorch, ONNX Runtime and OpenVINO
	PYTHONPATH=benchmarks $(BIN)/python -m real_size.dynamic $(REAL_DYNAMIC_ARGS)

# `make bench-real-decoders REAL_DECODERS_ARGS="--networks 'Llama 0.5B, a token behind 256' --contenders ours pytorch"`
REAL_DECODERS_ARGS ?=

bench-real-decoders: $(VENV)/.bench $(VENV)/.models  ## Measure a token of decoders whose weights have 32, 8 and 4 bits, and the share of the memory's bandwidth
	PYTHONPATH=benchmarks $(BIN)/python -m real_size.decoders $(REAL_DECODERS_ARGS)

# `make bench-staging STAGING_ARGS="--against ../before SkipGates sdn_resnet56"` compares with another checkout.
STAGING_ARGS ?=

bench-staging: setup  ## Measure how long networks of 1,000 branches and those of the zoo take to stage
	$(BIN)/python benchmarks/staging.py $(STAGING_ARGS)

# It goes on where it was ended. `make bench BENCH_ARGS=--quick`: a few networks in minutes; `BENCH_ARGS=prepare`: what may run in the
# background, so that `BENCH_ARGS="measure page"` needs a quiet machine for less than an hour; `BENCH_ARGS=--help` has the rest.
BENCH_ARGS ?=

bench: $(VENV)/.bench  ## Measure speed next to PyTorch, ONNX Runtime, OpenVINO and AOTInductor, and write docs/performance.md
	PYTHONPATH=benchmarks $(BIN)/python -m speed $(BENCH_ARGS)

# `make tune-database TUNE_ARGS="--minutes 30"` goes on where it was ended.
TUNE_ARGS ?=

tune-database: setup  ## Measure kernels of the zoo on this machine, and write the choices that come with the package
	$(BIN)/python benchmarks/tune.py $(TUNE_ARGS)

# `make docs DOCS_ARGS="--networks sdn_mobilenet"` shows the graphs of a few networks only.
DOCS_ARGS ?=

docs: $(VENV)/.docs  ## Make the documentation site in build/site/html: pages, interface, errors, the graphs of the zoo
	$(BIN)/python docs/site/make_site.py $(DOCS_ARGS)

$(VENV)/.docs: $(VENV)/.installed docs/site/requirements.txt
	$(BIN)/python -m pip install -c constraints.txt -r docs/site/requirements.txt
	touch $@

# `make serve-load LOAD_ARGS="--requests 2000 --rates 50 --servers here"`
LOAD_ARGS ?=

serve-load: $(VENV)/.ray  ## 20,000 requests to servers on this machine and on Ray Serve, with bad requests and a replica that dies, beside ONNX Runtime
	$(BIN)/python -m pytest -q tests/python/serve/test_ray.py
	$(BIN)/python benchmarks/serve_load.py $(LOAD_ARGS)

# Apart from the setup: 300 MB that one test needs.
$(VENV)/.ray: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[ray]'
	touch $@

# A peer that cannot be installed is shown as such on the page.
$(VENV)/.bench: $(VENV)/.installed benchmarks/requirements.txt
	$(BIN)/python -m pip install -c constraints.txt -r benchmarks/requirements.txt || echo 'the benchmark goes on without what is missing' >&2
	touch $@

# It goes on where it was ended. `make models MODELS_ARGS="--suites timm --built 4"` builds one in four, and stages the others;
# `MODELS_ARGS=--help` has the rest.
MODELS_ARGS ?=

models: $(VENV)/.models  ## Compile hundreds of unedited models of timm and transformers, compare with eager, write docs/models.md
	PYTHONPATH=benchmarks $(BIN)/python -m library_models $(MODELS_ARGS)

$(VENV)/.models: $(VENV)/.installed benchmarks/library_models/requirements.txt
	$(BIN)/python -m pip install -c constraints.txt -r benchmarks/library_models/requirements.txt
	touch $@

# Programs that `make fuzz` generates; each is staged and run on 16 inputs.
FUZZ_PROGRAMS ?= 20000

# `make gpu GPU_ARGS="--networks sdn_resnet56 --inputs 64"`
GPU_ARGS ?=

gpu: setup  ## Run the zoo on the NVIDIA GPU of this machine: results on many paths, latency next to PyTorch, in one table
	$(BIN)/python benchmarks/gpu.py $(GPU_ARGS)

fuzz: setup  ## Differential fuzzing of the Python front end for hours; prints each program that fails
	DYCL_FUZZ_PROGRAMS=$(FUZZ_PROGRAMS) $(BIN)/python -m pytest -p no:cacheprovider -q -s tests/python/frontend/test_fuzz.py tests/python/frontend/test_hunt.py

# `make faults FAULTS="passes kernels:"`: those whose room or name has a word
FAULTS ?=

faults: setup  ## Plant faults in the compiler, one by one, and show which of them the check of a build finds
	$(BIN)/python tests/python/verify/faults/run_faults.py $(FAULTS)

boards: setup  ## Three networks on the emulated CPU and GPU of each board (`make test` has one for each)
	DYCL_ALL_BOARDS=1 $(BIN)/python -m pytest tests/python/deploy/test_emulated_boards.py tests/python/deploy/test_emulated_gpus.py

onnx-suite: setup  ## Run ONNX's whole node test suite against the ONNX front end and print the pass rate
	$(BIN)/python tests/python/frontend_onnx/node_suite.py $(ONNX_ARGS)

onnx-zoo: setup  ## Write every network of the zoo to ONNX, run it with ONNX Runtime, read it again; print the table
	$(BIN)/python tests/python/onnx_export/onnx_zoo.py

# `make opinfo OPINFO_ARGS="--samples 3 --compiled 1 --chains 100 --dtypes float32"` takes minutes, all of it hours.
OPINFO_ARGS ?=

opinfo: setup  ## PyTorch's samples of all its operators, staged, compiled and in random chains, against eager; print the table
	$(BIN)/python tests/python/opinfo/opinfo.py $(OPINFO_ARGS)

# It goes on where it was ended: `make operators OPERATORS_ARGS="--dtypes float32 --again refused,wrong --only linalg"`. `--sizes interpreted` or
# `--sizes compiled` finds out what becomes of operators with sizes that are decided at run time (20 minutes, hours).
OPERATORS_ARGS ?=

operators: setup  ## Write docs/operators.md: every operator of PyTorch's OpInfo database, compiled or interpreted, against eager
	$(BIN)/python tests/python/opinfo/page.py $(OPERATORS_ARGS)

cost: setup  ## Measure how the time of staging grows, up to 4,000 branches, and that of a build, up to 20,000 operators and 2,000 layers
	DYCL_COST_BRANCHES=4000 DYCL_COST_OPERATORS=20000 $(BIN)/python -m pytest -s tests/python/frontend/test_cost.py tests/python/test_scale.py

lint: setup  ## ruff, mypy and clang-format, changing nothing
	$(BIN)/ruff check $(PY_SOURCES)
	$(BIN)/ruff format --check --diff $(PY_SOURCES) || { echo 'run `make format`' >&2; exit 1; }
	$(BIN)/mypy
	$(if $(CXX_SOURCES),$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES))

format: setup  ## Format Python and C++ in place
	$(BIN)/ruff check --fix $(PY_SOURCES)
	$(BIN)/ruff format $(PY_SOURCES)
	$(if $(CXX_SOURCES),$(BIN)/clang-format -i $(CXX_SOURCES))

pytest: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --durations=15 $(PYTEST_ARGS)

setup: $(VENV)/.installed  ## Make .venv with everything in it

# What is installed: the extras of the package, and the exact versions.
EXTRAS ?= dev,rpc,cross,cuda,serve
CONSTRAINTS ?= constraints.txt

# An editable install: the package is used where it lies, so only a change of what is installed makes this again.
$(VENV)/.installed: pyproject.toml setup.py $(CONSTRAINTS) CMakeLists.txt src/python/calls.cc .ci/system-packages .ci/emulation-packages
	.ci/system-packages $(PYTHON)
	.ci/emulation-packages
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else f"Python 3.10 to 3.13 is needed, {sys.executable} is {v[0]}.{v[1]}; say make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# tvm-ffi before the package: its headers are those of the extension module
	$(BIN)/python -m pip install -c $(CONSTRAINTS) setuptools wheel apache-tvm-ffi
	$(BIN)/python -m pip install -c $(CONSTRAINTS) --no-build-isolation -e '.[$(EXTRAS)]'
	touch $@

# `make wheel WHEEL_ARGS="--only runtime --machine aarch64"`
WHEEL_ARGS ?=

wheel: setup  ## Make wheels for x86-64 and aarch64 in dist/: the package, and dycl-tvm-runtime, which runs libraries with NumPy only
	$(BIN)/python cmake/wheels.py $(WHEEL_ARGS)

clean:  ## Remove what was built, not .venv
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis python/*.egg-info
	find . -name __pycache__ -type d -not -path './.venv*/*' -prune -exec rm -rf {} +
