"""Examples in the arrays of other libraries give the head that NumPy's arrays give."""

import jax.numpy as jnp
import numpy as np
import pytest

import covfree

FEDCOF = covfree.fedcof(shrinkage=0.1)


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(0)
    labels, clients = rng.integers(0, 3, 60), np.arange(60) % 6
    features = (rng.normal(size=(60, 4)) + np.eye(3, 4)[labels]).astype(np.float32)
    return features, labels, clients


def test_lists(examples):
    features, labels, clients = examples
    head = covfree.fit(FEDCOF, features.tolist(), labels.tolist(), clients.tolist())
    np.testing.assert_array_equal(head.weight, covfree.fit(FEDCOF, *examples).weight)


def test_arrow(examples):
    arrow = pytest.importorskip("pyarrow")
    features, labels, clients = examples
    column = arrow.FixedSizeListArray.from_arrays(arrow.array(features.ravel()), 4)
    given = column, arrow.array(labels), arrow.chunked_array([arrow.array(clients)])
    head = covfree.fit(FEDCOF, *given)
    np.testing.assert_array_equal(head.weight, covfree.fit(FEDCOF, *examples).weight)
    covfree.check(*given)
    uneven = arrow.array([[1.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match=r"^features: expected an array, got a list of parts of unequal"):
        covfree.check(uneven, [0, 1])


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "differentiated"])
def test_torch(examples, kind):
    torch = pytest.importorskip("torch")
    features, labels, clients = examples
    tensor = torch.tensor(features, requires_grad=kind == "differentiated")
    tensor = tensor if kind == "differentiated" else tensor.to(getattr(torch, kind))
    same = jnp.asarray(features, jnp.bfloat16) if kind == "bfloat16" else features
    head = covfree.fit(FEDCOF, tensor, torch.tensor(labels), torch.tensor(clients))
    expected = covfree.fit(FEDCOF, same, labels, clients)
    np.testing.assert_allclose(head.weight, expected.weight, rtol=1e-5, atol=1e-6)
    covfree.check(tensor, torch.tensor(labels), torch.tensor(clients))
