"""Heads corrected by softmax regression: the optimum, the steps, all sources, and what is refused."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from precision import x64
from sklearn.linear_model import LogisticRegression
from variants import slow

import covfree
from covfree import rounds as federated
from covfree.core import padding
from covfree.core.linalg import Scatter, factorise
from covfree.engine.examples import over_examples
from covfree.engine.parts import padded_rows
from covfree.engine.totals import How, through
from covfree.methods.refine.correction import CorrectedNumbers, Plan, begin, finish, rank, take
from covfree.methods.refine.descent import begin_descent, descend, last_point
from covfree.statistics.softmax import SoftmaxSums, softmax_sums

CLASSES, DIM, CLIENTS = 4, 6, 7
KEY = jax.random.key(0)
PENALTY = 0.02


def federation(size=300, seed=0):
    """Classes that overlap and differ in their covariance; class 3 is at one client."""
    rng = np.random.default_rng(seed)
    labels, clients = rng.integers(0, CLASSES, size), rng.integers(0, CLIENTS, size)
    clients[labels == 3] = 0
    root = rng.normal(size=(DIM, DIM)) * np.logspace(0, -1, DIM)
    features = rng.normal(size=(size, DIM)) @ root * (1 + labels[:, None])
    return features + 2 * rng.normal(size=(CLASSES, DIM))[labels], labels, clients


DATA = federation()


def fit(method, data=DATA, num_classes=CLASSES):
    return covfree.fit(method, data[0].astype(np.float32), *data[1:], num_classes=num_classes)


def no_head(covariance, moments):
    """Scores of 0, so that what is learned has no offset."""
    weight = jnp.zeros_like(moments.total).T
    return covfree.LinearHead(weight, jnp.zeros_like(weight[0]), moments.present.astype(weight.dtype))


def state_of(method, data=DATA):
    """The server's state after the method's own rounds and after each later one; compiled once for all."""
    features, labels, clients = jnp.asarray(data[0]), jnp.asarray(data[1]), jnp.asarray(data[2])
    first = method.rounds_over_rows
    rows = covfree.summarise(method, features, labels, clients)
    # One size for all choices of clients and classes.
    rows = padded_rows(jax.tree.map(np.asarray, rows), max(len(rows.count), 32))
    state = covfree.accumulate(replace(method, rounds=method.rounds[:first]), rows, num_classes=CLASSES)
    source = over_examples(method, features, labels, clients, How(CLASSES, False))
    states = [state]
    for each in method.rounds[first:]:
        state = through((each,), method.params, source, state)
        states.append(state)
    return states


def covariance_of(gamma, data=DATA):
    """FedCOF's covariance, with γ, and the mean of all examples."""
    method = covfree.fedcof(gamma)
    rows = covfree.summarise(method, jnp.asarray(data[0], float), *data[1:])
    totals = covfree.accumulate(method, rows, num_classes=CLASSES)
    return np.asarray(method.system(method.params, *totals).dense(), float), data[0].mean(0)


def centred(scores):
    return np.asarray(scores, float) - np.asarray(scores, float).mean(1, keepdims=True)


def optimum(features, labels, covariance, mean, offset):
    """The minimum of the objective by SciPy, in float64, as scores of the same examples."""
    white = np.linalg.solve(np.linalg.cholesky(covariance), (features - mean).T).T
    one_hot = np.eye(CLASSES)[labels]

    def objective(flat):
        weight, bias = flat[:-CLASSES].reshape(DIM, CLASSES), flat[-CLASSES:]
        scores = offset + white @ weight + bias
        residual = (scipy.special.softmax(scores, 1) - one_hot) / len(labels)
        loss = (scipy.special.logsumexp(scores, 1) - (scores * one_hot).sum(1)).mean()
        slope = np.concatenate([(white.T @ residual + PENALTY * weight).ravel(), residual.sum(0)])
        return loss + PENALTY / 2 * (weight**2).sum(), slope

    start = np.zeros(CLASSES * (DIM + 1))
    found = scipy.optimize.minimize(objective, start, jac=True, options={"gtol": 1e-9}).x
    return offset + white @ found[:-CLASSES].reshape(DIM, CLASSES) + found[-CLASSES:], objective(found)[0]


