"""Federated optimisation against closed forms on quadratics, and against loops in NumPy."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from variants import slow

import covfree.finetune as ft
from covfree.finetune.local import as_optimiser
from covfree.finetune.model import Model
from covfree.finetune.optimisers import reach
from covfree.rounds import Evaluation, run

# f_i(x) = ½ h_i (x − b_i)², with n_i equal examples (h_i, b_i): a client of ragged size for each.
CURVE = np.array([0.5, 1.0, 2.0, 3.0, 0.7])
CENTRE = np.array([-1.0, 2.0, 0.3, 4.0, -3.0])
SIZE = np.array([4, 12, 8, 20, 16])
CLIENTS = np.repeat(np.arange(5), SIZE)
FEATURES = np.stack([CURVE, CENTRE], 1)[CLIENTS].astype(np.float32)
LABELS = np.zeros(len(CLIENTS), int)
RATE, ROUNDS, BATCH, START = 0.05, 12, 4, 5.0
KEY = jax.random.key(0)


def _inputs(trained, frozen, statistics, inputs, train, key):
    return inputs, ()


def _residual(trained, frozen, inputs):
    return jnp.sqrt(inputs[:, :1]) * (trained[None] - inputs[:, 1:])


def _half_square(scores, labels):
    return 0.5 * jnp.square(scores[:, 0])


def _itself(trained, frozen, statistics):
    return trained[0]


def quadratic():
    return Model(jnp.array([START]), (), (), _inputs, _residual, _itself, _half_square)


def path(algorithm, rounds=ROUNDS, every=1, **options):
    """x after each round."""
    seen = []
    evaluate = Evaluation(lambda x: seen.append(float(x)) or {}, every=every)
    run(algorithm, FEATURES, LABELS, CLIENTS, key=KEY, rounds=rounds, evaluate=evaluate, **options)
    return np.array(seen[1:])  # without the start


def geometric(weight, rounds=ROUNDS):
    """x_t = x∞ + (1 − Σω)ᵗ (x₀ − x∞) with x∞ = Σωb/Σω."""
    end = (weight * CENTRE).sum() / weight.sum()
    return end + (1 - weight.sum()) ** np.arange(1, rounds + 1) * (START - end)


SHARE, STEPS = SIZE / SIZE.sum(), SIZE / BATCH
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


MU = 0.4
LEFT = 1 - (1 - RATE * CURVE) ** STEPS
GEOMETRIC = {
    "fedavg": (ft.fedavg, {}, SHARE * LEFT),
    "fedprox": (
        ft.fedprox,
        {"mu": MU},
        SHARE * (1 - (1 - RATE * (CURVE + MU)) ** STEPS) * CURVE / (CURVE + MU),
    ),
    "fednova": (ft.fednova, {}, (SHARE * STEPS).sum() * SHARE * LEFT / STEPS),
    "uniform weights": (ft.fedavg, {"weighting": "uniform"}, LEFT / 5),
    "one step of all examples": (ft.fedavg, {"steps": 1, "batch_size": 20}, SHARE * RATE * CURVE),
    # Steps in the place of epochs: each client takes as many, whatever it has.
    "three steps": (ft.fedavg, {"steps": 3}, SHARE * (1 - (1 - RATE * CURVE) ** 3)),
}


@pytest.mark.parametrize(("make", "options", "weight"), GEOMETRIC.values(), ids=GEOMETRIC)
def test_the_path_is_geometric(make, options, weight):
    algorithm = make(quadratic(), RATE, **{"batch_size": BATCH, **options})
    np.testing.assert_allclose(path(algorithm), geometric(weight), **TOLERANCE)


@pytest.mark.slow
def test_fednova_tends_to_the_optimum_where_fedavg_does_not():
    best = (SHARE * CURVE * CENTRE).sum() / (SHARE * CURVE).sum()

    def bias(weight):
        return abs((weight * CENTRE).sum() / weight.sum() - best)

    for make, tends in ((ft.fednova, True), (ft.fedavg, False)):
        ends = []
        for rate in (0.05, 0.01):
            lines = path(make(quadratic(), rate, batch_size=BATCH), rounds=int(4 / rate), every=10**6)
            ends.append(abs(lines[-1] - best))
        assert (ends[1] < 0.35 * ends[0]) == tends
        assert ends[0] > 0.01


@pytest.mark.parametrize(
    ("participation", "rounds", "momentum"),
    [(1.0, 150, 0.9), *slow((1.0, 150, 0.0), (0.4, 600, 0.9), (0.4, 600, 0.0))],
)
def test_scaffold_reaches_the_optimum_of_the_mean_loss(participation, rounds, momentum):
    rate = 0.1 if not momentum else 0.01
    # A schedule scales the steps, and not the controls.
    options = {"batch_size": BATCH, "schedule": optax.linear_schedule(1.0, 0.5, rounds)}
    algorithm = ft.scaffold(quadratic(), Partial(optax.sgd, rate, momentum), **options)
    lines = path(algorithm, rounds=rounds, participation=participation, every=rounds)
    best = (CURVE * CENTRE).sum() / CURVE.sum()
    assert lines[-1] == pytest.approx(best, abs=2e-4)


def test_without_a_proximal_term_fedprox_is_fedavg_and_with_equal_steps_fednova_is():
    plain = path(ft.fedavg(quadratic(), RATE, steps=4, batch_size=BATCH))
    np.testing.assert_array_equal(path(ft.fedprox(quadratic(), RATE, 0.0, steps=4, batch_size=BATCH)), plain)
    nova = path(ft.fednova(quadratic(), RATE, steps=4, batch_size=BATCH))
    np.testing.assert_allclose(nova, plain, **TOLERANCE)


@pytest.mark.parametrize("client", [optax.sgd(0.01, momentum=0.9), Partial(optax.adam, 0.05)])
def test_one_client_is_optax_itself(client):
    own = CLIENTS == 3
    algorithm = ft.fedavg(quadratic(), client, epochs=2, batch_size=BATCH)
    done = run(algorithm, FEATURES[own], LABELS[own], np.zeros(own.sum(), int), key=KEY, rounds=1)
    transformation = client() if isinstance(client, Partial) else client
    x = jnp.array([START])
    state = transformation.init(x)
    for _ in range(2 * int(STEPS[3])):
        updates, state = transformation.update(CURVE[3] * (x - CENTRE[3]), state, x)
        x = optax.apply_updates(x, updates)
    assert float(done.result) == pytest.approx(float(x[0]), rel=1e-5)


def test_what_optax_asks_for_beside_gradients():
    """The loss as ``value``; and MultiSteps, which is no transformation by name: every other step counts."""

    def update(updates, state, params=None, *, value, **others):
        return jax.tree.map(lambda g: -RATE * value * g, updates), state

    by_value = optax.GradientTransformationExtraArgs(lambda params: (), update)
    every_other = optax.MultiSteps(optax.sgd(RATE), 2)
    x, y = START, START
    for _ in range(int(STEPS[3])):
        apart = x - CENTRE[3]
        x -= RATE * (0.5 * CURVE[3] * apart**2) * CURVE[3] * apart
    for _ in range(int(STEPS[3]) // 2):
        y -= RATE * CURVE[3] * (y - CENTRE[3])
    alone = FEATURES[CLIENTS == 3], LABELS[CLIENTS == 3], np.zeros(SIZE[3], int)
    told = pytest.warns(UserWarning, match="MultiSteps and apply_every lose what they have gathered")
    halved = optax.chain(optax.scale(0.5), optax.apply_every(2), optax.sgd(RATE))
    for optimiser, expected, context in (
        (by_value, x, nullcontext()),
        (every_other, y, told),
        (halved, y, pytest.warns(UserWarning, match="apply_every lose")),
    ):
        with context:
            done = run(ft.fedavg(quadratic(), optimiser, batch_size=BATCH), *alone, key=KEY, rounds=1)
        np.testing.assert_allclose(done.result, expected, **TOLERANCE)


def test_a_servers_optimiser_sees_the_mean_change():
    """With optax.adam at the server: Adam on Σ w_i (x − y_i)."""
    algorithm = ft.fedavg(quadratic(), RATE, Partial(optax.adam, 0.3), batch_size=BATCH)
    lines = path(algorithm, rounds=6)
    x, state, server = jnp.array([START]), optax.adam(0.3).init(jnp.array([START])), optax.adam(0.3)
    for line in lines:
        ends = CENTRE + (1 - RATE * CURVE) ** STEPS * (float(x[0]) - CENTRE)
        change = (SHARE * (float(x[0]) - ends)).sum()
        updates, state = server.update(jnp.array([change], jnp.float32), state, x)
        x = optax.apply_updates(x, updates)
        assert line == pytest.approx(float(x[0]), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad", "adam-flower"])
def test_adaptive_servers_are_the_papers(rule):
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(7, 3)) * [1, 10, 0.01]
    transformation = ft.adaptive(rule, 0.1, b1=0.8, b2=0.95, tau=0.01)
    flower = rule == "adam-flower"
    x, m, v = np.ones(3), np.zeros(3), np.full(3, 0.0 if flower else 0.01**2)
    ours = jnp.ones(3)
    state = transformation.init(ours)
    for number, g in enumerate(gradients, start=1):
        m = 0.8 * m + 0.2 * g
        if rule in ("adam", "adam-flower"):
            v = 0.95 * v + 0.05 * g**2
        elif rule == "yogi":
            v = v - 0.05 * g**2 * np.sign(v - g**2)
        else:
            v = v + g**2
        # Flower counts rounds from 1, and corrects by one more.
        corrected = np.sqrt(1 - 0.95 ** (number + 1)) / (1 - 0.8 ** (number + 1)) if flower else 1
        x = x - 0.1 * corrected * m / (np.sqrt(v) + 0.01)
        updates, state = transformation.update(jnp.asarray(g, jnp.float32), state)
        ours = optax.apply_updates(ours, updates)
        np.testing.assert_allclose(ours, x, rtol=1e-5)


@pytest.mark.slow
def test_at_published_rates_fedadam_moves_in_the_form_of_the_papers_code():
    """Changes of 1e-5, as networks have them, are below Reddi's τ: that form stays."""
    flat = FEATURES * np.array([1e-4, 1e4], np.float32)
    moved = {}
    for form in ("reddi", "flower", "torch"):
        algorithm = ft.fedadam(quadratic(), 1e-5, 3e-4, form=form, steps=1, batch_size=20)
        done = run(algorithm, flat, LABELS, CLIENTS, key=KEY, rounds=5)
        moved[form] = abs(float(done.result) - START)
    assert moved["reddi"] < 1e-5 < 1e-3 < min(moved["torch"], moved["flower"])
    assert max(moved.values()) < 1e-2


