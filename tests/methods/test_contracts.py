"""Contracts that every registered method keeps; a method added to the registry is tested unasked.

Compilation is what costs: all tests of a method run one after the other, on federations of one shape.
"""

import inspect
from dataclasses import replace

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from classifiers import (
    DRAWN,
    KEY,
    ORACLES,
    ROW_ORACLES,
    SAMPLED,
    assert_same_classifier,
    default,
    expected_head,
    fit,
    make,
    of_classes,
    only,
    tolerance,
)
from federations import ABSENT, CLASSES, CLIENTS, DIM, EXAMPLES, Federation
from precision import FLOAT32, x64

import covfree
from covfree.methods import registry

FEDERATION = federations.make(0)
# Heads about an origin: where the mean is 1000 times the spread their system has condition 1e7, and features
# scaled to norm 1 differ by a thousandth.
ABOUT_ORIGIN = {"afl", "fed3r", "fed3r-within", "fed3r-random", "fedcof-paper", "fedncm"}
# Their λ or γ is in the features' unit.
OF_A_UNIT = {"fed3r", "fed3r-within", "fedcof-paper"}


@pytest.fixture(scope="module", params=sorted(registry()))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def head(name):
    """What the method makes of the federation."""
    return fit(make(name), FEDERATION)


@jax.jit
def compiled_fit(method, features, labels, clients):
    """One compilation for each method; its numbers, and what the federation is like, are arguments."""
    return covfree.fit(method, features, labels, clients, num_classes=CLASSES, key=KEY)


def test_every_method_has_an_oracle():
    assert sorted([*ORACLES, *ROW_ORACLES, *SAMPLED]) == sorted(registry()), (
        "write the method's formula in tests/oracle.py and list it in tests/classifiers.py"
    )


def test_entry_describes_its_method(name):
    entry = registry()[name]
    assert entry.title
    method = entry.make()
    assert method.name
    assert method.message in ("rows", "gram", "solutions", "covariances")
    assert entry.accepts <= set(inspect.signature(entry.make).parameters)
    with pytest.raises(TypeError):
        registry()["new"] = entry  # read-only


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


def test_equals_the_oracle_and_keeps_the_precision(name, precision):
    method = make(name)
    head = fit(method, FEDERATION, precision)
    scores = head(precision.array(np.ones((3, DIM))))
    assert scores.shape == (3, CLASSES)
    assert scores.dtype == precision.dtype
    if name in SAMPLED:
        return  # no formula
    federation = FEDERATION.with_features(FEDERATION.features.astype(precision.dtype))
    assert_same_classifier(head, expected_head(name, method, federation), precision.tolerance)
    if isinstance(head, covfree.LinearHead):
        assert head.weight.shape == (DIM, CLASSES)
        assert head.weight.dtype == head.bias.dtype == precision.dtype


def test_no_absent_class_is_predicted(name, head):
    far = 50 * jax.random.normal(jax.random.key(1), (300, DIM))
    scores = np.asarray(head(far))
    np.testing.assert_array_equal(scores[:, ABSENT], -np.inf)
    assert np.isfinite(np.delete(scores, ABSENT, axis=1)).all()
    if isinstance(head, covfree.LinearHead):
        np.testing.assert_array_equal(head.weight[:, ABSENT], 0)


def test_padding_changes_nothing(name, head):
    if name not in ROW_ORACLES:  # there it moves the examples, and so what is drawn for them
        assert_same_classifier(fit(make(name), FEDERATION.clean), head, tolerance(name, 1e-5))
    # What the padding holds changes not a bit.
    filled = FEDERATION.with_features(np.where(FEDERATION.kept[:, None], FEDERATION.features, 1e30))
    for a, b in zip(jax.tree.leaves(fit(make(name), filled)), jax.tree.leaves(head), strict=True):
        np.testing.assert_array_equal(a, b)


def test_order_and_names_do_not_matter(name, head):
    if name in DRAWN:
        pytest.skip(f"{name}: what a client draws depends on its number and on its examples' order")
    rng = np.random.default_rng(0)
    order = rng.permutation(EXAMPLES)
    other = Federation(*(x[order] for x in FEDERATION))
    assert_same_classifier(fit(make(name), other), head, tolerance(name))
    numbers = rng.permutation(1000)[:CLIENTS]
    renamed = np.where(FEDERATION.kept, numbers[FEDERATION.clients], -1).astype(np.int32)
    other = FEDERATION._replace(clients=renamed)
    assert_same_classifier(fit(make(name), other), head, tolerance(name))
    if name in SAMPLED:
        return  # the server draws for one class after the other
    classes = rng.permutation(CLASSES)
    place = np.argsort(classes)  # class c becomes place[c]
    renamed = np.where(FEDERATION.kept, place[FEDERATION.labels], -1).astype(np.int32)
    other = fit(make(name), FEDERATION._replace(labels=renamed))
    assert_same_classifier(other, of_classes(head, classes), 1e-4)


