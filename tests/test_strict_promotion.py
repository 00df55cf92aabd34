"""Public functions where jax may not mix data types; tests/methods/test_contracts.py runs in this mode."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import CLASSES, DIM
from precision import x64

import covfree
from covfree import recursive
from covfree.methods import registry

KEY = jax.random.key(0)


def test_no_data_types_are_mixed():
    """Tracing tells; nothing is compiled but what makes the arguments."""
    clean = federations.make(0).clean
    x, y, k = jnp.asarray(clean.features, jnp.float32), jnp.asarray(clean.labels), jnp.asarray(clean.clients)
    rows = covfree.summarise(covfree.fedcof_components(), x, y, k, key=KEY)
    two = covfree.Rows(rows.mean, rows.count, jnp.minimum(rows.label, 1), rows.client)
    moments = covfree.first_moments(rows, CLASSES)
    means, counts = covfree.class_means(x, y, CLASSES)
    virtual = covfree.Rows(means, counts, jnp.arange(CLASSES), covariance=jnp.ones_like(means))
    head = covfree.ncm_head(moments)
    first = jnp.arange(federations.CLIENTS)
    covariances = jnp.broadcast_to(jnp.eye(DIM), (CLASSES, DIM, DIM))

    def solved(shrinkage, rows=rows, num_classes=CLASSES, **options):
        return covfree.solve_rows(covfree.fedcof(shrinkage, **options), rows, num_classes=num_classes)

    def recursion():
        state = recursive.update(recursive.recursive_ridge(DIM, CLASSES, 1), x, y)
        return recursive.head(recursive.downdate(state, x[:3], y[:3]))

    calls = [
        lambda: covfree.aggregate_covariances(means, counts, covariances),
        lambda: covfree.arrived(rows, first, 3),
        lambda: covfree.between_scatter(moments),
        lambda: covfree.calibrate_temperature(head, x, y),
        lambda: covfree.class_covariances(x, y, CLASSES),
        lambda: covfree.class_means(x, y, CLASSES),
        lambda: covfree.count_noise("laplace", 1)(rows, key=KEY),
        lambda: covfree.diagnose(rows, num_classes=CLASSES, method=covfree.fed3r()),
        lambda: covfree.estimate_covariance(rows.mean, rows.count),
        lambda: covfree.estimate_covariances(rows, CLASSES),
        lambda: covfree.evaluate(head, x, y),
        lambda: covfree.first_moments(rows, CLASSES),
        lambda: covfree.gaussian_head(covariances, moments)(x),
        lambda: covfree.gram(x, y, CLASSES),
        lambda: covfree.lda_head(jnp.eye(DIM), moments, priors=jnp.ones(CLASSES)),
        lambda: covfree.ncm_head(moments),
        lambda: covfree.ridge_head(jnp.eye(DIM), moments, ridge=1),
        lambda: covfree.sample_rows(virtual, 50, key=KEY),
        lambda: covfree.scatter_spectra(rows, CLASSES),
        lambda: covfree.shift_test(rows, CLASSES),
        lambda: covfree.softmax_head(x, y, CLASSES, weight=y),
        lambda: covfree.total_gram(jnp.eye(DIM), moments).dense(),
        lambda: covfree.with_temperature(head, 2),
        lambda: covfree.within_scatter(rows, moments, weighting="pooled"),
        lambda: solved(1),
        lambda: solved(covfree.relative(1)),
        lambda: solved(covfree.oas()),
        lambda: solved(covfree.ledoit_wolf()),
        lambda: solved("auto", two, 2),
        recursion,
    ]
    with jax.numpy_dtype_promotion("strict"):
        for call in calls:
            # Leaves alone: records of shapes would not be what their fields' types say.
            jax.eval_shape(lambda call=call: jax.tree.leaves(call()))


@pytest.mark.slow
def test_no_data_types_are_mixed_under_x64():
    """Features and integers of either width."""
    clean = federations.make(0).clean
    with x64(), jax.numpy_dtype_promotion("strict"):
        for floats, integers in ((jnp.float64, jnp.int32), (jnp.float32, jnp.int64)):
            x, y, k = (
                jnp.asarray(clean.features, floats),
                *(jnp.asarray(column, integers) for column in (clean.labels, clean.clients)),
            )
            rows = covfree.Rows(x, y + 1, y, k)
            head = covfree.LinearHead(jnp.ones((DIM, CLASSES), floats), jnp.zeros(CLASSES, floats))
            calls = [
                lambda x=x, y=y: covfree.class_covariances(x, y, CLASSES),
                lambda x=x, y=y: covfree.class_means(x, y, CLASSES),
                lambda x=x, y=y: covfree.estimate_covariance(x, y),
                lambda x=x, y=y: covfree.estimate_covariance(x, y, shrinkage=covfree.ledoit_wolf()),
                lambda x=x, y=y, head=head: covfree.evaluate(head, x, y),
                lambda x=x, y=y: covfree.gram(x, y, CLASSES),
                lambda rows=rows: covfree.shift_test(rows, CLASSES),
                lambda rows=rows: covfree.solve_rows(covfree.fedcof(), rows, num_classes=CLASSES),
            ]
            for call in calls:
                jax.eval_shape(lambda call=call: jax.tree.leaves(call()))


@pytest.mark.parametrize("name", registry())
def test_no_method_mixes_data_types_under_x64(name):
    """Tracing of `fit` and of its head; nothing is compiled."""
    clean, wide = federations.make(0).clean, [(np.float32, np.int64)]
    if not registry()[name].make().one_shot:  # The others' float64 is in tests/methods/test_contracts.py.
        wide.append((np.float64, np.int32))
    with x64(), jax.numpy_dtype_promotion("strict"):
        for floats, integers in wide:
            x = clean.features.astype(floats)
            y, k = (column.astype(integers) for column in (clean.labels, clean.clients))

            def scores(x=x, y=y, k=k):
                return covfree.fit(registry()[name].make(), x, y, k, num_classes=CLASSES, key=KEY)(x)

            assert jax.eval_shape(scores).dtype == floats


@pytest.mark.slow
def test_float64_after_float32():
    """What one precision left behind in compiled functions does not disturb the other."""
    clean = federations.make(0).clean
    single = covfree.fit(covfree.fedcof(), clean.features.astype(np.float32), clean.labels, clean.clients)
    with x64():
        double = covfree.fit(covfree.fedcof(), clean.features, clean.labels, clean.clients)
    np.testing.assert_allclose(single.weight, double.weight, rtol=1e-2, atol=1e-3)