@pytest.mark.slow
def test_without_an_offset_it_is_logistic_regression_on_whitened_features():
    features, labels, _ = DATA
    method = covfree.corrected(covfree.fedcof(0.3, head=no_head), 80, penalty=PENALTY)
    with x64():
        covariance, mean = covariance_of(0.3)
        states = state_of(method)
        scores = covfree.solve_totals(method, *states[-1])(jnp.asarray(features))
    white = np.linalg.solve(np.linalg.cholesky(covariance), (features - mean).T).T
    peer = LogisticRegression(C=1 / (PENALTY * len(labels)), solver="newton-cg", tol=1e-9, max_iter=1000)
    expected = peer.fit(white, labels)
    np.testing.assert_allclose(centred(scores), centred(expected.decision_function(white)), atol=1e-5)
    losses = [float(state[0].descent.value) for state in states[1:]]
    assert np.all(np.diff(losses) <= 1e-12)


@pytest.mark.parametrize("head", ["lda", *slow("student")])
def test_with_an_offset_it_is_the_minimum_of_the_objective(head):
    features, labels, _ = DATA
    method = covfree.corrected(covfree.fedcof(0.3, head=head), 40, penalty=PENALTY)
    states = state_of(method, (features.astype(np.float32), *DATA[1:]))
    known = states[-1][0]
    start = covfree.fit(covfree.fedcof(0.3, head=head), features.astype(np.float32), *DATA[1:])
    scale = float(known.scale)
    scores, value = optimum(
        features, labels, *covariance_of(0.3), scale * centred(start(features.astype(np.float32)))
    )
    found = covfree.solve_totals(method, *states[-1])
    np.testing.assert_allclose(centred(found(features.astype(np.float32))), centred(scores), atol=2e-2)
    np.testing.assert_allclose(float(known.descent.value), value, rtol=1e-5)
    # The temperature is nearly that of the training examples.
    best = covfree.calibrate_temperature(start, jnp.asarray(features, jnp.float32), jnp.asarray(labels))
    np.testing.assert_allclose(scale, 1 / float(best), rtol=0.1)
    assert isinstance(found, covfree.CorrectedHead if head == "student" else covfree.LinearHead)


def test_steps_that_fail_are_taken_back_and_losses_never_rise():
    """A quadratic whose curvature is 30 times that of the metric; a client may answer with anything."""
    curvature = jnp.diag(jnp.array([30.0, 3.0, 0.3]))
    target = jnp.array([[1.0], [-2.0], [3.0], [0.5]])
    metric = factorise(jnp.eye(3))

    def evaluate(point):
        slope = jnp.concatenate([curvature @ (point - target)[:-1], 2 * (point - target)[-1:]])
        return 0.5 * jnp.sum(slope * (point - target)), slope

    def run(spoilt):
        descent, values, failed = begin_descent(jnp.zeros((4, 1)), 5), [], 0
        step = jax.jit(descend)
        for index in range(18):
            value, slope = evaluate(descent.trial)
            if index in spoilt:
                value, slope = spoilt[index][0] + value, spoilt[index][1] + slope
            before = descent.point
            descent = step(descent, value, slope, metric)
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(descent))
            failed += bool((descent.point == before).all())
            values += [float(descent.value)] if descent.begun else []
        assert np.all(np.diff(values) <= 0)
        return descent, failed

    descent, failed = run({})
    np.testing.assert_allclose(descent.point, target, atol=1e-3)
    assert 1 < failed < 8
    # Numbers whose sums are finite, but not what the server makes of them; at the start, and later.
    for first, later in ((0, 4), (3, 6)):
        spoilt = {first: (0.0, 1e38), later: (1e38, 0.0), later + 1: (np.nan, np.inf)}
        np.testing.assert_allclose(run(spoilt)[0].point, target, atol=0.1)


def test_steps_that_overshoot_are_in_no_head():
    """Two clients show five directions of six, so that the first steps are far too long."""
    features, labels, _ = DATA
    data = features.astype(np.float32), labels, np.arange(len(labels)) % 2
    method = covfree.corrected(covfree.fedcof(1e-3), 6, penalty=1e-6)
    states = state_of(method, data)

    def loss(state):
        scores = np.asarray(covfree.solve_totals(method, *state)(data[0]), float)
        return (scipy.special.logsumexp(scores, 1) - scores[np.arange(len(labels)), labels]).mean()

    losses = [loss(state) for state in states[1:]]
    assert np.all(np.diff(losses) <= 1e-5)
    assert losses[1] == losses[0] > losses[-1] + 0.05
    # Both of the first two steps would have raised it.
    for (known,) in states[2:4]:
        tried = known._replace(descent=known.descent._replace(point=known.descent.trial))
        assert loss((tried,)) > losses[0] + 0.1
        np.testing.assert_array_equal(last_point(known.descent), known.descent.point)
    np.testing.assert_array_equal(last_point(states[4][0].descent), states[4][0].descent.trial)