def test_far_from_zero(name):
    """Predictions are those of float64 however far the features lie from zero, against their spread.

    Heads about an origin cannot be: `diagnose` says so (tests/engine/test_diagnosis.py).
    """
    method, rng = make(name), np.random.default_rng(0)
    for offset in (10.0, 1e3, 1e4):
        federation = federations.make(0, offset=offset)
        federation = federation.with_features(federation.features.astype(np.float32))
        some = rng.integers(0, len(federation.clean.labels), 2000)
        tests = federation.clean.features[some] + rng.normal(size=(2000, DIM)).astype(np.float32)
        scores = np.asarray(fit(method, federation)(tests))
        assert np.isfinite(np.delete(scores, ABSENT, axis=1)).all()
        if name in ABOUT_ORIGIN and offset > 100:
            continue
        if name in SAMPLED:
            # No formula: what it makes of the same features near zero.
            moved = federation.with_features(federation.features - np.float32(offset))
            expected = np.asarray(fit(method, moved)(tests - np.float32(offset)))
        else:
            exact = expected_head(name, method, federation)
            doubled = tests.astype(np.float64)
            expected = exact(doubled) if callable(exact) else doubled @ exact[0] + exact[1]
        agreement = (scores.argmax(-1) == expected.argmax(-1)).mean()
        assert agreement >= 0.995, (offset, agreement)


def test_no_data_types_are_mixed(name):
    """Strict promotion allows all of it, from examples and from messages. Tracing tells."""
    method = default(name)
    clean = FEDERATION.clean
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(
            lambda x, y, k: covfree.fit(method, x, y, k, num_classes=CLASSES, key=KEY)(x),
            *map(FLOAT32.array, FEDERATION),
        )
        sent = {}
        for client in (0, 1):
            own = clean.clients == client
            features, labels = clean.features[own].astype(np.float32), clean.labels[own]
            sent[client] = covfree.client_message(method, features, labels, num_classes=CLASSES, key=KEY)
        message = covfree.collect(sent, num_classes=CLASSES).message
        jax.eval_shape(
            lambda sent: covfree.solve_message(method, sent, num_classes=CLASSES)(clean.features), message
        )


def test_half_precision_features_are_computed_in_float32(name):
    features = jnp.asarray(FEDERATION.features, jnp.bfloat16)
    head = covfree.fit(
        make(name), features, FEDERATION.labels, FEDERATION.clients, num_classes=CLASSES, key=KEY
    )
    rounded = FEDERATION.with_features(np.asarray(features.astype(jnp.float32)))
    assert_same_classifier(head, fit(make(name), rounded), tolerance(name, 1e-5))
    assert head(features[:3]).dtype == jnp.float32


def test_other_numbers_compile_nothing_anew(name, head, caplog):
    numbers = {"seed": 5, "l2": 0.1} if name in SAMPLED else {"shrinkage": 0.9, "ridge": 3.0}
    with jax.log_compiles():
        caplog.clear()
        fit(make(name), FEDERATION.with_features(2 * FEDERATION.features + 1))
        fit(make(name, **numbers), FEDERATION)
        compiled = [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()]
    assert compiled == []


def test_totals_of_clients_add_up(name, head):
    """Phases are additive: totals summed over two groups of clients solve to the same head.

    They run eagerly here, operation by operation.
    """
    method = make(name)
    rows = covfree.summarise(method, *map(FLOAT32.array, FEDERATION), key=KEY)
    first = jnp.asarray(rows.client) < CLIENTS // 2
    halves = [only(rows, part) for part in (first, ~first)]
    totals = ()
    for phase in method.phases:
        terms = [phase(method.params, totals, part, CLASSES) for part in halves]
        totals += (add(*terms),)
    if name == "fedpft":
        return  # the draws go by the order of the rows, which is another
    assert_same_classifier(covfree.solve_totals(method, *totals), head, tolerance(name))


def add(first, second):
    """Add a phase's terms: factors as matrices, tables one below the other, all else as it is."""
    special = (covfree.methods.Factor, covfree.methods.Kept)

    def one(a, b):
        if isinstance(a, covfree.methods.Kept):
            return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a.rows, b.rows)
        if isinstance(a, covfree.methods.Factor):
            return covfree.linalg.Scatter.from_matrix(a.value.T @ a.value + b.value.T @ b.value)
        return a + b

    return jax.tree.map(one, first, second, is_leaf=lambda node: isinstance(node, special))


