"""Contracts that every registered method keeps; a method added to the registry is tested unasked."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, CLASSES, CLIENTS, DIM
from precision import FLOAT32, assert_close, assert_heads_close, relative_error, x64

import covfree
from covfree.methods import registry

KEY = jax.random.key(0)
# Methods as a table would run them, by the numbers that they accept; "auto" is a rule, not a formula, and
# has no oracle, so where a shrinkage is accepted one is given.
NUMBERS = {"shrinkage": 0.4, "ridge": 0.7}
ORACLES = {
    "fedncm": oracle.fedncm,
    "fed3r": lambda *a: oracle.fed3r(*a, ridge=0.7),
    "fed3r-within": lambda *a: oracle.fed3r(*a, ridge=0.7, between_class=False),
    "fedcof": lambda *a: oracle.fedcof(*a, gamma=0.4),
    "fedcof-paper": lambda *a: oracle.fedcof(*a, gamma=1.0, weighting="per_class", head="ridge"),
    "fedcof-oracle": lambda *a: oracle.fedcof_oracle(*a, gamma=0.4),
}


def make(name, **numbers):
    entry = registry()[name]
    numbers = {**NUMBERS, **numbers}
    return entry.make(**{k: v for k, v in numbers.items() if k in entry.accepts})


def fit(method, federation, precision=FLOAT32, **kwargs):
    features, labels, clients = federation
    return covfree.fit(
        method, np.asarray(features, precision.dtype), labels, clients, num_classes=CLASSES, key=KEY, **kwargs
    )


@pytest.fixture(params=sorted(registry()))
def name(request):
    return request.param


def test_every_method_has_an_oracle():
    assert sorted(ORACLES) == sorted(registry()), (
        "write the method's formula in tests/oracle.py and list it here"
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_the_oracle(name, precision, seed):
    federation = federations.make(seed)
    head = fit(make(name), federation, precision)
    expected = ORACLES[name](*federation.clean, CLASSES)
    # Eq. 24 as printed, which the oracle uses, loses a digit itself.
    assert_heads_close(head, expected, precision.tolerance)


def test_equals_the_oracle_far_from_zero(name):
    # The mean is 1000 times the spread. A ridge head has no intercept: its Gram matrix then has condition
    # 1e7, and float32 leaves it no digits; what must hold is that nothing more is lost than that.
    federation = federations.make(3, offset=1000.0)
    federation = federation.with_features(federation.features.astype(np.float32))
    expected = ORACLES[name](*federation.clean, CLASSES)
    head = fit(make(name), federation)
    if name in ("fedcof", "fedcof-oracle"):
        assert_close(head.weight, expected[0], 1e-2)
        scores = [f64_scores(h, federation.clean.features) for h in (head, expected)]
        # Scores near 1e6, of which the classes differ by 1: float32 weights decide all but near ties.
        assert (scores[0].argmax(-1) == scores[1].argmax(-1)).mean() > 0.9
    elif name == "fedncm":
        assert_close(head.weight, expected[0], 1e-6)
    else:
        assert np.isfinite(np.asarray(head.weight)).all()


def f64_scores(head, features):
    return np.asarray(features, np.float64) @ np.asarray(head[0], np.float64) + np.asarray(
        head[1], np.float64
    )


def test_dtype_and_shape(name, precision):
    head = fit(make(name), federations.make(0), precision)
    assert head.weight.shape == (DIM, CLASSES)
    assert head.bias.shape == (CLASSES,)
    assert head.weight.dtype == head.bias.dtype == precision.dtype


def test_relabelling_the_clients_changes_nothing(name):
    federation = federations.make(4)
    numbers = np.random.default_rng(0).permutation(1000)[:CLIENTS]
    other = federation._replace(
        clients=np.where(federation.clients >= 0, numbers[federation.clients], -1).astype(np.int32)
    )
    assert_heads_close(fit(make(name), other), fit(make(name), federation), 1e-5)


def test_order_of_examples_changes_nothing(name):
    federation = federations.make(4)
    order = np.random.default_rng(1).permutation(len(federation.labels))
    other = federations.Federation(*(x[order] for x in federation))
    assert_heads_close(fit(make(name), other), fit(make(name), federation), 1e-4)


def test_padding_changes_nothing(name):
    federation = federations.make(5)
    assert_heads_close(fit(make(name), federation), fit(make(name), federation.clean), 1e-5)
    # What the padding holds changes not a bit.
    filled = np.where(federation.kept[:, None], federation.features, 1e30)
    for a, b in zip(
        fit(make(name), federation), fit(make(name), federation.with_features(filled)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_renaming_the_classes_permutes_the_head(name):
    federation = federations.make(6)
    order = np.random.default_rng(2).permutation(CLASSES)
    place = np.argsort(order)  # class c becomes place[c]
    other = federation._replace(
        labels=np.where(federation.labels >= 0, place[federation.labels], -1).astype(np.int32)
    )
    head = fit(make(name), federation)
    assert_heads_close(fit(make(name), other), (head.weight[:, order], head.bias[order]), 1e-4)


def test_more_classes_add_absent_ones(name):
    federation = federations.make(6)
    head = fit(make(name), federation)
    features, labels, clients = federation
    wide = covfree.fit(make(name), features, labels, clients, num_classes=CLASSES + 3, key=KEY)
    assert_heads_close((wide.weight[:, :CLASSES], wide.bias[:CLASSES]), head, 1e-5)
    np.testing.assert_array_equal(wide.weight[:, CLASSES:], 0)
    np.testing.assert_array_equal(wide.bias[CLASSES:], -np.inf)


def test_no_absent_class_is_predicted(name):
    head = fit(make(name), federations.make(7))
    np.testing.assert_array_equal(head.weight[:, ABSENT], 0)
    assert head.bias[ABSENT] == -np.inf
    assert np.isfinite(np.delete(np.asarray(head.bias), ABSENT)).all()
    predicted = head(50 * jax.random.normal(jax.random.key(1), (300, DIM))).argmax(-1)
    assert ABSENT not in np.asarray(predicted)


def test_is_a_pytree_of_numbers(name):
    method = make(name)
    leaves, structure = jax.tree.flatten(method)
    assert all(np.ndim(leaf) == 0 for leaf in leaves)
    again = jax.tree.unflatten(structure, leaves)
    assert again == method
    assert isinstance(hash(structure), int)
    # Two that are made alike are alike: they share compiled functions.
    assert jax.tree.structure(make(name)) == structure
    passed = jax.jit(lambda m: m)(method)
    assert jax.tree.structure(passed) == structure
    np.testing.assert_allclose(jax.tree.leaves(passed), leaves, rtol=1e-6)
    federation = federations.make(0)
    assert_heads_close(fit(again, federation), fit(method, federation), 1e-7)


def test_other_numbers_compile_nothing_anew(name, caplog):
    federation = federations.make(0)
    fit(make(name), federation)
    size = covfree.solve_rows._cache_size()
    with jax.log_compiles():
        caplog.clear()
        fit(make(name), federation.with_features(2 * federation.features + 1))
        fit(make(name, shrinkage=0.9, ridge=3.0), federation)
        compiled = [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()]
    assert compiled == []
    assert covfree.solve_rows._cache_size() == size


def test_one_batch_equals_clients_one_by_one(name):
    """Rows made by each client alone, put together by the server, give the head that `fit` gives."""
    federation, method = federations.make(9), make(name)
    features = jnp.asarray(federation.features, jnp.float32)
    one = jax.jit(lambda y: method.summary.one_client(features, y, CLASSES, KEY))
    parts = [
        one(jnp.asarray(np.where(federation.clients == k, federation.labels, -1))) for k in range(CLIENTS)
    ]
    rows = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    assert_heads_close(covfree.solve_rows(method, rows, num_classes=CLASSES), fit(method, federation), 1e-4)


def test_totals_of_parts_add_up(name):
    """Phases are additive: totals summed over halves of the rows solve to the same head."""
    federation, method = federations.make(10), make(name)
    rows = covfree.summarise(method, *map(FLOAT32.array, federation), key=KEY)
    whole = covfree.solve_rows(method, rows, num_classes=CLASSES)
    half = np.random.default_rng(3).random(rows.count.shape[0]) < 0.5
    halves = [covfree.Rows(rows.mean, jnp.where(part, rows.count, 0), rows.label) for part in (half, ~half)]
    totals = ()
    for phase in method.phases:
        terms = [phase(method.params, totals, part, CLASSES) for part in halves]
        totals += (add(*terms),)
    assert_heads_close(covfree.solve_totals(method, *totals), whole, 1e-4)


def add(first, second):
    """Add a phase's terms: factors as matrices, all else as it is."""
    is_factor = lambda node: isinstance(node, covfree.methods.Factor)  # noqa: E731

    def one(a, b):
        if is_factor(a):
            return covfree.linalg.Scatter.from_matrix(a.rows.T @ a.rows + b.rows.T @ b.rows)
        return a + b

    return jax.tree.map(one, first, second, is_leaf=is_factor)


