# Tests with SGLang itself, on CPU ranks. Made once, in build/: an environment with SGLang 0.5.23 and what it imports where
# there is no GPU (2.6 GB), and a folder with 0.5.9, which runs on the rest of that environment. torch's CPU build is used
# on GPU machines, too: with another, SGLang would take the GPU. Included by the Makefile, after its definitions.

SGLANG_VENV := build/sglang-0.5.23
SGLANG_OLD := build/sglang-0.5.9
SGLANG_PIP := $(SGLANG_VENV)/bin/python -m pip --disable-pip-version-check

ifeq ($(ENVIRONMENT),)
SGLANG_SKIPPED := they need packages, and VENV= fetches none
else ifneq ($(shell $(PYTHON) -c 'import sys; print(sys.version_info >= (3, 11))'),True)
SGLANG_SKIPPED := SGLang 0.5.23 needs Python 3.11 or newer, and $(PYTHON) is older
endif

.PHONY: test-sglang sglang-environment engines
SGLANG_ARGS ?=
ENGINES_ARGS ?= --exercise

ifdef SGLANG_SKIPPED
test-sglang engines:
	@echo 'skipped: the tests with SGLang: $(SGLANG_SKIPPED)'
sglang-environment: ;
else
sglang-environment: $(SGLANG_OLD)/ready

test-sglang: $(SGLANG_VENV)/installed $(SGLANG_OLD)/ready
	SGLANG_FOLDERS=$(abspath $(SGLANG_OLD)) $(SGLANG_VENV)/bin/pytest tests/sglang -m 'sglang $(SGLANG_ARGS)'

# In further versions, too, and the tables of docs/engines.md: not a part of `make test`.
engines: $(SGLANG_VENV)/installed $(SGLANG_OLD)/ready
	python tests/engines_matrix.py $(ENGINES_ARGS)

$(SGLANG_VENV)/installed: build/installed $(SGLANG_VENV)/ready
	$(SGLANG_PIP) install --no-deps --force-reinstall build/wheel/*.whl
	touch $@

$(SGLANG_VENV)/ready: tests/sglang/requirements.txt | $(ENVIRONMENT)
	$(PYTHON) -m venv --clear $(SGLANG_VENV)
	$(call install_cpu_torch,$(SGLANG_PIP))
	$(SGLANG_PIP) install -r $< $(call needs,dependencies)
	$(SGLANG_PIP) install --no-deps sglang==0.5.23
	touch $@

$(SGLANG_OLD)/ready: $(SGLANG_VENV)/ready
	rm -rf $(SGLANG_OLD)
	$(SGLANG_PIP) install --no-deps --target $(SGLANG_OLD) sglang==0.5.9
	touch $@
endif
