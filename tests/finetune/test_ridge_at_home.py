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


def test_a_client_predicts_a_class_that_the_head_lacks_if_it_has_it():
    known = LABELS < 2
    head = covfree.fit(covfree.afl(), FEATURES[known], LABELS[known], CLIENTS[known], num_classes=3)
    models = finetune.ridge_at_home(head, FEATURES, LABELS, CLIENTS)
    has = finetune.client_classes(LABELS, CLIENTS, num_classes=3)
    scores = [np.asarray(models.of(client)(FEATURES)) for client in range(4)]
    assert [own[:, 2].max() > -1e8 for own in scores] == has[:, 2].tolist() == [True, False, True, True]
    assert 2 in scores[0].argmax(1)


def test_bad_arguments_are_named():
    for given, error, text in (
        ((FEATURES, LABELS + 1, CLIENTS), ValueError, "labels: row .* expected labels below num_classes = 3"),
        ((FEATURES, LABELS.astype(float), CLIENTS), TypeError, "labels: expected integers"),
        ((FEATURES, LABELS[:5], CLIENTS), ValueError, "labels: expected shape"),
        ((FEATURES * np.nan, LABELS, CLIENTS), ValueError, "features: row 0"),
        ((FEATURES, LABELS, CLIENTS + 2**40), ValueError, "clients: expected numbers from 0"),
        ((FEATURES, LABELS, CLIENTS.astype(str)), TypeError, "clients: expected integers"),
    ):
        with pytest.raises(error, match=text):
            finetune.ridge_at_home(HEAD, *given)
    head = covfree.GaussianHead(np.zeros((3, 6)), np.ones(6), np.zeros(3))
    with pytest.raises(TypeError, match="head: expected a LinearHead, got GaussianHead"):
        finetune.ridge_at_home(head, FEATURES, LABELS, CLIENTS)
    with pytest.raises(ValueError, match="features: expected dim 6 of the head, got 5"):
        finetune.ridge_at_home(HEAD, FEATURES[:, :5], LABELS, CLIENTS)
    with pytest.raises(ValueError, match="clients: expected examples of a client at least"):
        finetune.ridge_at_home(HEAD, FEATURES, LABELS, np.full(24, -1))