def test_eager_equals_compiled(name):
    federation, method = federations.make(11), make(name)
    rows = covfree.summarise(method, *map(FLOAT32.array, federation), key=KEY)
    with jax.disable_jit():
        eager = covfree.solve_rows(method, rows, num_classes=CLASSES)
    assert_heads_close(eager, covfree.solve_rows(method, rows, num_classes=CLASSES), 1e-5)


def test_fit_under_jit(name):
    federation, method = federations.make(12), make(name)
    run = jax.jit(lambda x, y, k: covfree.fit(method, x, y, k, num_classes=CLASSES, key=KEY))
    assert_heads_close(run(*map(FLOAT32.array, federation)), fit(method, federation), 1e-4)


def test_numbers_can_be_swept_and_differentiated(name):
    method, federation = make(name), federations.make(13)
    leaves, structure = jax.tree.flatten(method)
    if not leaves:
        pytest.skip(f"{name} has no numbers")
    rows = covfree.summarise(method, *map(FLOAT32.array, federation), key=KEY)
    test_features = jnp.asarray(np.nan_to_num(federation.features), jnp.float32)

    def loss(*numbers):
        head = covfree.solve_rows(jax.tree.unflatten(structure, numbers), rows, num_classes=CLASSES)
        scores = jax.nn.log_softmax(head(test_features))
        return -jnp.where(jnp.isfinite(scores), scores, 0).mean()

    gradient = jax.grad(loss)(*leaves)
    assert np.isfinite(gradient)
    swept = jax.vmap(loss)(*(jnp.asarray([x, x + 0.5], jnp.float32) for x in leaves))
    for k, step in enumerate([0.0, 0.5]):
        np.testing.assert_allclose(swept[k], loss(*(x + step for x in leaves)), rtol=1e-5)


