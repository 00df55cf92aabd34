"""A model of each client's own, against plain loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
import covfree.finetune as ft
from covfree.rounds import Placement, run

KEY = jax.random.key(0)
SIZES = [3, 9, 6, 5]
CLIENTS = np.repeat(np.arange(4), SIZES)
RNG = np.random.default_rng(0)
# Client 0 has class 0 alone, client 3 lacks it; nobody has class 3.
LABELS = np.where(CLIENTS == 0, 0, RNG.integers(np.where(CLIENTS == 3, 1, 0), 3))
FEATURES = (RNG.normal(size=(23, 4)) + LABELS[:, None]).astype(np.float32)
HEAD = covfree.LinearHead(
    jnp.asarray(RNG.normal(size=(4, 4)) / 4, jnp.float32), jnp.asarray([0.1, 0.0, -0.1, 0.2], jnp.float32)
)
ADAPTED = ft.adapter_model(HEAD, rank=3, key=KEY)
MEANS = np.stack([FEATURES[c == LABELS].mean(0) if c < 3 else np.zeros(4) for c in range(4)]).astype(float)
COUNTS = np.bincount(LABELS, minlength=4)
RATE, STEPS = 0.1, 3
WHOLE = {"client": RATE, "steps": STEPS, "batch_size": 9}


def ran(algorithm, rounds=1, **options):
    return run(algorithm, FEATURES, LABELS, CLIENTS, key=KEY, rounds=rounds, **options)


def of(k):
    return FEATURES[k == CLIENTS].astype(float), LABELS[k == CLIENTS]


def softmax_slope(scores, labels):
    """Of the mean cross-entropy by the scores; a score of −∞ takes no part."""
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return p / len(labels)


def linear_loop(x, y, only=None):
    """Gradient descent of the head alone."""
    weight, bias = np.asarray(HEAD.weight, float), np.asarray(HEAD.bias, float)
    for _ in range(STEPS):
        scores = x @ weight + bias
        if only is not None:
            scores[:, ~only] = -np.inf
        slope = softmax_slope(scores, y)
        weight, bias = weight - RATE * x.T @ slope, bias - RATE * slope.sum(0)
    return weight, bias


def adapted_loop(x, y, parameters, means, weight_of):
    """Gradient descent of adapter and head with Σ weight ‖f − μ_y‖² besides, all slopes by hand."""
    down, up, weight, bias = parameters
    for _ in range(STEPS):
        hidden = x @ down
        features = x + np.maximum(hidden, 0) @ up
        slope = softmax_slope(features @ weight + bias, y)
        inner = slope @ weight.T + 2 * weight_of[:, None] * (features - means[y])
        behind = (inner @ up.T) * (hidden > 0)
        weight, bias = weight - RATE * features.T @ slope, bias - RATE * slope.sum(0)
        up, down = up - RATE * np.maximum(hidden, 0).T @ inner, down - RATE * x.T @ behind
    return down, up, weight, bias


def first():
    """The adapted model's parameters, in float64."""
    adapter, head = ADAPTED.trained
    return [np.asarray(part, float) for part in (*jax.tree.leaves(adapter), head.weight, head.bias)]


