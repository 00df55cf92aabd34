"""The one-batch engine: fit, summarise, solve, inspect, evaluate."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from classifiers import make
from federations import CLASSES
from precision import FLOAT32, assert_heads_close

import covfree
from covfree.core.linalg import Route
from covfree.core.padding import padded_size

METHOD = covfree.fedcof(shrinkage=0.4)


def test_fit_is_summarise_then_solve():
    federation = federations.make(0)
    rows = covfree.summarise(METHOD, *map(FLOAT32.array, federation))
    head = covfree.fit(METHOD, *federation)
    assert_heads_close(head, covfree.solve_rows(METHOD, rows, num_classes=CLASSES), 0)
    totals = covfree.accumulate(METHOD, rows, num_classes=CLASSES)
    assert_heads_close(head, covfree.solve_totals(METHOD, *totals), 1e-5)


def test_number_of_classes_is_that_of_the_labels():
    head = covfree.fit(METHOD, np.ones((3, 2), np.float32), np.array([0, 4, 1]), np.array([0, 0, 1]))
    assert head.weight.shape == (2, 5)


def test_examples_with_values_may_be_used_under_jit():
    federation = [jnp.asarray(array) for array in map(FLOAT32.array, federations.make(0).clean)]
    compiled = jax.jit(lambda gamma: covfree.fit(covfree.fedcof(gamma), *federation, num_classes=CLASSES))
    assert_heads_close(compiled(0.4), covfree.fit(METHOD, *federation, num_classes=CLASSES), 1e-5)


def test_fit_takes_lists_and_numpy_and_jax():
    federation = federations.make(1).clean
    expected = covfree.fit(METHOD, *map(FLOAT32.array, federation))
    assert_heads_close(covfree.fit(METHOD, *federation), expected, 1e-6)
    assert_heads_close(covfree.fit(METHOD, *(x.tolist() for x in federation)), expected, 1e-6)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_fit_takes_integer_types_for_rows_of_examples(dtype):
    """Of means: tests/core/test_doors.py."""
    method = covfree.methods.registry()["fed3r-within"].make()
    clean = federations.make(2).clean
    features = clean.features.astype(np.float32)
    expected = covfree.fit(method, features, clean.labels, clean.clients, num_classes=256)
    head = covfree.fit(
        method, features, clean.labels.astype(dtype), clean.clients.astype(dtype), num_classes=256
    )
    assert_heads_close(head, expected, 1e-5)


def test_clients_named_by_large_numbers_stay_apart():
    # 64-bit names, such as hashes: two that agree in their lower 32 bits are two clients, none is padding.
    federation = federations.make(3)
    for names in (np.arange(federations.CLIENTS) << 32, (1 << 31) + np.arange(federations.CLIENTS)):
        clients = np.where(federation.clients >= 0, names[federation.clients], -1)
        head = covfree.fit(METHOD, federation.features, federation.labels, clients)
        assert_heads_close(head, covfree.fit(METHOD, *federation), 1e-5)


@pytest.mark.parametrize(("number", "padded"), [(6, 7), (1000, 1280)])
def test_rows_are_padded_to_one_of_few_sizes(number, padded):
    labels, clients = np.zeros(number, np.int32), np.arange(number, dtype=np.int32)
    rows = covfree.summarise(METHOD, np.ones((number, 1), np.float32), labels, clients)
    assert rows.count.shape == (padded,)


def test_padding_is_bounded_and_sizes_are_few():
    """Less than half, and less than an eighth of a long table; two sizes an octave, then eight."""
    for low, high, most, number in ((1, 3584, 1 / 2, 2), (3585, 65536, 1 / 8, 8)):
        sizes = {rows: padded_size(rows) for rows in range(low, high + 1)}
        assert all(rows <= size < rows * (1 + most) or size == rows for rows, size in sizes.items())
        assert len({size for size in sizes.values() if high // 2 < size <= high}) == number


# For every method the law `finite` says so, of compiled functions: tests/methods/test_contracts.py.
@pytest.mark.parametrize("name", ["fedcof", "naive-bayes"])
def test_only_padding_predicts_nothing(name):
    """Under ``jit``; where values are known, a federation of nobody is an error."""
    features, labels, clients = np.full((3, 2), np.nan, np.float32), np.full(3, -1), np.zeros(3, int)
    method, key = make(name), jax.random.key(0)
    head = jax.jit(lambda *a: covfree.fit(method, *a, num_classes=3, key=key))(features, labels, clients)
    for given in (
        (features, labels, clients),
        (features, clients, labels),
    ):
        with pytest.raises(ValueError, match=r"clients: .*0 or above.*got none of 3"):
            covfree.fit(method, *given, num_classes=3, key=key)
    np.testing.assert_array_equal(head(FLOAT32.array(np.ones((2, 2)))), -np.inf)
    if isinstance(head, covfree.LinearHead):
        np.testing.assert_array_equal(head.weight, 0)


def test_no_examples_at_all():
    head = covfree.fit(
        METHOD, np.zeros((0, 2), np.float32), np.zeros(0, int), np.zeros(0, int), num_classes=3
    )
    np.testing.assert_array_equal(head.weight, 0)
    np.testing.assert_array_equal(head.present, 0)


def test_diagnosis_shows_a_singular_system():
    label, client = jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 0, 1])
    rows = covfree.Rows(jnp.ones((4, 3)), jnp.ones(4), label, client)
    system = covfree.diagnose(rows, num_classes=2, method=covfree.fedcof(shrinkage=0.0)).system
    assert system.route in (Route.EIGH, Route.DUAL_EIGH)
    assert system.rank == 0


def test_values_that_are_wrong_under_jit_show_and_do_not_raise():
    federation = federations.make(5)
    features = federation.features.copy()
    features[np.flatnonzero(federation.kept)[3]] = np.nan
    head = jax.jit(lambda *a: covfree.fit(METHOD, *a, num_classes=CLASSES))(
        *map(FLOAT32.array, federation.with_features(features))
    )
    assert np.isnan(np.asarray(head.weight)).any()


def test_evaluate():
    head = covfree.LinearHead(jnp.eye(2), jnp.zeros(2))
    features = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [jnp.nan, 0.0]])
    assert covfree.evaluate(head, features, jnp.array([0, 1, 0, -1])) == pytest.approx(2 / 3)
    assert np.isnan(covfree.evaluate(head, features, jnp.full(4, -1)))
    assert covfree.evaluate(head, np.asarray(features, np.float16), np.array([0, 1, 1, -1])) == 1
    negative = jax.tree_util.Partial(jnp.negative)  # a head may be any function that is a pytree
    assert covfree.evaluate(negative, features, jnp.array([1, 0, 0, -1])) == 1
    never = covfree.LinearHead(jnp.zeros((2, 2)), jnp.zeros(2), present=jnp.zeros(2))
    assert covfree.evaluate(never, features[:3], jnp.array([0, 0, 0])) == 0  # no class was ever seen


@pytest.mark.usefixtures("untyped")
def test_sweep_of_federations_under_vmap():
    tables = [covfree.summarise(METHOD, *map(FLOAT32.array, federations.make(s))) for s in range(3)]
    size = max(t.count.shape[0] for t in tables)
    tables = [
        jax.tree.map(lambda x: np.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)), t) for t in tables
    ]
    batch = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *tables)
    heads = jax.jit(jax.vmap(lambda rows: covfree.solve_rows(METHOD, rows, num_classes=CLASSES)))(batch)
    for k, rows in enumerate(tables):
        assert_heads_close(
            jax.tree.map(lambda leaf, k=k: leaf[k], heads),
            covfree.solve_rows(METHOD, rows, num_classes=CLASSES),
            1e-5,
        )


# Errors (values and structure of `check` are in test_checks)


def test_fit_without_key_or_classes():
    x, y, k = np.ones((4, 2), np.float32), np.array([0, 0, 1, 1]), np.zeros(4, int)
    with pytest.raises(
        ValueError, match=r"key: expected a PRNG key as num_subsets > 1 deals examples at random"
    ):
        covfree.fit(covfree.fedcof(num_subsets=2), x, y, k)
    with pytest.raises(ValueError, match=r"labels: expected at least one label of 0 or above, got none"):
        covfree.fit(METHOD, x, y - 5, k)
    with pytest.raises(ValueError, match=r"num_classes: expected an integer of at least 1, got 0"):
        covfree.fit(METHOD, x, y - 5, k, num_classes=0)
    with pytest.raises(
        ValueError, match=r"num_classes: expected the number of classes, as labels are traced"
    ):
        jax.jit(lambda x, y, k: covfree.fit(METHOD, x, y, k))(x, y, k)


@pytest.mark.usefixtures("untyped")
def test_solve_rows_without_classes():
    rows = covfree.Rows(jnp.ones((4, 2)), jnp.ones(4), jnp.zeros(4, jnp.int32))
    with pytest.raises(ValueError, match=r"num_classes: expected .*, got 0"):
        covfree.solve_rows(METHOD, rows, num_classes=0)


@pytest.mark.parametrize(
    ("method", "scale"),
    [(covfree.fed3r(), 1e18), (covfree.fedcof(covfree.relative(0.1)), 2e19)],
    ids=["fed3r", "fedcof"],
)
def test_features_whose_squares_are_infinite_are_refused(method, scale):
    """A system that overflowed has no solution; one of 0 would look like a head."""
    labels = np.arange(200) % 3
    features = np.random.default_rng(0).normal(size=(200, 4)) + 3 * np.eye(3, 4)[labels]
    with pytest.raises(ValueError, match=r"\(1\) sums of squares of features overflow .* float32"):
        covfree.fit(method, np.float32(scale) * features.astype(np.float32), labels, np.arange(200) % 20)


def test_labels_need_not_be_traced_where_features_are(untyped):
    clean = federations.make(0).clean
    features = clean.features.astype(np.float32)

    def weight(x):
        rows = covfree.summarise(METHOD, x, clean.labels, clean.clients)
        return covfree.solve_rows(METHOD, rows, num_classes=CLASSES).weight

    np.testing.assert_allclose(jax.jit(weight)(features), weight(features), rtol=1e-4, atol=1e-5)


def test_evaluate_takes_any_function():
    features, labels = np.eye(2, dtype=np.float32), np.array([1, 1])
    assert covfree.evaluate(lambda x: -x, features, labels) == 0.5
    assert covfree.evaluate(lambda x: np.sort(x), features, labels) == 1  # none of jax
    assert jax.jit(lambda w: covfree.evaluate(lambda x: x @ w, features, labels))(-np.eye(2)) == 0.5


def test_evaluate_takes_lists_and_says_what_does_not_fit():
    head = covfree.LinearHead(jnp.eye(2), jnp.zeros(2))
    for scores in (head, lambda x: np.sort(x)):
        with pytest.raises(ValueError, match=r"labels: row 1 has label 2; .* below num_classes = 2"):
            covfree.evaluate(scores, np.ones((2, 2), np.float32), np.array([0, 2]))
        with pytest.raises(
            ValueError, match=r"features: row 1 \(class 0\) holds nan at position 0; expected fin"
        ):
            covfree.evaluate(scores, np.float32([[1, 0], [np.nan, 0]]), np.zeros(2, int))
    with pytest.raises(TypeError, match=r"labels: expected integers, got <U3; convert names to numbers"):
        covfree.evaluate(head, np.ones((2, 2), np.float32), np.array(["cat", "dog"]))
    with pytest.raises(
        ValueError,
        match=r"features: expected \[examples, dim\] with labels \[examples\], got \[2, 3, 2\] with",
    ):
        covfree.evaluate(head, np.ones((2, 3, 2), np.float32), np.zeros((2, 3), int))
    assert covfree.evaluate(head, [[1.0, 0.0], [0.0, 1.0]], [0, 0]) == 0.5
    with pytest.raises(ValueError, match=r"features: expected \[..., 2\], got \[32, 3\]"):
        covfree.evaluate(head, np.ones((32, 3), np.float32), np.zeros(32, int))


def test_errors_name_the_key_the_clients_and_the_number_of_classes(untyped):
    features, labels = np.eye(2, dtype=np.float32), np.array([0, 1])
    with pytest.raises(TypeError, match=r"key: expected a PRNG key, such as jax.random.key\(0\), got 0"):
        covfree.fit(METHOD, features, labels, labels, key=0)
    with pytest.raises(TypeError, match="key: expected a PRNG key"):
        covfree.client_message(METHOD, features, labels, num_classes=2, key=0)
    with pytest.raises(ValueError, match=r"clients: expected an array, got .* of unequal lengths"):
        covfree.fit(METHOD, features, labels, [np.zeros(1, int), np.zeros(2, int)])
    with pytest.raises(TypeError, match="num_classes: expected a Python integer of at least 1, got Array"):
        covfree.class_means(features, labels, jnp.int32(2))
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        covfree.fit(METHOD, features, labels, labels, key=key)


def test_features_whose_squares_vanish_are_refused_where_a_covariance_is_needed():
    """Their variances are 0, and the head would give the largest class whatever it is asked."""
    clean = federations.make(0).clean

    def classes(method, scale):
        features = np.float32(scale) * clean.features.astype(np.float32)
        head = covfree.fit(method, features, clean.labels, clean.clients)
        return np.unique(head(features).argmax(1)).size

    rows = covfree.summarise(METHOD, np.float32(1e-20) * clean.features, clean.labels, clean.clients)
    for solve in (
        *(lambda m=m: classes(m, 1e-20) for m in (covfree.fedcof(0.1), covfree.naive_bayes())),
        *(lambda m=m: classes(m, 1e-20) for m in (covfree.fed3r(), covfree.refined(METHOD))),
        lambda: covfree.solve_rows(METHOD, rows, num_classes=CLASSES),
    ):
        with pytest.raises(
            ValueError,
            match=r"features: expected numbers whose squares do not underflow in float32,.*e-(19|2.);",
        ):
            solve()
    assert classes(covfree.fedcof(covfree.relative(0.1)), 1e-12) > 1
    assert classes(covfree.qda(), 1e-16) > 1
    assert classes(covfree.naive_bayes(), 1e-16) > 1
    assert classes(covfree.fedncm(), 1e-20) > 1
    # Smaller numbers are no features to any method, wherever they are.
    tiny = (1e-41 * clean.features).astype(np.float32)
    for features in (tiny, jnp.asarray(tiny), 1e-45 * clean.features):
        with pytest.raises(
            ValueError, match=r"features: expected numbers of at least 1e-38, .* got \d\S* as the largest"
        ):
            covfree.fit(covfree.fedncm(), features, clean.labels, clean.clients)
    assert covfree.fit(covfree.fedncm(), 0 * tiny, clean.labels, clean.clients).weight.shape[1] == CLASSES
