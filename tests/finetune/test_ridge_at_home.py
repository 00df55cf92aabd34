"""Ridge regression at each client against its formula, with examples left out in turn."""

import numpy as np
import pytest

import covfree
from covfree import finetune
from covfree.finetune.baselines.ridge_at_home import EQUAL, RATIOS

RNG = np.random.default_rng(0)
CLIENTS = np.repeat([0, 2, 3], [9, 1, 14])
LABELS = np.where(RNG.random(24) < 0.7, CLIENTS % 2, RNG.integers(0, 3, 24))
FEATURES = (RNG.normal(size=(24, 6)) + 1.5 * np.eye(3, 6)[LABELS] + 0.5).astype(np.float32)
HEAD = covfree.LinearHead(RNG.normal(size=(6, 3)).astype(np.float32), np.array([0.1, -0.2, 0.3], np.float32))


def at_home(features, labels):
    """The client's weights in float64, by solving anew without each example."""
    weight, bias = np.float64(HEAD.weight), np.float64(HEAD.bias)
    targets = np.eye(3)[labels] - bias

    def solved(kept, penalty):
        own = features[kept]
        system = own.T @ own + penalty * np.eye(6)
        return np.linalg.solve(system, own.T @ targets[kept] + penalty * weight)

    scale = (features**2).sum(1).mean()
    every = np.arange(len(labels))
    errors = np.zeros(len(RATIOS))
    for number, ratio in enumerate(RATIOS):
        for i in every:
            missed = features[i] @ solved(every != i, ratio * scale) - targets[i]
            errors[number] += (missed**2).sum()
    best = int(np.argmax(errors <= (1 + EQUAL) * errors.min()))
    return solved(every >= 0, RATIOS[best] * scale)


def test_each_client_has_the_ridge_of_its_own_with_the_least_error_on_what_is_left_out():
    order = RNG.permutation(26)
    # Padding of either kind changes nothing.
    features = np.concatenate([FEATURES, FEATURES[:2] * 7])[order]
    labels, clients = np.append(LABELS, [-1, 0])[order], np.append(CLIENTS, [0, -1])[order]
    models = finetune.ridge_at_home(HEAD, features, labels, clients)
    assert models.num_clients == 4
    for client in (0, 2, 3):
        own = client == CLIENTS
        expected = at_home(np.float64(FEATURES[own]), LABELS[own])
        np.testing.assert_allclose(models.of(client).trained.weight, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(models.of(1).trained.weight, HEAD.weight)
    expected = FEATURES @ np.asarray(models.of(3).trained.weight) + np.asarray(HEAD.bias)
    np.testing.assert_allclose(models.result(3)(FEATURES), expected, rtol=1e-4, atol=1e-4)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="features: expected dim 6 of the head, got 5"):
        finetune.ridge_at_home(HEAD, FEATURES[:, :5], LABELS, CLIENTS)
    with pytest.raises(ValueError, match="clients: expected examples of a client at least"):
        finetune.ridge_at_home(HEAD, FEATURES, LABELS, np.full(24, -1))