def test_torchs_adam_is_optax_adam():
    pair = ft.fedadam(quadratic(), RATE, 0.3, form="torch"), ft.fedavg(quadratic(), RATE, optax.adam(0.3))
    np.testing.assert_allclose(*(path(algorithm, rounds=4) for algorithm in pair), rtol=1e-6)


def descent(rate, momentum=0.0, mu=0.0):
    """Gradient descent with momentum, held near the server's model."""
    return optax.chain(ft.add_proximal(mu), optax.sgd(rate, momentum))


def test_the_length_of_a_way():
    rate, rho, mu = 0.1, 0.9, 0.5
    for steps in (1, 4, 9):
        way = {
            descent(rate): steps,
            descent(rate, rho): (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho),
            descent(rate, mu=mu): (1 - (1 - rate * mu) ** steps) / (rate * mu),
            optax.chain(optax.add_decayed_weights(mu), optax.sgd(rate)): (1 - (1 - rate * mu) ** steps)
            / (rate * mu),
        }
        for client, length in way.items():
            found = float(reach(as_optimiser("client", client), steps))
            assert found == pytest.approx(rate * length, rel=1e-5)


def test_fednova_with_momentum_and_a_proximal_term_goes_the_way_of_a_constant_gradient():
    """Where curvature is nothing, each client's change is ℓ g, whatever momentum, μ and schedule."""
    flat = FEATURES * np.array([1e-4, 1e4], np.float32)
    client = descent(0.1, 0.9, 0.3)
    algorithm = ft.fednova(quadratic(), client, batch_size=BATCH, schedule=lambda number: 0.5)
    done = run(algorithm, flat, LABELS, CLIENTS, key=KEY, rounds=1)
    length = np.array([float(reach(as_optimiser("client", client), int(k), 0.5)) for k in STEPS])
    gradient = 1e-4 * CURVE * (START - 1e4 * CENTRE)
    wanted = START - (SHARE * length).sum() * (SHARE * gradient).sum()
    assert float(done.result) == pytest.approx(wanted, rel=2e-3)