METHODS = {
    "nearest mean": covfree.fedncm(),
    "refined": covfree.refined(covfree.fedcof(0.3, head="ridge"), 1),
    "Gram": covfree.fed3r(0.5),
    "solutions": covfree.afl(),
    "Student": covfree.fedcof(0.3, head="student"),
    "quadratic": covfree.qda(0.3, covariance="means"),
    "mapped": covfree.fedcof(0.3).with_feature_map(covfree.relu_features(20)),
}


# Operations of the scores of an example; a Student head has a part for each of its rows.
SCORED = {
    "nearest mean": 2 * CLASSES * DIM,
    "Student": 2 * DIM * (DIM + CLASSES + len({*zip(*DATA[1:], strict=True)})),
    "quadratic": 2 * CLASSES * DIM * (DIM + 1),
}


FIRST = ["Student"]


@pytest.mark.parametrize("name", [*FIRST, *slow(*(name for name in METHODS if name not in FIRST))])
def test_any_method(name):
    method = covfree.corrected(METHODS[name], 2)
    features, labels, clients = DATA[0].astype(np.float32), *DATA[1:]
    states = state_of(method, (features, labels, clients))[-4:]
    start, head = (covfree.solve_totals(method, *states[place]) for place in (0, -1))
    before, accuracy = (float(covfree.evaluate(each, features, labels)) for each in (start, head))
    assert accuracy > before - 0.02
    losses = [float(state[0].descent.value) for state in states]
    # Of knowing nothing, of the start at two temperatures, of the first step.
    assert losses[0] > max(losses[1:3])
    assert losses[2] > losses[3]
    sent = covfree.sent_bytes(method, labels, clients, dim=DIM).total
    own = covfree.sent_bytes(METHODS[name], labels, clients, dim=DIM).total
    dim = 20 if name == "mapped" else DIM
    linear = CLASSES * (dim + 1)
    assert sent - own == 4 * CLIENTS * (18 + 2 * (linear + 2))
    if name in SCORED:
        # A head that is not linear comes in all three rounds, its temperature too; the linear term in two.
        own = sum(leaf.size for leaf in jax.tree.leaves(states[0][0].start)) + 1
        alone = isinstance(start, covfree.LinearHead)
        down = covfree.received_bytes(method, labels, clients, dim=DIM)
        expected = 4 * CLIENTS * (3 * DIM + 1 + (3 * linear if alone else 3 * own + 2 * linear))
        assert down == expected or name == "Student"  # of which `state_of` pads the rows
        # Scores of each round, and the product of each gradient.
        flops = covfree.client_flops(method, labels, clients, dim=DIM)
        flops -= covfree.client_flops(METHODS[name], labels, clients, dim=DIM)
        assert flops == len(labels) * (3 * SCORED[name] + (2 if alone else 4) * 2 * CLASSES * DIM)
    if name == "mapped":  # of the others test_sums_parts_and_meshes
        expected = centred(head(features))
        np.testing.assert_allclose(
            centred(fit(method)(features)), expected, atol=2e-2 * np.abs(expected).max()
        )


