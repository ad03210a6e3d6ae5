# `make bench` and `make test` do all their own set-up. What they need: Python 3.10+, a C++20 compiler, make.
#
#   PYTHON=python3.12         the interpreter to use (for another than .venv has: make clean first)
#   VENV=                     empty: use that interpreter itself. Nothing is fetched; the package alone is built and
#                             installed into it (--no-build-isolation --no-deps), for which
#                             scikit-build-core, pybind11, cmake and ninja must be there. For machines without a network.
#   BENCH_ARGS="--ranks 2"    passed to `pcie-allreduce bench`
#   PYTEST_ARGS="-k words"    passed to pytest
#   SCHEDULES=n SEED=s ALGORITHM=a FAULT=name
#                             for `make fabric`
#   TORCH_INDEX=URL           where torch's CPU build comes from, when there is no GPU and pip's own sources have none
#
# Environment variables that shape the build (PCIE_ALLREDUCE_CUDA_ARCHS and others): see CONTRIBUTING.md.

PYTHON ?= python3
VENV ?= .venv
BENCH_ARGS ?=
SHORT_BENCH_ARGS ?= --ranks 2 --sizes 14336,43008 --repeats 1
PYTEST_ARGS ?=
SCHEDULES ?= 20000
TORCH := torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Where there is no driver, GPU code cannot run and is compiled to be read by a test: SM120's alone is enough. Else it is
# compiled for SM120 and for the GPUs that are here.
DRIVER := $(shell $(PYTHON) cmake/find_nvcc.py --driver)
ifeq ($(DRIVER),1)
GPU_ARCHS := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d .)
endif
SPACE := $() $()
export PCIE_ALLREDUCE_CUDA_ARCHS ?= $(subst $(SPACE),;,$(sort 120 $(GPU_ARCHS)))

ifeq ($(strip $(VENV)),)
ENVIRONMENT :=
export PATH := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$(PATH)
PIP := $(PYTHON) -m pip --disable-pip-version-check
else
ENVIRONMENT := $(VENV)/ready
export PATH := $(abspath $(VENV))/bin:$(PATH)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
endif

NATIVE := $(shell find csrc tests -type f \( -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' \))
SOURCES := $(shell find csrc cmake pcie_allreduce -type f ! -name '*.pyc' ! -name '*.so') CMakeLists.txt setup.py pyproject.toml
SETTINGS := $(PIP) $(foreach name,CUDA_ARCHS CPU_ONLY NO_DEADLINE NO_WAITS WERROR,$(PCIE_ALLREDUCE_$(name)):) $(CUDACXX) $(CUDA_HOME)

include tests/sglang/sglang.mk

.PHONY: help bench test lint format types build native pytest fabric clean FORCE

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
	echo 'Targets: bench test lint format types build native pytest test-sglang engines fabric clean'

bench: build
	pcie-allreduce bench $(BENCH_ARGS)

# pytest comes last, so that its summary ends the output. What is marked slow is left to `make pytest`, which runs all.
# SGLang's environment is mostly downloads, so it is made meanwhile.
test: $(ENVIRONMENT)
	mkdir -p build
	$(MAKE) --no-print-directory sglang-environment >build/sglang.log 2>&1 & environment=$$!
	$(MAKE) --no-print-directory lint types build native fabric
	wait $$environment || { cat build/sglang.log; exit 1; }
	$(MAKE) --no-print-directory test-sglang SGLANG_ARGS='and not slow'
	pcie-allreduce bench $(SHORT_BENCH_ARGS)
	$(MAKE) --no-print-directory pytest PYTEST_ARGS='-m "not slow" $(PYTEST_ARGS)'

lint: $(ENVIRONMENT)
	@$(call where_installed,ruff,ruff check .; ruff format --check .)
	$(call where_installed,clang-format,clang-format --dry-run -Werror $(NATIVE))

format: $(ENVIRONMENT)
	ruff check --fix .
	ruff format .
	clang-format -i $(NATIVE)

types: $(ENVIRONMENT)
	@$(call where_installed,mypy,mypy)

build: build/installed

ifneq ($(wildcard tests/native/*.cpp),)
native: $(ENVIRONMENT)
	$(call build_native,all)
	ctest --test-dir build/native --output-on-failure
else
native: ;
endif

pytest: build
	pytest $(PYTEST_ARGS)

fabric: $(ENVIRONMENT)
	$(call build_native,fabric)
	build/native/fabric $(foreach name,SCHEDULES SEED ALGORITHM FAULT,$(if $($(name)),$(name)=$($(name))))

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache $(VENV)

# Our own environment has every tool. Of another's, only what it has is used, and the rest is named.
define where_installed
if [ -n '$(ENVIRONMENT)' ] || command -v $(1) >/dev/null; then $(2); else echo 'skipped: $(1) is not installed'; fi
endef

define build_native
mkdir -p build
cmake -S . -B build/native -G Ninja -DPCIE_ALLREDUCE_BUILD_PYTHON=OFF -DPCIE_ALLREDUCE_BUILD_TESTS=ON >build/native.log || { cat build/native.log; exit 1; }
cmake --build build/native --target $(1)
endef

# setuptools would put into the wheel what build/lib still has of an earlier build.
build/installed: $(SOURCES) build/settings $(ENVIRONMENT)
	rm -rf build/lib* build/bdist* build/wheel
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir build/wheel .
	$(PIP) install --no-deps --force-reinstall build/wheel/*.whl
	touch $@

build/settings: FORCE
	@mkdir -p build
	cmp -s - $@ <<<'$(SETTINGS)' || echo '$(SETTINGS)' >$@

ifneq ($(ENVIRONMENT),)
# pyproject.toml is the only list of what is needed.
needs = $(shell sed -n 's/^$(1) = \[\(.*\)\]$$/\1/p' pyproject.toml | tr , ' ')

# torch first and by its exact version, so that nothing that follows may choose another.
$(ENVIRONMENT): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed; this is " + sys.version if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(install_torch)
	$(PIP) install $(TORCH) $(call needs,requires) $(call needs,dependencies) $(call needs,test) $(call needs,dev)
	$(VENV)/bin/python cmake/find_nvcc.py &>/dev/null || $(PIP) install $(call needs,cuda-build)
	touch $@

# On Linux the torch of pip's default index brings 3 GB of CUDA libraries, which only a machine with a GPU can use.
define install_torch
if [ '$(DRIVER)' = 1 ]; then $(PIP) install '$(TORCH)'
else $(call install_cpu_torch,$(PIP)) || $(PIP) install '$(TORCH)'
fi
endef

define install_cpu_torch
$(1) install '$(TORCH)+cpu' 2>/dev/null || $(1) install --index-url '$(TORCH_INDEX)' '$(TORCH)+cpu'
endef
endif