def test_numbers_and_means_can_be_swept_and_differentiated(name):
    if name in SAMPLED:
        pytest.skip(f"{name}: training ends where it has converged, a loop without a reverse derivative")
    method = make(name)
    leaves, structure = jax.tree.flatten(method.params)
    weights = np.linspace(1, 0.5, len(leaves))  # all numbers move together, at different speeds
    with x64():
        rows = covfree.summarise(method, *map(jnp.asarray, FEDERATION), key=KEY)
        probes = jnp.asarray(np.nan_to_num(FEDERATION.features[:10]))

        def loss(step, mean):
            numbers = [x + step * w for x, w in zip(leaves, weights, strict=True)]
            moved = replace(method, params=jax.tree.unflatten(structure, numbers))
            head = covfree.solve_rows(moved, replace(rows, mean=mean), num_classes=CLASSES)
            scores = head(probes)
            return jnp.sin(jnp.where(jnp.isfinite(scores), scores, 0)).sum()

        small = 1e-5
        steps = jnp.array([-small, 0.0, small, 0.5])
        swept = jax.jit(jax.vmap(jax.value_and_grad(loss, (0, 1)), in_axes=(0, None)))
        values, (slopes, gradients) = swept(steps, rows.mean)
        np.testing.assert_allclose(slopes[1], (values[2] - values[0]) / (2 * small), rtol=1e-5, atol=1e-6)
        assert np.isfinite(slopes).all()
        assert np.isfinite(gradients).all()
        # Padding, absent classes and classes with one row must give no NaN by the back door.
        valid = (rows.label >= 0) if rows.sketch is None else (rows.label >= 0) | rows.sketch
        np.testing.assert_array_equal(gradients[:, ~(valid & (rows.count > 0))], 0)
        assert np.abs(gradients).max() > 0
        # One after the other they are the same.
        np.testing.assert_allclose(loss(0.5, rows.mean), values[3], rtol=1e-7)
        if leaves:
            assert values[3] != values[1] or name == "fedcgs"


def test_fit_under_jit(name, head):
    # Sizes are then bounds that any federation keeps within. Rules of shrinkage make no difference to that: a
    # method whose default is another than the tests' would be compiled for this alone.
    if jax.tree.structure(default(name)) != jax.tree.structure(make(name)) and name not in DRAWN:
        pytest.skip(f"{name}: summarises as others do")
    assert_same_classifier(compiled_fit(make(name), *map(FLOAT32.array, FEDERATION)), head, tolerance(name))


@pytest.mark.parametrize(
    "case", ["equal", "one example each", "one client", "one class", "one feature", "one example", "nothing"]
)
def test_degenerate_federations_give_finite_heads(name, case):
    features, labels, clients = (np.array(x) for x in federations.make(0, num_padding=0))
    if case == "equal":
        features[:] = 1
    elif case == "one example each":
        clients = np.arange(EXAMPLES, dtype=np.int32)
    elif case == "one client":
        clients[:] = 0
    elif case == "one class":
        labels[:] = 2
    elif case == "one feature":
        features[:, 1:] = 3  # the others never vary
    elif case == "one example":
        labels[1:] = -1
    elif case == "nothing":
        labels[:] = -1
    held = np.bincount(labels[labels >= 0], minlength=CLASSES) > 0
    head = compiled_fit(default(name), *map(FLOAT32.array, (features, labels, clients)))
    scores = np.asarray(head(FLOAT32.array(features)))
    np.testing.assert_array_equal(np.isfinite(scores), np.broadcast_to(held, scores.shape))
    assert not np.isnan(scores).any()


def test_learns_at_any_scale(name):
    # Well separated classes are told apart with the defaults: nothing to tune.
    rng = np.random.default_rng(5)
    labels, clients = rng.integers(0, 4, EXAMPLES), rng.integers(0, CLIENTS, EXAMPLES)
    features = 4 * np.eye(DIM)[labels] + rng.normal(size=(EXAMPLES, DIM)) * 0.5
    predictions = []
    for scale in (1.0, 2.0**-12, 2.0**12):
        scaled = FLOAT32.array(scale * features)
        head = compiled_fit(default(name), scaled, FLOAT32.array(labels), FLOAT32.array(clients))
        predictions.append(np.asarray(head(scaled)).argmax(-1))
    assert (predictions[0] == labels).mean() > 0.95
    # Neither do the defaults depend on the features' unit, unless a number of the paper does.
    if name not in OF_A_UNIT:
        np.testing.assert_array_equal(predictions[1], predictions[0])
        np.testing.assert_array_equal(predictions[2], predictions[0])


def test_more_dimensions_than_rows(name):
    # The dual route, with two classes that nobody holds beyond those that there are.
    rng = np.random.default_rng(4)
    labels, clients = rng.integers(0, 3, 24), rng.integers(0, 4, 24)
    features = (rng.normal(size=(24, 60)) + labels[:, None] * rng.normal(size=60)).astype(np.float32)
    federation = Federation(features, labels, clients)
    method = make(name)
    head = covfree.fit(method, *federation, num_classes=5, key=KEY)
    assert (np.asarray(head(features)).argmax(-1) == labels).mean() > 0.85
    if name not in SAMPLED:
        assert_same_classifier(head, expected_head(name, method, federation, 5), 1e-3, dim=60)
