"""What takes one thing away from a run, and what each client adds to a sum, on the digits."""

from functools import partial

import jax
import numpy as np
import pytest

from covfree.data import load_digits

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation():
    from baselines.idx import Images
    from baselines.study import Federation, Seed
    from fashion_mnist import REDUCED, Options

    data = load_digits(seed=0)
    images = (data.train_features.reshape(-1, 8, 8, 1) * 255).astype(np.uint8)
    train = Images(images, np.asarray(data.train_labels, np.int32))
    options = Options(**{**vars(REDUCED), "images": 700, "clients": 3})
    on = Federation(Seed(options, train, train[:100], seed=0), 0.1)
    on.clients = np.repeat([2, 0, 1], [500, 120, 80])  # of 8, 2 and 2 steps
    on.tuning_start = on.shared.start
    return on


def one_round(make, on):
    from baselines.cnn import cnn_model
    from baselines.study import ROUND_BATCH

    from covfree import rounds

    train = on.shared.train
    algorithm = make(cnn_model(on.shared.cnn, on.shared.start), epochs=1, batch_size=ROUND_BATCH)
    key = on.shared.key("rounds")
    return rounds.run(algorithm, train.images, train.labels, on.clients, key=key, rounds=1)


def test_what_clients_add_is_what_the_servers_take(federation):
    import fashion_mnist_why as why

    # Controls are 0 before the first round, so c is the mean of them all.
    controls = why.controls(federation)
    run = one_round(why.SCAFFOLD, federation)
    for each, mean in zip(jax.tree.leaves(controls), jax.tree.leaves(run.state.control), strict=True):
        np.testing.assert_allclose(np.mean(each, 0), mean, atol=1e-5)

    # x − x⁺ = τ Σv / Σn with v_i = n_i (x − y_i)/‖a_i‖₁, from momentum 0.9 in 8, 2 and 2 steps.
    changes = why.normalised(federation)
    after = one_round(why.NOVA, federation).result["params"]
    sizes, steps = np.array([120, 80, 500]), np.array([2, 2, 8])
    lengths = (steps - 9 * (1 - 0.9**steps)) / 0.1
    factor = (sizes * lengths).sum() / sizes.sum() ** 2
    trees = federation.shared.start["params"], after, changes
    for before, new, each in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_allclose(before - new, factor * each.sum(0), atol=1e-5)


def test_shares_of_a_sum(federation):
    import fashion_mnist_why as why

    changes = {"a": np.array([[3.0, 0], [0, 0], [0, 2]]), "b": np.array([[4.0], [0], [0]])}
    found = why.shares(changes, federation)
    assert found["images"] == [120, 80, 500]
    np.testing.assert_allclose(found["norm"], [5, 0, 2])
    # Of (3, 2, 4), whose square is 29.
    np.testing.assert_allclose(found["share"], [25 / 29, 0, 4 / 29], atol=1e-4)


def test_small_clients_leave_with_their_images(federation):
    import fashion_mnist_why as why

    fewer = why.without_small(federation)
    np.testing.assert_array_equal(fewer.clients, np.zeros(500))
    np.testing.assert_array_equal(fewer.shared.train.labels, federation.shared.train.labels[:500])
    assert len(federation.shared.train.labels) == len(federation.clients) == 700


def test_steps_and_norms_are_as_they_are_said_to_be(federation):
    import fashion_mnist_why as why

    from covfree import finetune

    seen = {}

    def make(model, **options):
        seen.update(options)
        return finetune.fedavg(model, **options)

    start = federation.shared.start["batch_stats"]
    kept = one_round(why.still(make), federation).result
    assert seen == {"epochs": 1, "batch_size": 64}
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), kept["batch_stats"], start)
    run = one_round(why.alike(make), federation)
    assert seen["steps"] == run.history[0]["steps"] == 16
    moved = jax.tree.map(lambda old, new: abs(old - new).max() > 1e-3, start, run.result["batch_stats"])
    assert all(jax.tree.leaves(moved))
