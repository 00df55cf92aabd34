"""AFL: a client's message is ridge regression. That messages add up to the pooled one is a law of methods."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import CLASSES, DIM
from precision import PRECISIONS, x64
from sklearn.linear_model import Ridge

from covfree.statistics.gram import local_solution

FLOAT64 = PRECISIONS["float64"]


solution = jax.jit(local_solution, static_argnums=2)


def test_one_client_is_a_ridge_regression():
    federation = federations.make(0)
    kept = federation.kept
    features, targets = federation.features[kept], np.eye(CLASSES)[federation.labels[kept]]
    labels = np.where(kept, federation.labels, -1)
    with x64():
        found = solution(FLOAT64.array(federation.features), FLOAT64.array(labels), CLASSES, 2.0)
    peer = Ridge(alpha=2.0, fit_intercept=False).fit(features, targets)
    FLOAT64.assert_close(found.weight, peer.coef_.T)
    FLOAT64.assert_close(found.gram, features.T @ features + 2.0 * np.eye(DIM))


def test_a_client_without_examples_sends_its_regularisation():
    empty = solution(jnp.full((4, DIM), jnp.nan), jnp.full(4, -1), CLASSES, 1.0)
    np.testing.assert_array_equal(empty.weight, 0)
    np.testing.assert_array_equal(empty.gram, np.eye(DIM))


@pytest.mark.usefixtures("untyped")
def test_bad_arguments():
    with pytest.raises(ValueError, match="gamma: expected a finite number of at least 0, got -1"):
        local_solution(jnp.ones((2, 3)), jnp.zeros(2, jnp.int32), 2, -1.0)
    with pytest.raises(TypeError, match="labels: expected integers"):
        local_solution(jnp.ones((2, 3)), jnp.zeros(2), 2, 1.0)