@pytest.mark.slow
def test_sums_parts_and_meshes(monkeypatch):
    method = covfree.corrected(covfree.fedcof(0.3), 2)
    features, labels, clients = DATA[0].astype(np.float32), *DATA[1:]
    expected = fit(method)
    sums = federated.as_algorithm(method, num_classes=CLASSES, uploads="sums")
    done = federated.run(sums, features, labels, clients, key=KEY)
    chex.assert_trees_all_close(done.result, expected, rtol=1e-3, atol=1e-3)
    # Of the start at the best temperature that was tried, and at the one between them; of the first step.
    told = [record["loss"] for record in done.history if "loss" in record]
    assert told[-2] == pytest.approx(told[-3], rel=0.1)
    assert told[-1] < told[-2]
    monkeypatch.setattr(padding, "LARGE", 0)
    monkeypatch.setattr(padding, "_PART", 70 * DIM * 4)
    chex.assert_trees_all_close(fit(method), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_padding_counts_and_those_who_stay_away():
    method = covfree.corrected(covfree.fedcof(0.3), 2)
    expected = fit(method)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(DATA[1]) + 50)
    padded = [
        np.concatenate([x, np.full((50, *x.shape[1:]), fill)])[order]
        for x, fill in zip(DATA, (np.nan, -1, 3), strict=True)
    ]
    chex.assert_trees_all_close(fit(method, padded), expected, rtol=1e-3, atol=1e-3)
    # An example that counts twice is two examples.
    x, y = jnp.asarray(DATA[0], jnp.float32), jnp.asarray(DATA[1])
    twice = softmax_sums(lambda x, z: expected(z), x, y, 2 * jnp.ones_like(y), jnp.zeros(DIM), CLASSES)
    doubled = [jnp.concatenate([a, a]) for a in (x, y, jnp.ones_like(y))]
    both = softmax_sums(lambda x, z: expected(z), doubled[0], doubled[1], doubled[2], jnp.zeros(DIM), CLASSES)
    chex.assert_trees_all_close(twice, both, rtol=1e-4, atol=1e-3)
    # A round to which nobody comes changes nothing.
    algorithm = federated.as_algorithm(method, num_classes=CLASSES)
    everyone = np.arange(CLIENTS)
    absent = np.full(CLIENTS, -1)
    drawn = np.stack([everyone, *[absent] * 3])
    none = federated.run(algorithm, x, *DATA[1:], key=KEY, participation=drawn).result
    chex.assert_trees_all_close(none, fit(covfree.fedcof(0.3)), rtol=1e-4, atol=1e-4)
    # Of some of the clients, means over their examples are means all the same.
    drawn = np.stack([everyone, np.where(everyone < 3, everyone, -1), *[absent] * 2])
    history = federated.run(algorithm, x, *DATA[1:], key=KEY, participation=drawn).history
    here = DATA[2] < 3
    scores = centred(fit(covfree.fedcof(0.3))(x))[here]
    gaps = scores - scores[np.arange(len(scores)), DATA[1][here]][:, None]
    least = min(scipy.special.logsumexp(scale * gaps, 1).mean() for scale in np.logspace(-2, 2, 200))
    assert history[1]["loss"] == pytest.approx(least, rel=0.1)
    assert history[1]["rank"] == DIM


FIRST = np.where(np.arange(len(DATA[1])) < CLASSES, np.arange(len(DATA[1])), -1)
DEGENERATE = {
    "singles": (DATA[0], FIRST, FIRST),
    "one client": (DATA[0], DATA[1], np.zeros_like(DATA[2])),
    "absent": (DATA[0], np.where(DATA[1] < 2, DATA[1], -1), DATA[2]),
    "one class": (DATA[0], np.zeros_like(DATA[1]), DATA[2]),
    "constant": (np.zeros_like(DATA[0]), DATA[1], DATA[2]),
    "separable": (DATA[0] + 100 * np.eye(CLASSES, DIM)[DATA[1]], DATA[1], DATA[2]),
    "tiny": (1e-12 * DATA[0], DATA[1], DATA[2]),
    "huge": (1e12 * DATA[0], DATA[1], DATA[2]),
    "far": (DATA[0] + 2**13, DATA[1], DATA[2]),
}