def test_gradient_to_the_number_against_finite_differences(name):
    method, federation = make(name), federations.make(13)
    leaves, structure = jax.tree.flatten(method)
    if not leaves:
        pytest.skip(f"{name} has no numbers")
    with x64():
        clean = federation.clean
        rows = covfree.summarise(
            method,
            jnp.asarray(clean.features),
            jnp.asarray(clean.labels),
            jnp.asarray(clean.clients),
            key=KEY,
        )

        @jax.jit
        def loss(number):
            head = covfree.solve_rows(jax.tree.unflatten(structure, [number]), rows, num_classes=CLASSES)
            return jnp.sum(jnp.sin(head.weight))

        step = 1e-5
        slope = (loss(leaves[0] + step) - loss(leaves[0] - step)) / (2 * step)
        np.testing.assert_allclose(jax.grad(loss)(leaves[0]), slope, rtol=1e-6)


def test_gradient_to_the_means_is_finite(name):
    # Padding, absent classes and classes with one row must give no NaN by the back door.
    method, federation = make(name), federations.make(14)
    rows = covfree.summarise(method, *map(FLOAT32.array, federation), key=KEY)

    def loss(mean):
        head = covfree.solve_rows(method, covfree.Rows(mean, rows.count, rows.label), num_classes=CLASSES)
        return jnp.sum(jnp.sin(head.weight)) + jnp.sum(jnp.where(jnp.isfinite(head.bias), head.bias, 0))

    gradient = np.asarray(jax.grad(loss)(rows.mean))
    assert np.isfinite(gradient).all()
    padding = (np.asarray(rows.count) == 0) | (np.asarray(rows.label) < 0)
    np.testing.assert_array_equal(gradient[padding], 0)


