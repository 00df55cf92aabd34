"""What is trained: linear heads against NumPy, and backbones with their running statistics."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from backbones import seeded
from tiny_networks import RESNET

import covfree
import covfree.finetune as ft
from covfree.backbones import Preprocessing, backbone
from covfree.backbones.weights import tensor_shapes
from covfree.finetune.model import cross_entropy
from covfree.rounds import Placement, run

KEY = jax.random.key(0)


def examples(seed=0):
    rng = np.random.default_rng(seed)
    clients = np.repeat(np.arange(4), [3, 9, 6, 5])
    labels = rng.integers(0, 3, len(clients))
    features = rng.normal(size=(len(clients), 4)) + labels[:, None]
    return features.astype(np.float32), labels, clients


def softmax_steps(weight, bias, features, labels, rate, steps):
    """Gradient descent on the mean cross-entropy, with plain loops."""
    for _ in range(steps):
        slope_w, slope_b = np.zeros_like(weight), np.zeros_like(bias)
        for x, y in zip(features.astype(float), labels, strict=True):
            scores = x @ weight + bias
            p = np.exp(scores - scores.max())
            p /= p.sum()
            p[y] -= 1
            slope_w += np.outer(x, p) / len(labels)
            slope_b += p / len(labels)
        weight, bias = weight - rate * slope_w, bias - rate * slope_b
    return weight, bias


def test_fedavg_of_a_linear_head_is_a_loop_over_clients():
    features, labels, clients = examples()
    head = ft.random_head(4, 3, key=KEY)
    algorithm = ft.fedavg(ft.linear_model(head), 0.3, steps=4, batch_size=9)
    done = run(algorithm, features, labels, clients, key=KEY, rounds=3, place=Placement(width=2))
    weight, bias = np.asarray(head.weight, float), np.asarray(head.bias, float)
    for _ in range(3):
        ends = [
            softmax_steps(weight, bias, features[clients == k], labels[clients == k], 0.3, 4)
            for k in range(4)
        ]
        share = np.bincount(clients) / len(clients)
        weight = sum(s * w for s, (w, _) in zip(share, ends, strict=True))
        bias = sum(s * b for s, (_, b) in zip(share, ends, strict=True))
    # The head at temperature 0.1 is the same; descent of W under the loss of Wx/T is that of W/T at η/T².
    cool = ft.at_temperature(ft.linear_model(covfree.with_temperature(head, 10.0)), 0.1)
    algorithm = ft.fedavg(cool, 0.3 * 0.1**2, steps=4, batch_size=9)
    same = run(algorithm, features, labels, clients, key=KEY, rounds=3, place=Placement(width=2))
    for result in (done.result, same.result):
        np.testing.assert_allclose(result.weight, weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(done.result.bias, bias, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_sums_over_many_clients_are_as_exact_in_bfloat16():
    """One upload has 8 bits; the sum of 1,000 that are alike must not lose them."""
    features, labels = np.ones((1000, 2), np.float32), np.zeros(1000, int)
    head = covfree.LinearHead(jnp.zeros((2, 2), jnp.bfloat16), jnp.zeros(2, jnp.bfloat16))
    model = ft.linear_model(head)
    for algorithm in (ft.fedavg(model, 0.1), ft.scaffold(model, 0.1)):
        one = run(algorithm, features[:1], labels[:1], np.arange(1), key=KEY, rounds=1).result
        many = run(
            algorithm, features, labels, np.arange(1000), key=KEY, rounds=1, place=Placement(width=50)
        ).result
        assert many.weight.dtype == jnp.bfloat16
        np.testing.assert_array_equal(one.weight, many.weight)
        assert float(one.weight[0, 0]) == pytest.approx(0.05, rel=2**-8)


def test_labels_past_the_head_are_refused():
    features, labels, clients = examples()
    labels[4] = 3
    model = ft.linear_model(ft.random_head(4, 3, key=KEY))
    for algorithm in (ft.fedavg(model), ft.scaffold(model), ft.local_only(model), ft.oll(model)):
        with pytest.raises(ValueError, match=r"labels: .*3"):
            run(algorithm, features, labels, clients, key=KEY, rounds=1)


def test_scores_and_losses_of_another_shape_are_refused():
    """A loss that is a mean would count padding; a score too few would train on NaN."""
    features, labels, clients = examples()
    model = ft.linear_model(ft.random_head(4, 4, key=KEY))
    few = replace(model, trained=ft.random_head(4, 3, key=KEY))
    mean = replace(model, loss=lambda scores, labels: cross_entropy(scores, labels).mean())
    for wrong, message in (
        (few, r"scores: expected \[\d+, 4\] of a batch, got \[\d+, 3\]"),
        (mean, r"loss: expected shape \[\d+\], one number for each example, got \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            run(ft.fedavg(wrong), features, labels, clients, key=KEY, rounds=1)
    # Nobody said how many classes there are.
    unsure = replace(few, num_classes=None)
    with pytest.warns(RuntimeWarning, match="round 0: the clients' loss is not finite"):
        done = run(ft.fedavg(unsure), features, np.full_like(labels, 3), clients, key=KEY, rounds=2)
    assert done.history == []


def test_what_does_not_fit_the_head_is_refused():
    features, labels, clients = examples()
    model = ft.linear_model(ft.random_head(5, 4, key=KEY))
    with pytest.raises(ValueError, match=r"features: expected \[examples, 5\], as the head has rows, got"):
        run(ft.fedavg(model), features, labels, clients, key=KEY, rounds=1)
    with pytest.raises(ValueError, match="dim: expected"):
        ft.random_head(0, 4, key=KEY)
    with pytest.raises(TypeError, match="schedule"):
        ft.fedavg(model, schedule=0.5)
    with pytest.raises(TypeError, match=r"client: expected an optax .*optax\.sgd\(schedule\)"):
        ft.fedavg(model, optax.cosine_decay_schedule(0.1, 3))


def test_rates_out_of_range_are_refused():
    model = ft.linear_model(ft.random_head(4, 3, key=KEY))
    with pytest.raises(ValueError, match=r"server_lr: .*-0\.1"):
        ft.fedadam(model, 0.1, server_lr=-0.1)
    with pytest.raises(ValueError, match=r"client: .*-0\.1"):
        ft.scaffold(model, -0.1)


def test_each_epoch_meets_every_example_once():
    """A step of batch size 1 with rate η moves by η times the example's gradient: none twice, none left."""
    features = np.eye(7, 7, dtype=np.float32)
    head = covfree.LinearHead(jnp.zeros((7, 2)), jnp.zeros(2))
    algorithm = ft.fedavg(ft.linear_model(head), 1e-3, epochs=2, batch_size=1)
    done = run(algorithm, features, np.zeros(7, int), np.array([0, 0, 0, 1, 1, 1, 1]), key=KEY, rounds=1)
    moved = np.asarray(done.result.weight)[:, 0]
    np.testing.assert_allclose(moved, 2 * 1e-3 * 0.5 * np.where(np.arange(7) < 3, 3 / 7, 4 / 7), rtol=5e-3)