def same(model, parameters):
    adapter, head = model.trained
    for found, expected in zip((*jax.tree.leaves(adapter), head.weight, head.bias), parameters, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_local_training_is_a_loop_for_each_client():
    done = ran(ft.local_only(ft.linear_model(HEAD), **WHOLE))
    for k in range(4):
        weight, bias = linear_loop(*of(k))
        head = done.result.result(k)
        np.testing.assert_allclose(head.weight, weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(head.bias, bias, rtol=1e-5, atol=1e-6)
    assert done.history[0]["bytes_up"] == done.history[0]["bytes_down"] == 0


def test_clients_that_are_not_drawn_keep_their_models_and_their_place_in_the_schedule():
    def schedule(number):
        return jnp.where(number == 0, 1.0, 0.0)

    algorithm = ft.local_only(ft.linear_model(HEAD), **WHOLE, schedule=schedule)
    drawn = np.array([[0, 1], [0, 2]])
    done = ran(algorithm, 2, participation=drawn)
    for k in range(3):
        # Whoever came twice has not moved the second time; whoever came late has its first round then.
        np.testing.assert_allclose(done.result.result(k).weight, linear_loop(*of(k))[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(done.result.result(3).weight, HEAD.weight)
    assert done.memory.round.tolist() == [2, 1, 1, 0]


def test_fedavg_then_local_training():
    average = ran(ft.fedavg(ft.linear_model(HEAD), **WHOLE), 2)
    tuned = ft.local_only(ft.linear_model(average.result), 0.0, epochs=1)
    done = ran(tuned)
    np.testing.assert_array_equal(done.result.result(2).weight, average.result.weight)


def test_an_adapter_predicts_what_the_head_does_and_goes_on_where_it_was():
    np.testing.assert_array_equal(ADAPTED(FEATURES), HEAD(FEATURES))
    done = ran(ft.fedavg(ADAPTED, **WHOLE))
    assert np.abs(np.asarray(done.result(FEATURES)) - HEAD(FEATURES)).max() > 1e-3
    np.testing.assert_array_equal(ft.adapter_model(done.result)(FEATURES), done.result(FEATURES))


def test_fedcgs_is_equation_12_with_the_count_inside():
    strength = 0.05
    prototypes = ft.Prototypes(MEANS.astype(np.float32), COUNTS)
    algorithm = ft.fedcgs_personal(ADAPTED, prototypes, strength, **WHOLE)
    done = ran(algorithm, place=Placement(width=2))
    for k in range(4):
        x, y = of(k)
        # λ Σ_j (1/N_ij) Σ_{y = j}: each example of class j counts 1/N_ij.
        share = strength / np.bincount(y, minlength=4)[y]
        same(done.result.of(k), adapted_loop(x, y, first(), MEANS, share))
    assert done.history[0]["bytes_down"] == 4 * (4 * 4 * 4 + 4 * 4)


def test_fedproto_averages_class_means_over_their_holders():
    strength = 0.05
    algorithm = ft.fedproto(ADAPTED, 4, 4, strength, **WHOLE)
    done = ran(algorithm, 2, participation=np.array([[0, 1, 2, 3], [0, 1, 3, -1]]))
    models = [first()] * 4
    prototypes, known = np.zeros((4, 4)), np.zeros(4, bool)
    for who in ([0, 1, 2, 3], [0, 1, 3]):
        found = {c: [] for c in range(4)}
        for k in who:
            x, y = of(k)
            models[k] = adapted_loop(x, y, models[k], prototypes, strength * known[y] / len(y))
            features = x + np.maximum(x @ models[k][0], 0) @ models[k][1]
            for c in np.unique(y):
                found[c].append(features[y == c].mean(0))
        for c, means in found.items():
            if means:
                prototypes[c], known[c] = np.mean(means, 0), True
    for k in range(4):
        same(done.result.of(k), models[k])
    np.testing.assert_allclose(done.state.mean, prototypes, rtol=2e-5, atol=2e-6)
    assert (np.asarray(done.state.counts) > 0).tolist() == known.tolist()


def test_oll_trains_over_own_classes():
    done = ran(ft.oll(ft.linear_model(HEAD), **WHOLE))
    own = ft.client_classes(LABELS, CLIENTS, num_classes=4)
    assert own.sum(1).tolist() == [len(np.unique(LABELS[k == CLIENTS])) for k in range(4)]
    ends = [linear_loop(*of(k), own[k])[0] for k in range(4)]
    weight = sum(n * end for n, end in zip(SIZES, ends, strict=True)) / sum(SIZES)
    np.testing.assert_allclose(done.result.weight, weight, rtol=1e-5, atol=1e-6)
    # A client of one class has nothing to learn, and nobody touches what nobody has.
    np.testing.assert_allclose(ends[0], HEAD.weight, rtol=1e-6)
    np.testing.assert_array_equal(done.result.weight[:, 3], HEAD.weight[:, 3])


def test_accuracy_of_each_client():
    models = ran(ft.local_only(ft.linear_model(HEAD), **WHOLE))
    order = np.random.default_rng(1).permutation(23)
    labels = np.where(order == 5, -1, LABELS[order])
    clients = np.where(order == 6, -1, CLIENTS[order])
    own = ft.client_classes(LABELS, CLIENTS, num_classes=4)
    kept = ~np.isin(np.arange(23), [5, 6])
    for what, known in ((HEAD, None), (models.result, None), (HEAD, own), (models.result, own)):
        found = ft.client_accuracy(what, FEATURES[order], labels, clients, own_classes=known, batch_size=4)
        for k in range(4):
            x, y = FEATURES[(k == CLIENTS) & kept], LABELS[(k == CLIENTS) & kept]
            scores = np.array((what if what is HEAD else what.result(k))(x))
            if known is not None:
                scores[:, ~known[k]] = -np.inf
            assert found[k] == (scores.argmax(1) == y).mean()
    alone = ft.client_accuracy(models.result, FEATURES[:3], LABELS[:3], CLIENTS[:3])
    assert alone.shape == (4,)
    assert np.isnan(alone[1:]).all()
    nobody = ft.client_accuracy(HEAD, FEATURES, 0 * LABELS, CLIENTS, own_classes=np.zeros((4, 4), bool))
    np.testing.assert_array_equal(nobody, 0)  # who knows of no class is wrong, also about class 0


def test_metrics_of_each_client():
    algorithm = ft.local_only(ft.linear_model(HEAD), 0.1, batch_size=4)
    how = {"participation": np.array([[3, 1, -1]]), "each_client": True}
    done = ran(algorithm, **how)
    each = done.history[0]["each_client"]
    assert each["client"] == [1, 3]
    assert each["examples"] == [9, 5]
    assert each["steps"] == [3, 2]
    assert done.history[0]["loss"] == pytest.approx(np.average(each["loss"], weights=[9, 5]))
    # A client without examples has no loss, which is not one of 0; the mean is over the others.
    without = np.where(CLIENTS == 1, -1, CLIENTS)
    done = run(algorithm, FEATURES, LABELS, without, key=KEY, rounds=1, **how)
    empty = done.history[0]["each_client"]
    assert (empty["examples"], empty["steps"]) == ([0, 5], [0, 2])
    np.testing.assert_array_equal(empty["loss"], [np.nan, each["loss"][1]])
    assert done.history[0]["loss"] == each["loss"][1]


def test_a_model_of_a_client_that_diverges_ends_the_run():
    algorithm = ft.local_only(ft.linear_model(HEAD), 1e38, steps=9)
    with pytest.warns(RuntimeWarning, match="what client 0 remembers is not finite"):
        done = run(algorithm, 1e6 * FEATURES, LABELS, CLIENTS, key=KEY, rounds=2)
    assert "round 0" in done.stopped
    np.testing.assert_array_equal(done.result.result(1).weight, HEAD.weight)


def test_what_does_not_fit_is_refused(untyped):
    model = ft.linear_model(HEAD)
    with pytest.raises(TypeError, match=r"model: expected a covfree\.finetune\.Model, got LinearHead"):
        ft.local_only(HEAD)
    with pytest.raises(ValueError, match="strength"):
        ft.fedcgs_personal(ADAPTED, ft.Prototypes(MEANS, COUNTS), -1.0)
    with pytest.raises(ValueError, match=r"model: expected one whose features are trained, .* linear_model"):
        ft.fedproto(model, 4, 4)
    with pytest.raises(TypeError, match=r"prototypes: expected covfree\.finetune\.Prototypes.*got ndarray"):
        ft.fedcgs_personal(ADAPTED, MEANS)
    with pytest.raises(ValueError, match="client: expected a number from 0 to 3, got 4"):
        ran(ft.local_only(model)).result.of(4)
    few = ft.Prototypes(MEANS[:3], COUNTS[:3])
    for make in (lambda: ft.fedcgs_personal(ADAPTED, few), lambda: ft.fedproto(ADAPTED, 3, 4)):
        with pytest.raises(ValueError, match=r"prototypes: expected 4, one for each .* got 3"):
            make()
    narrow = ft.fedcgs_personal(ADAPTED, ft.Prototypes(MEANS[:, :1], COUNTS))
    with pytest.raises(ValueError, match=r"prototypes: expected 4 numbers each, .* got 1"):
        ran(narrow)
    with pytest.raises(TypeError, match="head: expected a linear head"):
        ft.adapter_model(3.0)
    with pytest.raises(TypeError, match="key: expected a PRNG key"):
        ft.adapter_model(HEAD)
    with pytest.raises(ValueError, match="clients: expected numbers below 1, as own_classes has them; got 3"):
        ft.client_accuracy(HEAD, FEATURES, LABELS, CLIENTS, own_classes=np.ones((1, 4), bool))
    with pytest.raises(ValueError, match="labels: expected"):
        ft.client_accuracy(HEAD, FEATURES, LABELS[:3], CLIENTS)