@pytest.mark.parametrize(
    "case", ["equal", "one example each", "one client", "one class", "one dimension", "one example"]
)
def test_degenerate_federations_give_finite_heads(name, case):
    federation = federations.make(15, equal=case == "equal").clean
    features, labels, clients = federation.features.astype(np.float32), federation.labels, federation.clients
    if case == "one example each":
        clients = np.arange(len(labels))
    elif case == "one client":
        clients = np.zeros_like(labels)
    elif case == "one class":
        labels = np.zeros_like(labels)
    elif case == "one dimension":
        features = features[:, :1]
    elif case == "one example":
        features, labels, clients = features[:1], labels[:1], clients[:1]
    num_classes = 1 if case == "one class" else CLASSES
    head = covfree.fit(registry()[name].make(), features, labels, clients, num_classes=num_classes, key=KEY)
    held = np.bincount(labels, minlength=num_classes) > 0
    assert np.isfinite(np.asarray(head.weight)).all()
    np.testing.assert_array_equal(np.isfinite(np.asarray(head.bias)), held)
    assert held[np.asarray(head(features).argmax(-1))].all()


def test_more_dimensions_than_rows(name):
    # The dual route; at the defaults too the head must be finite.
    rng = np.random.default_rng(4)
    labels, clients = rng.integers(0, 3, 24), rng.integers(0, 4, 24)
    features = rng.normal(size=(24, 60)) + labels[:, None] * rng.normal(size=60)
    head = covfree.fit(make(name), features.astype(np.float32), labels, clients, key=KEY)
    assert_heads_close(head, ORACLES[name](features.astype(np.float32), labels, clients, 3), 1e-3)
    default = covfree.fit(registry()[name].make(), features.astype(np.float32), labels, clients, key=KEY)
    assert np.isfinite(np.asarray(default.weight)).all()
    assert (np.asarray(default(features.astype(np.float32)).argmax(-1)) == labels).mean() > 0.9


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_features(name, dtype):
    federation = federations.make(16)
    features = jnp.asarray(federation.features, dtype)
    head = covfree.fit(
        make(name), features, federation.labels, federation.clients, num_classes=CLASSES, key=KEY
    )
    rounded = federation.with_features(np.asarray(features.astype(jnp.float32)))
    assert_heads_close(head, ORACLES[name](*rounded.clean, CLASSES), FLOAT32.tolerance)
    assert head.weight.dtype == jnp.float32
    assert head(features[:3]).dtype == jnp.float32


def test_scaling_changes_no_prediction_of_the_defaults(name):
    # Nothing to tune: the defaults do not depend on the features' unit, unless a number of the paper does.
    if name in ("fed3r", "fed3r-within", "fedcof-paper"):
        pytest.skip(f"{name}: its λ or γ is in the features' unit")
    federation, method = federations.make(17), registry()[name].make()
    features = federation.clean.features
    heads = [fit(method, federation.with_features(federation.features * s)) for s in (1.0, 2.0**-12, 2.0**12)]
    first, *others = (
        f64_scores(h, features * s) for h, s in zip(heads, (1.0, 2.0**-12, 2.0**12), strict=True)
    )
    for scores in others:
        np.testing.assert_array_equal(scores.argmax(-1), first.argmax(-1))


