# Every target sets up what it needs first: a fresh machine has to have Python (3.11 or newer) and make, no more.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test torture coverage lint docs dist smoke moving format bench bench-quick bench-peers bench-growth clean

demo: .venv/demo.stamp
	$(BIN)/python examples/digits.py

test: .venv/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Some minutes; `make torture KILLS=1000 SEED=7` for more, or for the same choices again.
KILLS ?= 200
torture: .venv/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.crash.torture --kills $(KILLS) $(if $(SEED),--seed $(SEED))

# Which lines no test runs, in build/coverage; half an hour. The tests of speed and of counted calls are left out.
coverage: .venv/dev.stamp
	rm -rf build/coverage && mkdir -p build/coverage
	-OMP_NUM_THREADS=1 COVERAGE_CORE=sysmon $(BIN)/coverage run -m pytest --ignore tests/guards --ignore tests/benchmarks
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report --skip-covered

lint: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

# The site, in build/site; a broken link is an error.
docs: .venv/dev.stamp
	$(BIN)/zensical build --strict

# The same programs before and after moving from other libraries, each in an environment of its own.
moving: .venv/dev.stamp
	$(BIN)/python benchmarks/peers/environments.py lightning accelerate transformers keras fastai ignite
	$(BIN)/python examples/moving/compare.py

# The wheel and the source archive, in dist.
dist: .venv/dist.stamp
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# The wheel in fresh environments, with no extra and with each one alone; some minutes.
smoke: dist
	$(BIN)/python tests/packaging/smoke.py dist/*.whl

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev.stamp
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/checkpoint.py

# Two minutes, a verdict for each target; ends with 0 whatever it finds.
bench-quick: .venv/dev.stamp
	$(BIN)/python benchmarks/quick.py

# Both write docs/benchmarks.md and keep their results in .bench; `make bench-peers ROUNDS=3` is shorter.
ROUNDS ?= 7
bench-peers: .venv/dev.stamp
	$(BIN)/python benchmarks/peers/environments.py
	$(BIN)/python benchmarks/table.py --rounds $(ROUNDS)

bench-growth: .venv/dev.stamp
	$(BIN)/python benchmarks/growth.py

clean:
	rm -rf .venv .bench build dist runs

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/%.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e ".[$*]"
	touch $@
