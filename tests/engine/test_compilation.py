"""What is compiled: once for a shape, not again for another number or for a federation of about one size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compilations

import covfree
from covfree import studies
from covfree.core import compiling
from covfree.data import load_digits


def federation(examples, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, examples)
    features = rng.normal(size=(examples, 5)).astype(np.float32) + labels[:, None].astype(np.float32)
    return features, labels, rng.integers(0, 7, examples)


@pytest.mark.parametrize("make", [covfree.fed3r, covfree.fedncm])
def test_fit_again_compiles_nothing(make):
    """The same shape; then another seed."""
    covfree.fit(make(), *federation(97), num_classes=3)
    assert compilations(lambda: covfree.fit(make(), *federation(97), num_classes=3)) == 0
    assert compilations(lambda: covfree.fit(make(), *federation(97, seed=1), num_classes=3)) == 0


def test_another_number_compiles_nothing():
    """A fixed γ is an argument of the compiled function."""
    data = federation(95)
    assert compilations(lambda: covfree.fit(covfree.fedcof(0.1), *data, num_classes=3)) > 0
    assert compilations(lambda: covfree.fit(covfree.fedcof(0.7), *data, num_classes=3)) == 0


def test_federations_of_about_one_size_share_the_server():
    """Rows are padded to one of two sizes an octave."""
    labels = np.arange(70) % 3
    method = covfree.fedcof(0.1)
    heads = []
    for clients in (np.arange(70) // 2, np.arange(70) // 2 % 34):
        features = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32)
        heads.append(
            compilations(lambda f=features, c=clients: covfree.fit(method, f, labels, c, num_classes=3))
        )
    assert heads[0] > 0
    assert heads[1] == 0


def test_the_default_job_compiles_few_functions():
    """Counting rows is NumPy's; what is left: the key-free summary, the sums, the automatic rule, the solve.

    The automatic rule takes longest, and is compiled once: the oracle makes rows and sums of its own, and
    solves as FedCOF does; with another head only the solve is new.
    """
    data = federation(93)
    assert compilations(lambda: covfree.fit(covfree.fedcof(), *data, num_classes=3)) <= 7
    assert compilations(lambda: covfree.fit(covfree.fedcof(), *federation(93, seed=1), num_classes=3)) == 0
    assert compilations(lambda: covfree.fit(covfree.fedcof_oracle(), *data, num_classes=3)) == 2
    ridge = covfree.fedcof(head="ridge")
    assert compilations(lambda: covfree.fit(ridge, *data, num_classes=3)) <= 2


def test_what_is_compiled_quickly_can_be_called_anywhere(monkeypatch):
    """By itself with XLA's flags, and inside other compiled functions, which have their own."""
    monkeypatch.setenv("XLA_FLAGS", "")
    seen, jit = [], jax.jit
    monkeypatch.setattr(
        jax, "jit", lambda *a, **how: seen.append(how.get("compiler_options")) or jit(*a, **how)
    )
    compiling._options.cache_clear()
    double = compiling.jit(lambda x: 2 * x, plain=True)
    assert (
        double(3.0) == jit(double)(3.0) == jit(lambda: double(3.0))() == jax.vmap(double)(jnp.full(1, 3.0))[0]
    )
    assert jax.grad(double)(3.0) == 2
    quick = compiling._options(False)
    assert quick.items() < seen[-1].items()
    monkeypatch.setenv("XLA_FLAGS", " ".join(f"--{flag}=1" for flag in quick))
    compiling._options.cache_clear()
    assert not compiling._options(False)
    compiling._options.cache_clear()


def test_short_programs_are_compiled_plainly(monkeypatch):
    """Shapes decide, so equal calls give equal bits."""
    monkeypatch.setattr(compiling, "_SMALL", 6)
    seen = []
    original = jax.jit
    monkeypatch.setattr(jax, "jit", lambda f, **how: seen.append(how) or original(f, **how))
    total = compiling.jit(lambda x, y: (x * y).sum(), plain="small")
    for size, number in ((3, 2), (7, 3), (3, 3), (7, 3)):
        assert total(jnp.ones(size), jnp.ones(size)) == size
        assert len(seen) == number
    (_, plain, quick) = (how.get("compiler_options", {}) for how in seen)
    assert plain.items() > quick.items()
    assert vars(total)["_cache_size"]() == 2

    class Scale:
        """A static argument whose ``size`` is no number."""

        def size(self):
            return 2

        def __call__(self, x):
            return 2 * x

    key = jax.random.key(0)
    long = {
        "drawn": lambda f, x: x + jax.random.normal(key, x.shape),
        "wide": lambda f, x: jnp.outer(x, x).sum(0),
        "trained": lambda f, x: jax.lax.fori_loop(0, 3, lambda _, w: w - jnp.exp(w), x),
    }
    short = {
        "static": lambda f, x: f(x),
        "summed": lambda f, x: jax.lax.fori_loop(0, 3, lambda i, w: w + x[i], x),
    }
    for functions, expected in ((long, quick), (short, plain)):
        for name, function in functions.items():
            seen.clear()
            compiling.jit(function, plain="small", static_argnums=0)(Scale(), jnp.ones(3))
            assert seen[-1].get("compiler_options") == expected, name


@pytest.mark.parametrize(
    "method", [covfree.fedncm(), covfree.naive_bayes(), covfree.fedcof(0.1, head="student")]
)
def test_a_head_classifies_with_one_compiled_function(method):
    """Operation by operation, each is compiled at its first use."""
    data = federation(89)
    head = covfree.fit(method, *data, num_classes=3)
    assert compilations(lambda: head(data[0])) == 1
    assert compilations(lambda: covfree.fit(method, *federation(89, 1), num_classes=3)(data[0])) == 0
    # A list is taken too.
    assert head(data[0][0].tolist()).shape == (3,)


def test_another_seed_of_a_sweep_compiles_nothing():
    """Of the federations of `make demo`, with 242 to 289 client-class pairs: rows, sums, solve, counts."""
    runs = studies.Study(
        {"digits": lambda seed: load_digits(seed=seed)},
        studies.federations([100], ["inner_dirichlet"], [0.1]),
        {"means": covfree.fedcof(0.1), "examples": covfree.fed3r()},
        seeds=range(4),
        predictions=True,
    ).runs()
    assert compilations(lambda: [next(runs).accuracy, next(runs).accuracy]) > 0
    assert compilations(lambda: [run.accuracy for run in runs]) == 0