def test_learns(name):
    # Well separated classes are told apart, with the defaults.
    rng = np.random.default_rng(5)
    labels, clients = rng.integers(0, 4, 200), rng.integers(0, 10, 200)
    features = (4 * np.eye(8)[labels] + rng.normal(size=(200, 8)) * 0.5).astype(np.float32)
    head = covfree.fit(registry()[name].make(), features, labels, clients, key=KEY)
    assert covfree.evaluate(head, features, labels) > 0.98


def test_entry_describes_its_method(name):
    entry = registry()[name]
    assert entry.title
    method = entry.make()
    assert method.name
    assert method.message in ("rows", "gram", "scatter", "covariances")
    assert entry.accepts <= {"shrinkage", "ridge", "num_subsets"}
    with pytest.raises(TypeError):
        registry()["new"] = entry  # read-only


@pytest.mark.parametrize("num_subsets", [2, 4])
def test_subsets_keep_the_means_and_add_degrees(num_subsets):
    federation = federations.make(18)
    plain = covfree.summarise(covfree.fedcof(), *map(FLOAT32.array, federation))
    method = covfree.fedcof(num_subsets=num_subsets)
    rows = covfree.summarise(method, *map(FLOAT32.array, federation), key=KEY)
    first, second = (covfree.first_moments(r, CLASSES) for r in (plain, rows))
    assert_close(second.mean, first.mean, 1e-5)
    assert second.spread_degrees > first.spread_degrees
    heads = [fit(method, federation), fit(method, federation)]
    for a, b in zip(*heads, strict=True):
        np.testing.assert_array_equal(a, b)  # the key decides, and nothing else
    other = covfree.fit(method, *federation, num_classes=CLASSES, key=jax.random.key(9))
    assert relative_error(other.weight, heads[0].weight) > 0


def test_pooled_weighting_equals_the_oracle(precision):
    federation = federations.make(8)
    head = fit(covfree.fedcof(shrinkage=0.4, weighting="pooled"), federation, precision)
    expected = oracle.fedcof(*federation.clean, CLASSES, gamma=0.4, weighting="pooled")
    assert_heads_close(head, expected, precision.tolerance)


def test_a_head_may_be_a_function():
    def head(covariance, moments):
        return covfree.lda_head(covariance.dense(), moments)

    federation = federations.make(19)
    custom = fit(covfree.fedcof(shrinkage=0.4, head=head), federation)
    assert_heads_close(custom, fit(covfree.fedcof(shrinkage=0.4, head="lda"), federation), 1e-5)


# Arguments


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: covfree.fedcof(weighting="mean"),
            ValueError,
            r"weighting: expected one of \('per_class', 'pooled'\), got 'mean'",
        ),
        (
            lambda: covfree.fedcof(head="svm"),
            ValueError,
            "head: expected 'lda', 'ridge' or a function, got 'svm'",
        ),
        (lambda: covfree.fedcof(head=3), ValueError, "head: expected 'lda', 'ridge' or a function, got 3"),
        (lambda: covfree.fedcof_oracle(head="svm"), ValueError, "head: expected"),
        (
            lambda: covfree.fedcof(num_subsets=0),
            ValueError,
            "num_subsets: expected an integer of at least 1, got 0",
        ),
        (
            lambda: covfree.fedcof(num_subsets=1.5),
            TypeError,
            r"num_subsets: expected an integer of at least 1, got 1\.5",
        ),
        (lambda: covfree.fedcof(shrinkage="best"), ValueError, "shrinkage: expected"),
        (lambda: covfree.fedcof_oracle(shrinkage=-1.0), ValueError, "expected a finite number of at least 0"),
        (lambda: covfree.fed3r(ridge=-1.0), ValueError, r"ridge: expected .*got -1\.0"),
        (lambda: covfree.fed3r(ridge=float("nan")), ValueError, "ridge: expected .*got nan"),
        (lambda: covfree.fed3r(ridge="one"), TypeError, "ridge: expected .*got 'one'"),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
