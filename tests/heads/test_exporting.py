"""Functions exported by jax for any number of rows, and written to bytes where they take or give heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from variants import slow

import covfree

pytestmark = pytest.mark.usefixtures("untyped")

RNG = np.random.default_rng(0)
SIZE, DIM, CLASSES = 40, 3, 3
X = RNG.normal(size=(SIZE, DIM)).astype(np.float32)
Y, K = RNG.integers(0, CLASSES, SIZE).astype(np.int32), np.arange(SIZE) % 5
METHOD = covfree.fedcof(0.1)


def table():
    """Any number of rows."""
    (rows,) = export.symbolic_shape("rows")
    numbers = jax.ShapeDtypeStruct((rows,), np.int32)
    return jax.ShapeDtypeStruct((rows, DIM), np.float32), numbers, numbers


FUNCTIONS = {
    "class_means": lambda x, y, _: covfree.class_means(x, y, CLASSES),
    "estimate_covariance": lambda x, n, _: covfree.estimate_covariance(x, n, shrinkage=covfree.oas()),
    "stream": lambda x, n, _: covfree.streaming.update(covfree.streaming.init(DIM), x, n),
    "solve_rows": lambda x, n, y: covfree.solve_rows(METHOD, covfree.Rows(x, n, y), num_classes=CLASSES),
}


@pytest.mark.parametrize("name", ["estimate_covariance", *slow("class_means", "stream", "solve_rows")])
def test_any_number_of_rows(name):
    run = export.export(jax.jit(FUNCTIONS[name]))(*table())
    for size in (7, SIZE):
        given = X[:size], Y[:size] + (name == "solve_rows"), Y[:size]
        for one, other in zip(
            jax.tree.leaves(run.call(*given)), jax.tree.leaves(FUNCTIONS[name](*given)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


HEADS = {
    "linear": METHOD,
    "gaussian": covfree.qda(0.1),
    "student": covfree.fedcof(0.1, head="student"),
    "corrected": covfree.corrected(covfree.fedcof(0.1, head="student"), 2),
    "ensemble": covfree.ensemble(),
    "mapped": covfree.fed3r(1.0).with_feature_map(covfree.fourier_features(8)),
}


@pytest.mark.parametrize("name", ["linear", "mapped", *slow("gaussian", "student", "corrected", "ensemble")])
def test_heads_in_bytes(name):
    pytest.importorskip("flatbuffers")
    head = covfree.fit(HEADS[name], X, Y, K)
    run = export.export(jax.jit(lambda head, x: (head(x), head)))(head, table()[0])
    scores, back = export.deserialize(run.serialize()).call(head, X)
    np.testing.assert_allclose(scores, head(jnp.asarray(X)), rtol=1e-5, atol=1e-5)
    assert jax.tree.structure(back) == jax.tree.structure(head)
