# On a fresh machine with Python 3.11+ and make: `make demo` and `make test` need nothing else.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: setup demo test test-fast lint format bench docs results torture clean

setup: .venv/.ready

# torch comes first, alone, so that no other package's wider range can choose another build of it.
# timm, torchvision and vit-pytorch are for comparisons. Of their dependencies, only einops is needed.
# Bytecode is compiled at the end, on all cores; pip uses one. Files for other versions of Python cannot be compiled.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Vitreous needs Python 3.11 or later, this is " + sys.version)'
	@echo "Setting up .venv (once, a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) torch
	@$(PIP) --editable '.[data,plot,serve,export,openvino,ray,track,wandb,mlflow,dev,docs,peers]'
	@$(PIP) --no-deps timm torchvision vit-pytorch einops
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@

demo: setup
	@$(BIN)/vitreous demo

# Three processes with one thread each keep two cores busy, as some tests wait. A file's tests share one process.
# If a process dies, the run fails at once: pytest-xdist would wait forever for its replacement.
# Bytecode is cached even if the environment says otherwise: compiling all modules takes longer than many tests.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q \
	--numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: setup
	@$(PYTEST)

# Every package in under two minutes: without tests marked slow and without the browser.
test-fast: setup
	@$(PYTEST) -m "not slow" --ignore tests/browser

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy vitreous benchmarks recipes

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup
	@$(BIN)/vitreous bench --eager
	@$(BIN)/python -m benchmarks.jpeg_decoding
	@$(BIN)/python -m benchmarks.checkpoint_load_time
	@$(BIN)/python -m benchmarks.masked_step --device cpu --batch-size 16 --rounds 5
	@$(BIN)/python -m benchmarks.serving

# A warning is an error. The variable hides an advertisement that Material prints.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "Open site/index.html, or run: $(BIN)/python -m http.server --directory site"

# Kills, corrupt files, full disks, hostile requests: real processes; 22 minutes on two busy cores. Rewrites docs/en/reliability.md.
torture: setup
	@PYTHONPATH=tests:tests/helpers $(BIN)/python -m torture --publish

# Plots and tables of docs/*/results.md from the stored results of recipes/studies, and a list of those that are stale.
results: setup
	@$(BIN)/python -m recipes.studies.publish

clean:
	@rm -rf .venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
