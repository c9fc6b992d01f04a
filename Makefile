# Each target works from a fresh clone: it makes .venv and installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRACKERS := .venv-trackers
MUTATION := .venv-mutation
SIMULATION := $(VENV)/simulation
SYSTEMS := .venv-systems
# Tests and runs use one thread per process: sums then always add in one order, and two cores serve two processes.
export OMP_NUM_THREADS = 1

.PHONY: demo test test-slow test-systems faults hostile endurance coverage mutation check docs notebooks release-check bench results clean

demo: $(VENV)/base
	$(BIN)/fedwmsam compare --methods fedavg,fedcm,scaffold,fedwmsam --seeds 2 --baseline fedavg --out demo --html demo/report.html

test: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses 2

test-slow: $(VENV)/installed
	-$(MAKE) $(TRACKERS)/installed $(SIMULATION)/installed
	$(BIN)/python -m pytest -m slow --numprocesses 2 --durations 12

# Heavy packages of other people (transformers, peft, pandas, datasets, Ray) in an environment of their own, Slurm's daemons,
# and Flower on hosts that are network namespaces, with the Flower of $(VENV).
test-systems: $(SYSTEMS)/installed $(VENV)/installed
	HF_HUB_OFFLINE=1 $(SYSTEMS)/bin/python -m pytest -m systems tests/systems --ignore tests/systems/test_networks.py
	$(BIN)/python -m pytest -m systems tests/systems/test_networks.py
	HF_HUB_OFFLINE=1 $(SYSTEMS)/bin/python -m pytest tests/data/test_hub.py

# Runs killed, starved and damaged (docs/project/reliability.md); `make faults FAULTS="--trials 43 --seed 2"` passes options on.
faults: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m campaign $(FAULTS)

# Files and messages of a stranger (docs/project/reliability.md); `make hostile HOSTILE="--only 98"` repeats one of them.
hostile: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m campaign.hostile $(HOSTILE)

endurance: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m campaign.endurance

# Which lines the tests run, those of other processes included. Under the test's limit of file sizes coverage.py cannot save.
coverage: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses 2 --cov --cov-report=term:skip-covered \
		--deselect tests/engine/test_client_state.py::test_a_full_disk_is_one_sentence_and_nothing_saved_is_lost

# About 2000 mutants; `make mutation MUTATE=checkpoint` takes one group of files, and a run that was stopped goes on.
mutation: $(MUTATION)/installed
	$(MUTATION)/bin/python benchmarks/mutation.py $(MUTATE)

check: $(VENV)/installed docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32

# The site, in build/site; a link or anchor that leads nowhere, or a page that no menu lists, is an error.
docs: $(VENV)/installed
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir build/doctrees . build/site
	@echo "Open build/site/index.html"

# Every notebook executed from top to bottom, its outputs kept.
notebooks: $(VENV)/installed
	$(BIN)/python notebooks/execute.py

# The wheel with each extra in an environment of its own: minutes each, and packages from the index. Before a release, not in CI.
release-check: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python tools/release_check.py

# Tables to paste, on the output; `make bench BENCH="--skip-peers --repeats 2"` passes options on.
bench: $(VENV)/installed
	@$(BIN)/python benchmarks/bench.py $(BENCH)

# Every table and picture of docs/results from the runs kept in results/.
results: $(VENV)/installed
	$(BIN)/python results/rebuild.py

# The library alone, for whoever wants to see it first. Python compiles its modules when they are first imported: compiling all of
# PyTorch's takes longer than the rest of the installation.
$(VENV)/base: pyproject.toml constraints.txt src/fedwmsam/version.py
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch and the library into $(VENV) ..."
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed: $(VENV)/base
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# TensorBoard and Weights & Biases in an environment of their own, which borrows everything else from $(VENV). Where they
# cannot be had, their tests are skipped.
$(TRACKERS)/installed: $(VENV)/installed
	$(call borrow,$(TRACKERS))
	$(TRACKERS)/bin/pip install --quiet --constraint constraints.txt --editable '.[tensorboard,wandb]'
	touch $@

# mutmut likewise; 3.8 reads what pytest 9 no longer has.
$(MUTATION)/installed: $(VENV)/installed
	$(call borrow,$(MUTATION))
	$(MUTATION)/bin/pip install --quiet 'mutmut>=3.8,<3.9'
	$(MUTATION)/bin/pip install --quiet --ignore-installed --no-deps 'pytest<9'
	touch $@

define borrow
	$(BIN)/python -m venv --clear $(1)
	echo "import site; site.addsitedir('$(call packages,$(VENV))')" >$(call packages,$(1))/borrowed.pth
endef
packages = $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# Flower's simulation needs Ray, which pins what others need otherwise: an environment of its own, for its test alone.
$(SIMULATION)/installed: $(VENV)/installed
	test -d $(SIMULATION) || $(PYTHON) -m venv $(SIMULATION)
	$(SIMULATION)/bin/pip install --quiet --constraint constraints.txt --editable '.[flower-simulation]'
	touch $@

# Not borrowed from $(VENV): transformers imports a torchvision that it finds there, and it has no CPU build.
$(SYSTEMS)/installed: pyproject.toml constraints.txt
	test -d $(SYSTEMS) || $(PYTHON) -m venv $(SYSTEMS)
	$(SYSTEMS)/bin/pip install --quiet --constraint constraints.txt --editable . transformers peft pandas datasets pillow ray pytest hypothesis
	touch $@

clean:
	rm -rf $(VENV) $(SYSTEMS) $(TRACKERS) $(MUTATION) benchmarks/.environments build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