@pytest.mark.parametrize(
    ("name", "head"),
    [(name, "lda") for name in DEGENERATE] + [(name, "student") for name in ("singles", "separable")],
)
def test_degenerate_federations_have_a_head(name, head):
    data = DEGENERATE[name]
    start, rounds = (covfree.fedcof(), 3) if head == "lda" else (METHODS["Student"], 2)
    method = covfree.corrected(start, rounds)
    features = data[0].astype(np.float32)
    states = state_of(method, (features, *data[1:]))
    start, corrected = (covfree.solve_totals(method, *states[place]) for place in (0, -1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(corrected))
    found = np.asarray(corrected(features).argmax(1))
    seen = np.unique(data[1][data[1] >= 0])
    assert set(np.unique(found)) <= set(seen)
    kept = data[1] >= 0
    before, after = ((x == data[1])[kept].mean() for x in (np.asarray(start(features).argmax(1)), found))
    assert after >= before - 0.01


def test_the_unit_of_features_does_not_matter():
    method = covfree.corrected(covfree.fedcof(covfree.relative(0.1)), 2)
    one = centred(fit(method)(DATA[0].astype(np.float32)))
    for scale in (1e-12, 1e-6, 1e6, 1e12):
        data = (DATA[0] * scale, *DATA[1:])
        np.testing.assert_allclose(centred(fit(method, data)(data[0].astype(np.float32))), one, atol=2e-3)


@pytest.mark.slow
def test_the_metric_far_from_zero_is_positive():
    # F Fᵀ − Nμμᵀ in float32, which rounds to 1 at a mean of 1,000.
    far = (DATA[0] + 1000).astype(np.float32), *DATA[1:]
    state = state_of(covfree.corrected(covfree.fed3r(), 2), far)[-1][0]
    found = np.linalg.eigvalsh(np.asarray(state.metric.scatter.dense(), float))
    size = np.linalg.norm(np.cov(DATA[0].T), 2)
    assert found[0] > 0
    assert found[-1] < 2 * size
    # After refinement the server still has the covariance, and needs no Gram matrix for it.
    far = (DATA[0] + 1e4 * DATA[0].std()).astype(np.float32), *DATA[1:]
    states = state_of(covfree.corrected(METHODS["refined"], 2), far)
    metric = states[-1][0].metric
    np.testing.assert_allclose(metric.scatter.dense(), covariance_of(0.3)[0], rtol=0.1, atol=0.1)
    # The β that was chosen has the loss that was promised, though scores are nearly all rounding.
    losses = [float(state[0].descent.value) for state in states[-3:]]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert losses[2] < losses[1] - 0.2


@pytest.mark.slow
def test_a_broken_metric_corrects_what_it_can():
    moments = covfree.Moments(jnp.full(CLASSES, 50), jnp.full(CLASSES, 5), jnp.eye(CLASSES, DIM))
    rng, some = np.random.default_rng(0), jnp.eye(DIM)
    slope = jnp.asarray(rng.normal(size=(DIM + 1, CLASSES)), jnp.float32)
    for matrix, directions in ((some.at[2, 2].set(-1), DIM - 1), (some.at[0, 1].set(jnp.nan), 0)):

        def covariance(numbers, moments, matrix=matrix):
            return Scatter.from_matrix(matrix)

        plan = Plan(None, lambda numbers, system, moments: no_head(None, moments), covariance, None, 2)
        state = begin(None, (moments,), plan=plan)
        assert int(rank(state[0].metric)) == directions
        for value in (1.0, 0.9):
            state = take(
                CorrectedNumbers(None, 0.1), state, SoftmaxSums(jnp.array(value), slope, jnp.array(1.0))
            )
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
        moved = np.abs(state[0].descent.trial).max(1) > 0
        expected = np.arange(DIM + 1) == DIM if directions == 0 else np.arange(DIM + 1) != 2
        np.testing.assert_array_equal(moved, expected)
        assert all(
            np.isfinite(leaf).all()
            for leaf in jax.tree.leaves(finish(CorrectedNumbers(None, 0.1), None, *state, plan=plan))
        )


@pytest.mark.slow
def test_the_penalty_is_swept_and_pulls_to_the_start():
    features = DATA[0].astype(np.float32)
    start = covfree.fedcof(0.3)

    def scores(penalty):
        return fit(covfree.corrected(start, 2, penalty=penalty))(features)

    swept = jax.vmap(scores)(jnp.array([0.003, 1e4]))
    np.testing.assert_allclose(swept[0], scores(0.003), atol=1e-3)
    own = centred(fit(start)(features))
    np.testing.assert_allclose(
        centred(swept[1]) / np.abs(centred(swept[1])).max(), own / np.abs(own).max(), atol=0.2
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: covfree.corrected(covfree.deepafl()), "knows a covariance .* got 'deepafl'"),
        (lambda: covfree.corrected(covfree.corrected(covfree.fedcof())), "got 'fedcof-corrected'"),
        (lambda: covfree.corrected(covfree.ensemble()), "got 'ensemble'"),
        (lambda: covfree.corrected(covfree.fedcof(), 1), "rounds: expected an integer of at least 2, got 1"),
        (lambda: covfree.corrected(covfree.fedcof(), penalty=0.0), "penalty: expected"),
    ],
)
def test_what_cannot_be_corrected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