def test_a_schedule_scales_the_clients_steps():
    schedule = optax.exponential_decay(1.0, 1, 0.5)
    lines = path(ft.fedavg(quadratic(), RATE, steps=1, batch_size=20, schedule=schedule), rounds=4)
    x = START
    for number, line in enumerate(lines):
        x -= 0.5**number * RATE * (SHARE * CURVE * (x - CENTRE)).sum()
        assert line == pytest.approx(x, rel=1e-5)


def test_learning_rates_are_numbers_of_the_algorithm():
    """Another one compiles nothing anew; ``vmap`` sweeps them."""
    first = ft.fedavg(quadratic(), 0.1, Partial(optax.adam, 0.1))
    second = ft.fedavg(quadratic(), 0.2, Partial(optax.adam, 0.3))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert jax.tree.structure(ft.fedadam(quadratic())) == jax.tree.structure(
        ft.fedadam(quadratic(), 0.2, 0.3)
    )


class TestBadInput:
    """Errors name the argument."""

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: ft.fedavg(quadratic(), float("nan")), "client"),
            (lambda: ft.fedavg(quadratic(), 0.1, -1.0), "server"),
            (lambda: ft.fedavg(quadratic(), optax.sgd), "client: expected an optax transformation"),
            (lambda: ft.fedavg(quadratic(), "sgd"), "client"),
            (lambda: ft.fedavg(None), "model: expected a covfree.finetune.Model, got NoneType"),
            (lambda: ft.fedavg(quadratic(), epochs=0), "epochs"),
            (lambda: ft.fedavg(quadratic(), epochs=3, steps=2), "steps: expected epochs or steps, got both"),
            (
                lambda: ft.fedavg(quadratic(), Partial(optax.sgd, 0.1, nesterov=True)),
                "client: expected only numbers in the Partial, got nesterov=True",
            ),
            (lambda: ft.fedavg(quadratic(), Partial(optax.sgd, optax.constant_schedule(1.0))), "got 0=<"),
            (
                lambda: ft.fedavg(quadratic(), 0.1, Partial(optax.sgd, np.nan)),
                "server: expected finite .* 0=nan",
            ),
            (
                lambda: path(ft.fedavg(quadratic(), optax.add_noise(0.1, 0.5, 0))),
                "optimiser that does not draw",
            ),
            (lambda: ft.fedavg(quadratic(), steps=0), "steps"),
            (lambda: ft.fedavg(quadratic(), batch_size=0), "batch_size"),
            (lambda: ft.fedavg(quadratic(), weighting="sizes"), "weighting: expected"),
            (lambda: ft.fedprox(quadratic(), 0.1, float("inf")), "mu"),
            (lambda: ft.scaffold(quadratic(), float("nan")), "client: expected"),
            (lambda: ft.fednova(quadratic(), optax.sgd), "client: expected an optax transformation"),
            (lambda: ft.fedadam(quadratic(), b2=-0.1), "b2"),
            (lambda: ft.fedadam(quadratic(), form="adam"), "form: expected one of"),
            (lambda: ft.linear_model(None), "head: expected a linear head or a Student head, got NoneType"),
        ],
    )
    def test_an_error_says_what_is_wrong(self, make, message, untyped):
        with pytest.raises((TypeError, ValueError), match=message):
            make()