@pytest.mark.slow
def test_a_calibrated_head_predicts_what_the_closed_form_does():
    features, labels, clients = examples()
    head = covfree.fit(covfree.fedcof(1.0), features, labels, clients, num_classes=4)
    soft = covfree.with_temperature(head, covfree.calibrate_temperature(head, features, labels))
    model = ft.linear_model(soft)
    np.testing.assert_array_equal(model(features).argmax(1), head(features).argmax(1))
    done = run(ft.fedadam(model), features, labels, clients, key=KEY, rounds=5)
    # Class 3 is nobody's, and stays so.
    assert np.isneginf(done.result(features)[:, 3]).all()
    assert np.isfinite(done.result.weight).all()
    loss = [record["loss"] for record in done.history]
    assert loss[-1] < loss[0]


@pytest.mark.slow
def test_of_a_mapped_head_the_map_stays():
    features, labels, clients = examples()
    method = covfree.fedcof(1.0).with_feature_map(covfree.relu_features(16))
    head = covfree.fit(method, features, labels, clients)
    done = run(ft.fedavg(ft.linear_model(head)), features, labels, clients, key=KEY, rounds=1)
    assert jax.tree.structure(done.result) == jax.tree.structure(head)
    before, after = (jax.tree.leaves(x.feature_map) for x in (head, done.result))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x, y)
    assert np.abs(done.result.head.weight - head.head.weight).max() > 0


