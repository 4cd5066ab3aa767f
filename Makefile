# Every task of a developer and of a one-machine appliance. `make` alone prints the table.
# What runs is in .venv, made here from locked requirements; nothing needs root.

PYTHON ?= python3
VENV   := $(CURDIR)/.venv
TESTS  ?=
# Tests wait as much as they compute, so there are more of them at once than processors; -n 0 in TESTS: one after another.
JOBS   ?= $(shell n=$$(nproc); echo $$((n < 8 ? 2 * n : 16)))
# How many examples the tests try: dev, ci or deep (tests/depth.py).
DEPTH  ?= $(or $(TEST_DEPTH),dev)
# Settings of site.yml's run, e.g. `make up PORT=8001 STATE=/var/tmp/blink`.
PORT   ?=
STATE  ?=
ARGS   ?=
HOST   ?= gpu01
KEY    ?=

export PATH := $(VENV)/bin:$(PATH)
export TEST_DEPTH := $(DEPTH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Debian's C locale is ASCII, which Ansible refuses.
export LC_ALL := C.UTF-8

# A folder is newer than .venv/.dev where a module in it is new or has moved.
packages := $(shell find blink -type d ! -name __pycache__)
settings := $(if $(PORT),-e blink_http_port=$(PORT)) $(if $(STATE),-e blink_state_dir=$(abspath $(STATE))) $(ARGS)
config   := $(if $(STATE),$(abspath $(STATE)),$(CURDIR)/.state)/blink.toml
playbook := ansible-playbook $(settings)
# A file is one process's, so that what its tests share is made once; tests/conftest.py has the order.
pytest   := pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help up down status smoke bench test test-fleet gpu lab lab-up lab-down lab-ssh bundle parity lint format generate lock clean

help: ## print this table
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(VENV)/.control ## install and start the appliance on this machine (PORT=8000, STATE=.state)
	@$(playbook) site.yml

down: $(VENV)/.control ## stop it; the model and .venv stay
	@$(playbook) playbooks/down.yml

status: $(VENV)/.control ## what runs, and what the backend is doing
	@$(playbook) playbooks/status.yml

smoke: ## check every hop of the running appliance
	@blink smoke --config $(config)

bench: ## measure the running appliance
	@blink bench local --config $(config)

test: $(VENV)/.dev ## run the tests, all or TESTS='-k ring'
	@$(pytest) $(TESTS)

test-fleet: $(VENV)/.cross ## run those that deploy, upgrade, provision and pack for minutes
	@$(pytest) -m fleet $(TESTS)

gpu: $(VENV)/.dev ## run the tests that need a CUDA device, and say why where there is none
	@pytest -m gpu -rs tests/gpu $(TESTS)

# A bundle for another processor is compiled with what .cross brings.
lab lab-up: $(VENV)/$(if $(filter arm64,$(LAB_DPU_ARCH)),.cross,.dev)

lab: ## deploy to two virtual machines with RDMA, test them, cut cables; needs QEMU
	@scripts/lab

lab-up: ## boot these machines and deploy to them
	@scripts/lab up $(ARGS)

lab-down: $(VENV)/.dev ## turn them off
	@python -m images.lab down

lab-ssh: $(VENV)/.dev ## a shell on one of them (HOST=gpu01)
	@python -m images.lab ssh $(HOST)

bundle: $(VENV)/.cross ## pack all that an appliance is installed from, for places without a network (KEY=, ARGS=)
	@python scripts/pack_set.py $(if $(KEY),--key $(KEY)) $(ARGS)

parity: $(VENV)/.parity ## compare the reference engine with transformers, token by token
	@pytest -m parity tests/engine/parity tests/model/parity $(TESTS)

lint: $(VENV)/.dev ## check style, types, playbooks and generated files
	@scripts/lint

format: $(VENV)/.dev ## rewrite Python and C++ in the project's style
	@scripts/lint --fix

generate: $(VENV)/.dev ## write what comes from Python: C headers, figures, lists and tables of roles
	@python -m blink.generate
	@python scripts/roles.py

lock: $(VENV)/.dev ## resolve requirements/*.txt anew
	@scripts/lock

clean: ## stop the appliance and remove its state, model included
	@if [ -e $(VENV)/.control ]; then $(playbook) playbooks/down.yml -e blink_purge=true; fi

# --- how .venv comes about --------------------------------------------------------------------------------------------
# Only Ansible is installed here. The role `release` installs the rest, as it does on every other machine.

$(VENV)/.control: requirements/control.txt
	@scripts/bootstrap $(PYTHON) $(VENV) requirements/control.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.control requirements/dev.txt requirements/model.txt pyproject.toml CMakeLists.txt $(wildcard kernels/* kernels/*/*) $(packages)
	@$(playbook) playbooks/develop.yml
	@touch $@

$(VENV)/.cross: $(VENV)/.dev requirements/cross.txt
	@pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/cross.txt
	@touch $@

$(VENV)/.parity: $(VENV)/.dev requirements/parity.in
	@pip install --quiet --requirement requirements/parity.in
	@touch $@
