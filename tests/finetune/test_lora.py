"""LoRA: low-rank layers against NumPy's own gradients, and on networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_networks import LEVELS, RESNET, VIT

import covfree.finetune as ft
from covfree.backbones import backbone
from covfree.rounds import run

KEY = jax.random.key(0)


def low_rank_steps(weight, bias, down, up, features, labels, rate, steps):
    """Gradient descent of A and B alone on the mean cross-entropy, with plain loops in float64."""
    for _ in range(steps):
        slope = np.zeros_like(weight)
        for x, y in zip(features.astype(float), labels, strict=True):
            scores = x @ (weight + 2.0 * down @ up) + bias
            p = np.exp(scores - scores.max())
            p /= p.sum()
            p[y] -= 1
            slope += np.outer(x, p) / len(labels)
        down, up = down - rate * 2.0 * slope @ up.T, up - rate * 2.0 * down.T @ slope
    return down, up


def test_a_dense_layer_is_a_loop_over_clients():
    rank = 1
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(3), [4, 9, 6])
    labels = rng.integers(0, 3, len(clients))
    features = (rng.normal(size=(len(clients), 5)) + labels[:, None]).astype(np.float32)
    head = ft.random_head(5, 3, key=KEY)
    model = ft.lora(ft.linear_model(head), rank, key=KEY, scale=2.0)
    np.testing.assert_array_equal(model(features), ft.linear_model(head)(features))
    (pair,) = model.trained["added"].values()
    assert sum(x.size for x in jax.tree.leaves(model.trained)) == rank * (5 + 3)
    down, up = (np.asarray(pair[name], float) for name in ("down", "up"))
    assert not up.any()
    assert np.linalg.matrix_rank(down) == rank
    weight, bias = np.asarray(head.weight, float), np.asarray(head.bias, float)
    algorithm = ft.fedavg(model, 0.3, steps=3, batch_size=9)
    done = run(algorithm, features, labels, clients, key=KEY, rounds=2)
    assert done.history[0]["bytes_up"] == 3 * 4 * (rank * (5 + 3) + 1)
    share = np.bincount(clients) / len(clients)
    for _ in range(2):
        own = [clients == client for client in range(3)]
        ends = [low_rank_steps(weight, bias, down, up, features[k], labels[k], 0.3, 3) for k in own]
        down, up = (sum(s * end[i] for s, end in zip(share, ends, strict=True)) for i in (0, 1))
    np.testing.assert_allclose(done.result.weight, weight + 2.0 * down @ up, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(done.result.bias, bias)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [RESNET, VIT], ids=lambda spec: spec.name)
def test_layers_of_a_network_change_by_low_rank_and_nothing_else_does(spec):
    network = backbone(spec)
    params = network.init(KEY)
    head = ft.random_head(network.num_features, 3, key=KEY)
    images = jnp.asarray(np.random.default_rng(0).integers(0, 255, (6, 16, 16, 3)), jnp.uint8)
    whole = ft.network_model(network, params, head, preprocessing=LEVELS)
    model = ft.lora(whole, 2, key=KEY)
    np.testing.assert_array_equal(model(images), whole(images))
    algorithm = ft.fedavg(model, 0.05, steps=2, batch_size=3)
    done = run(algorithm, images, np.arange(6) % 3, np.arange(6) // 3, key=KEY, rounds=1)
    changed = 0
    before, after = (
        jax.tree_util.tree_flatten_with_path(p["params"])[0] for p in (params, done.result.feature_map.params)
    )
    for (path, old), (_, new) in zip(before, after, strict=True):
        if path[-1].key == "kernel":
            difference = np.asarray(new - old, float).reshape(-1, old.shape[-1])
            values = np.linalg.svd(difference, compute_uv=False)
            assert (values[2:] <= 1e-3 * values[0]).all()
            changed += values[0] > 0
        else:
            np.testing.assert_array_equal(old, new)
    assert changed == len(model.trained["added"])
    assert np.abs(done.result.head.weight - head.weight).max() > 0
    fixed = ft.lora(ft.network_model(network, params, head, train="backbone", preprocessing=LEVELS), key=KEY)
    assert not fixed.trained["whole"]
    assert ft.lora(whole, 2, key=KEY).scores == model.scores  # compiles nothing anew


def test_bad_input(untyped):
    model = ft.linear_model(ft.random_head(5, 3, key=KEY))
    with pytest.raises(ValueError, match="rank: expected an integer of at least 1, got 0"):
        ft.lora(model, 0, key=KEY)
    with pytest.raises(TypeError, match=r"model: expected a covfree.finetune.Model"):
        ft.lora(model.trained, key=KEY)
    bare = ft.Model({"head": model.trained}, (), (), model.features, model.scores)
    with pytest.raises(ValueError, match="model: expected layers, leaves named kernel or weight"):
        ft.lora(bare, key=KEY)