@pytest.mark.parametrize("settings", [{"train": "head", "norms": "batch"}, {"train": "backbone"}])
def test_running_statistics_that_stay_are_not_sent(network, settings):
    net, params, _, head = network
    model = ft.network_model(net, params, head, **settings)
    algorithm = ft.fedavg(model, 0.1)
    state, _ = algorithm.init(algorithm.params, 2, KEY)
    sent = jax.tree.leaves(algorithm.broadcast(algorithm.params, state))
    assert sum(x.size for x in sent) == sum(x.size for x in jax.tree.leaves(model.trained)) + 1  # the round
    after = algorithm.result(algorithm.params, state, ()).feature_map.params
    assert jax.tree.structure(after) == jax.tree.structure(params)
    for x, y in zip(*map(jax.tree.leaves, (after["batch_stats"], params["batch_stats"])), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def network():
    net = backbone(RESNET)
    images = np.random.default_rng(0).normal(size=(6, 32, 32, 3)).astype(np.float32)
    return net, seeded_params(net), images, ft.random_head(64, 2, key=KEY)


def seeded_params(net):
    """Parameters that nothing is compiled for."""
    return net.from_tensors(seeded.tensors(tensor_shapes(net.shapes), net.name))


LABELS, CLIENTS = np.array([0, 1, 0, 1, 1, 0]), np.array([0, 0, 1, 1, 1, 1])


@pytest.mark.slow
def test_running_statistics_are_averaged_beside_the_parameters(network):
    net, params, images, head = network
    model = ft.network_model(net, params, head, norms="batch")
    np.testing.assert_allclose(
        jax.jit(model.__call__)(images), head(jax.jit(net.apply)(params, images)), rtol=1e-4, atol=1e-5
    )  # in evaluation the running statistics
    algorithm = ft.fedavg(model, 0.0, 0.5, batch_size=4)
    done = run(algorithm, images, LABELS, CLIENTS, key=KEY, rounds=1)
    after = done.result.feature_map.params
    # Client 0 fills its batch up with its own two examples again; its mean and variance stay what they are.
    updated = jax.jit(net.apply_and_update)
    own = [
        updated(params, np.concatenate([images[:2], images[:2]]))[1]["batch_stats"],
        updated(params, images[2:])[1]["batch_stats"],
    ]
    wanted = jax.tree.map(lambda a, b: (2 * a + 4 * b) / 6, *own)
    for x, y in zip(jax.tree.leaves(after["batch_stats"]), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4)
    # With a rate of 0 nothing else moves.
    for x, y in zip(jax.tree.leaves(after["params"]), jax.tree.leaves(params["params"]), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("train", ["head", "backbone", "all"])
def test_what_is_trained_is_what_changes(network, train):
    net, params, images, head = network
    model = ft.network_model(net, params, head, train=train)
    trained = jax.tree.structure(model.trained)
    assert trained.num_leaves == (2 if train == "head" else 0) + len(jax.tree.leaves(params["params"])) * (
        train != "head"
    ) + (2 if train == "all" else 0)
    default = ft.network_model(net, params, head)
    np.testing.assert_array_equal(*(jax.jit(one.__call__)(images) for one in (model, default)))
    result = model.result(model.trained, model.statistics)
    after, same = result.feature_map.params, result.head
    assert jax.tree.structure(after) == jax.tree.structure(params)
    np.testing.assert_array_equal(same.weight, head.weight)


def test_a_trained_network_is_a_head_on_images(network, tmp_path):
    net, params, images, head = network
    levels = Preprocessing(32, 32, "bilinear", (100.0,) * 3, (50.0,) * 3)
    model = ft.network_model(net, params, head, train="head", preprocessing=levels)
    pixels = np.clip(100 + 50 * images, 0, 255).astype(np.uint8)
    done = run(ft.fedavg(model, 0.1, batch_size=4), pixels, LABELS, CLIENTS, key=KEY, rounds=1)
    scores = done.result(pixels)
    plain = done.result.head(jax.jit(net.apply)(params, (pixels - 100.0).astype(np.float32) / 50))
    np.testing.assert_allclose(scores, plain, rtol=1e-4, atol=1e-4)
    accuracy = ft.client_accuracy(done.result, pixels, LABELS, CLIENTS)
    right = np.asarray(scores).argmax(1) == LABELS
    np.testing.assert_allclose(accuracy, [right[k == CLIENTS].mean() for k in (0, 1)])
    # And is saved and loaded as one, into a network with other parameters.
    blank = ft.NetworkMap(jax.tree.map(jnp.zeros_like, params), net, levels)
    for name in ("head.npz", "head.safetensors"):
        covfree.save_head(done.result, tmp_path / name, class_names=["a", "b"])
        saved = covfree.load_head(tmp_path / name, network=blank)
        np.testing.assert_array_equal(jax.jit(saved.head)(pixels), jax.jit(done.result)(pixels))
        assert (saved.class_names, saved.num_classes, saved.dim) == (("a", "b"), 2, head.weight.shape[0])
    with pytest.raises(ValueError, match=r"head\.npz: network: expected the map whose parameters"):
        covfree.load_head(tmp_path / "head.npz")
    other = replace(blank, params={"params": {"kernel": jnp.zeros(3)}})
    with pytest.raises(ValueError, match=r"network: expected one with the file's parameters; map_.*None in"):
        covfree.load_head(tmp_path / "head.npz", network=other)
    covfree.save_head(done.result.head, tmp_path / "head.npz")


@pytest.mark.slow
def test_features_in_several_arrays():
    """Token ids and a mask, as sentence encoders have them: a model of the mean embedding of the tokens."""
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 7, (40, 5)), rng.random((40, 5)) < 0.7
    mask[:, 0] = True
    labels = ((np.where(ids > 3, 1, -1) * mask).sum(1) > 0).astype(int)
    clients = np.arange(40) % 4

    def features(trained, frozen, statistics, inputs, train, key):
        kept = inputs["mask"].astype(jnp.float32)[:, :, None]
        return (trained["table"][inputs["ids"]] * kept).sum(1) / kept.sum(1), statistics

    def scores(trained, frozen, features):
        return features @ trained["head"]

    trained = {"table": jax.random.normal(KEY, (7, 6)), "head": jnp.zeros((6, 2))}
    model = ft.Model(trained, (), (), features, scores, num_classes=2)
    texts = {"ids": ids.astype(np.int32), "mask": mask}
    done = run(ft.fedavg(model, 2.0, batch_size=5), texts, labels, clients, key=KEY, rounds=100)
    right = np.asarray(done.result(texts)).argmax(1) == labels
    assert right.mean() > 0.9
    own = [right[clients == k].mean() for k in range(4)]
    np.testing.assert_allclose(ft.client_accuracy(done.result, texts, labels, clients), own)
    assert float(covfree.evaluate(done.result, texts, labels)) == pytest.approx(right.mean())
    with pytest.raises(ValueError, match=r"features: expected shape .* got \[40, 5\], \[39, 5\]"):
        run(ft.fedavg(model), {**texts, "mask": mask[1:]}, labels, clients, key=KEY, rounds=1)


@pytest.mark.slow
def test_regression_and_several_labels_each():
    features, _, clients = examples()
    wide = ft.linear_model(ft.random_head(4, 2, key=KEY))
    targets = (features[:, :2] @ np.array([[1.0, 2.0], [0.0, -1.0]]) + 0.5).astype(np.float32)

    def squares(scores, targets):
        return jnp.square(scores - targets).sum(1)

    def crosses(scores, targets):
        return optax.sigmoid_binary_cross_entropy(scores, targets.astype(scores.dtype)).sum(1)

    model = replace(wide, loss=squares, num_classes=None)
    done = run(ft.fedavg(model, 0.05, batch_size=8), features, targets, clients, key=KEY, rounds=150)
    assert float(np.abs(done.result(features) - targets).max()) < 0.02
    model = replace(wide, loss=crosses, num_classes=None)
    several = targets > 0.5
    done = run(ft.scaffold(model, 0.5, batch_size=8), features, several, clients, key=KEY, rounds=50)
    assert ((np.asarray(done.result(features)) > 0) == several).mean() > 0.95
    means = ft.Prototypes(jnp.zeros((2, 4)), jnp.ones(2))
    moved = ft.adapter_model(wide.trained, rank=1, key=KEY)
    moved = replace(moved, loss=crosses, num_classes=None)
    of_classes = ft.oll(model), ft.fedcgs_personal(moved, means), ft.fedproto(moved, num_classes=2, dim=4)
    for algorithm in of_classes:
        with pytest.raises(TypeError, match=r"labels: expected a class of each example, .* got float32\["):
            run(algorithm, features, targets, clients, key=KEY, rounds=1)
    # A score for each place of a sequence, each with a class; and a single number for each example.
    sequences = replace(
        wide, scores=lambda head, kept, x: jnp.stack([head(x), head(-x)], 1), finish=None, num_classes=None
    )
    tokens = replace(sequences, loss=lambda scores, targets: cross_entropy(scores, targets).mean(1))
    places = np.stack([several[:, 0], ~several[:, 0]], 1).astype(np.int32)
    done = run(ft.fedavg(tokens, 1.0), features, places, clients, key=KEY, rounds=40)
    assert (np.asarray(done.result(features)).argmax(2) == places).mean() > 0.85
    one = replace(wide, scores=lambda head, kept, x: head(x)[:, 0], num_classes=None)
    targets[7] = np.nan
    with pytest.raises(
        ValueError, match=f"labels: row 7 of client {clients[7]} holds a number that is not fi"
    ):
        run(
            ft.fedavg(replace(one, loss=lambda x, y: (x - y) ** 2)),
            features,
            targets[:, 0],
            clients,
            key=KEY,
            rounds=1,
        )
    with pytest.raises(
        TypeError, match=r"labels: expected integers, the classes of .* got float32; give the Mo"
    ):
        run(ft.fedavg(one), features, features[:, 0], clients, key=KEY, rounds=1)
    with pytest.raises(
        TypeError, match="labels: expected integers, got float32; for targets other than classes"
    ):
        run(ft.fedavg(wide), features, targets, clients, key=KEY, rounds=1)


def test_a_head_of_other_features_is_refused(network, untyped):
    net, params, _, _ = network
    with pytest.raises(ValueError, match=r"head: expected a linear head of 64 features, got \[4, 2\]"):
        ft.network_model(net, params, ft.random_head(4, 2, key=KEY))
    with pytest.raises(ValueError, match="train: expected"):
        ft.network_model(net, params, ft.random_head(64, 2, key=KEY), train="norms")


def test_dropout_and_orders_are_drawn_anew_each_round():
    features, labels, clients = examples()
    seen = []

    def noisy(trained, frozen, statistics, inputs, train, key):
        return inputs + (jax.random.normal(key, inputs.shape) if train else 0), ()

    def scores(trained, frozen, features):
        return features @ trained

    model = ft.Model(jnp.zeros((4, 3)), (), (), noisy, scores, lambda trained, frozen, statistics: trained)
    algorithm = ft.fedavg(model, optax.sgd(1.0), steps=1, batch_size=9)
    for rounds in (1, 2):
        seen.append(run(algorithm, features, labels, clients, key=KEY, rounds=rounds).history[-1]["loss"])
    again = run(algorithm, features, labels, clients, key=KEY, rounds=2).history[-1]["loss"]
    assert again == seen[1] != seen[0]


@pytest.mark.slow
def test_dropout_is_a_choice_of_its_own():
    net = backbone("squeezenet1_1")
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    params, head = seeded_params(net), ft.random_head(512, 2, key=KEY)
    kept, dropped = (ft.network_model(net, params, head, dropout=dropout) for dropout in (False, True))
    features = jax.jit(lambda model, key: model.features(
        model.trained, model.frozen, model.statistics, images, True, key)[0])  # fmt: skip
    first, second = jax.random.split(KEY)
    np.testing.assert_array_equal(features(kept, first), features(kept, second))
    assert np.abs(features(dropped, first) - features(dropped, second)).max() > 0.01
    mean = float(features(kept, first).mean())
    assert float(features(dropped, first).mean()) == pytest.approx(mean, rel=0.1)
    with pytest.raises(ValueError, match=r"dropout: .*0\.5"):
        ft.network_model(net, params, head, dropout=0.5)
