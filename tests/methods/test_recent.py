"""STSA-E, FedRAN and ensembles, beyond the contracts: the papers' formulas, and what clients send."""

import dataclasses

import federations
import jax
import numpy as np
import oracle
import pytest
from precision import assert_close, assert_heads_close, x64
from sklearn.linear_model import LogisticRegression

import covfree
from covfree.data import load_digits
from covfree.methods import send_heads

KEY = jax.random.key(0)


def test_stsa_e_is_the_papers_formula_on_means_of_subsets():
    federation, ridge = federations.make(0).clean, 0.7
    method = covfree.stsa_e(ridge, 12, 3)
    with x64():
        rows = covfree.summarise(method, *federation, key=KEY)
        head = covfree.solve_rows(method, rows, num_classes=federations.CLASSES)
    kept = np.asarray(rows.count) > 0
    assert kept.sum() > len(oracle.client_rows(*federation))  # there are subsets
    table = [
        (np.asarray(x), int(n), int(y))
        for x, n, y in zip(rows.mean, rows.count, rows.label, strict=True)
        if n > 0
    ]
    assert_heads_close(head.head, oracle.stsa_e(table, federations.CLASSES, ridge), 1e-9)


def test_stsa_e_is_fedcof_in_random_features_but_for_norms_and_units():
    """γ(N − C) is λ where each class shows its spread, and columns of norm 1 are the same columns."""
    federation = federations.make(1).clean
    features = federation.with_features(federation.features.astype(np.float32))
    same = covfree.fit(
        covfree.fedcof(0.0, 3, head="ridge", scatter="both").with_feature_map(covfree.relu_features(12)),
        *features,
        key=KEY,
    )
    one = covfree.fit(covfree.stsa_e(0.0, 12, 3), *features, key=KEY)
    weight = np.asarray(one.head.weight)
    norms = np.linalg.norm(weight, axis=0)
    assert_close(weight / np.where(norms > 0, norms, 1), same.head.weight, 2e-3)


def test_fedran_with_all_directions_is_ridge_regression():
    federation = federations.make(0).clean
    method = covfree.fedran(99, 0.7, 12)
    with x64():
        head = covfree.fit(method, *federation)
        mapped = federation.with_features(np.asarray(method.mapped(federation.features)))
    expected = oracle.afl(*mapped, federations.CLASSES, ridge=0.7)
    assert_heads_close(head.head, expected, 1e-9)


def test_fedran_makes_up_for_what_the_directions_leave_out():
    """Of few directions and a small λ, where the paper's head is a guess: 29 % and less."""
    data = load_digits(seed=0)
    scaled = 10 * data.train_features, data.train_labels, np.arange(len(data.train_labels)) % 5
    method = covfree.fedran(num_features=300)
    rows = covfree.summarise(method, *scaled)

    def accuracy(rows):
        head = covfree.solve_rows(method, rows, num_classes=10)
        return float(covfree.evaluate(head, 10 * data.test_features, data.test_labels))

    paper = dataclasses.replace(rows, covariance=np.zeros_like(rows.covariance))
    assert accuracy(rows) > 0.85 > accuracy(paper) + 0.3


def test_fedran_does_not_add_up_what_many_clients_leave_out():
    """A hundred clients leave out different directions: with the sum of all c_k the head is at 89 %."""
    data = load_digits(seed=0)
    clients = np.arange(len(data.train_labels)) % 100
    head = covfree.fit(covfree.fedran(4, num_features=300), data.train_features, data.train_labels, clients)
    assert float(covfree.evaluate(head, data.test_features, data.test_labels)) > 0.955


def test_fedran_beyond_float32_is_an_error():
    """More directions than features: an infinite shift was a head of zeros."""
    x = np.float32(1e10) * np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    with pytest.raises(ValueError, match="holds nan"):
        covfree.fit(covfree.fedran(4, num_features=12), x, np.arange(200) % 3, np.arange(200) % 8)


def test_fedrans_sums_have_the_form_that_servers_have_stored():
    """A server between machines goes on from the totals of another version."""
    x, k = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32), np.arange(12) % 2
    method = covfree.fedran(2, num_features=8)
    rows = covfree.summarise(method, x, np.arange(12) % 3, k)
    ((*_, left_out),) = covfree.accumulate(method, rows, num_classes=3)
    assert [np.shape(leaf) for leaf in left_out] == [(), ()]


def test_fedran_in_float64_knows_no_scale():
    rng = np.random.default_rng(0)
    x, y, k = rng.normal(size=(90, 5)), np.arange(90) % 3, np.arange(90) % 6
    with x64():
        expected, *found = (
            s * np.asarray(covfree.fit(covfree.fedran(2, 0.7 * s * s, 12), s * x, y, k).head.weight)
            for s in (1.0, 1e-18, 1e17)
        )
    for weight in found:
        assert_close(weight, expected, 1e-9)


@pytest.mark.usefixtures("untyped")
def test_fedrans_server_bounds_all_squares_that_a_client_claims():
    method = covfree.fedran(2, num_features=8)
    features = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    message = covfree.client_message(method, features, np.arange(9) % 2, num_classes=2)
    most = float(np.sqrt(np.square(np.asarray(method.mapped(features))).sum(1).max()))
    assert not covfree.collect({"a": message}, num_classes=2, max_norm=most).rejected
    rows = dataclasses.replace(message.rows, covariance=1000 * message.rows.covariance)
    more = dataclasses.replace(message, rows=rows)
    assert "squares that sum to" in covfree.collect({"a": more}, num_classes=2, max_norm=most).rejected["a"]
    for wrong, text in ((-1, "expected variances of at least 0"), (np.nan, "expected finite")):
        rows = dataclasses.replace(message.rows, covariance=np.full_like(message.rows.covariance, wrong))
        bad = dataclasses.replace(message, rows=rows)
        assert text in covfree.collect({"a": bad}, num_classes=2).rejected["a"]
    with pytest.raises(ValueError, match="expected a variance beside the rows"):
        covfree.solve_rows(method, dataclasses.replace(message.rows, covariance=None), num_classes=2)


def logistic_heads(federation, l2):
    """scikit-learn's solution of each client's problem: {client: (classes, weight [d, C_k], bias)}."""
    heads = {}
    for k in sorted(set(federation.clients.tolist())):
        mine = federation.clients == k
        x, y = federation.features[mine], federation.labels[mine]
        classes = sorted(set(y.tolist()))
        if len(classes) == 1:
            heads[k] = classes, np.zeros((x.shape[1], 1)), np.zeros(1)
            continue
        centre, spread = x.mean(0), np.sqrt(x.var(0).mean())
        peer = LogisticRegression(C=1 / (l2 * len(y)), tol=1e-10, max_iter=10_000)
        peer.fit((x - centre) / spread, y)
        weight, bias = peer.coef_, peer.intercept_
        if len(classes) == 2:  # it keeps the difference of the two, of half the penalty each
            peer = LogisticRegression(C=2 / (l2 * len(y)), tol=1e-10, max_iter=10_000)
            peer.fit((x - centre) / spread, y)
            weight = np.concatenate([-peer.coef_, peer.coef_]) / 2
            bias = np.concatenate([-peer.intercept_, peer.intercept_]) / 2
        weight = weight.T / spread
        heads[k] = classes, weight, bias - centre @ weight
    return heads


@pytest.mark.slow
def test_clients_of_an_ensemble_send_their_logistic_regression_and_the_average_follows():
    federation, l2 = federations.make(0).clean, 0.05
    heads = logistic_heads(federation, l2)
    tests = federation.features[:20] + 0.1
    count = {
        k: [int(((federation.clients == k) & (federation.labels == c)).sum()) for c in classes]
        for k, (classes, _, _) in heads.items()
    }
    num_classes, total = federations.CLASSES, len(federation.labels)
    probabilities = np.zeros((20, num_classes))
    for k, (classes, weight, bias) in heads.items():
        own = tests @ weight + bias
        share = np.exp(own - own.max(1, keepdims=True))
        share = share / share.sum(1, keepdims=True)
        for place, c in enumerate(classes):
            probabilities[:, c] += sum(count[k]) / total * share[:, place]
    with x64():
        method = covfree.ensemble(l2=l2)
        rows = covfree.summarise(method, *federation)
        found = np.asarray(covfree.solve_rows(method, rows, num_classes=num_classes)(tests))
    expected = np.concatenate(
        [np.concatenate([weight.T, bias[:, None]], 1) for _, weight, bias in heads.values()]
    )
    kept = np.asarray(rows.count) > 0
    assert_close(np.asarray(rows.mean)[kept], expected, 1e-4)
    labels = [c for classes, _, _ in heads.values() for c in classes]
    assert np.asarray(rows.label)[kept].tolist() == labels
    absent = np.bincount(federation.labels, minlength=num_classes) == 0
    assert np.isneginf(found[:, absent]).all()
    np.testing.assert_allclose(np.exp(found), probabilities, atol=1e-4)
    np.testing.assert_allclose(np.exp(found).sum(1), 1)


@pytest.mark.usefixtures("untyped")
def test_what_an_ensemble_is_not_for():
    rows = covfree.Rows(np.ones((2, 3), np.float32), np.array([2, 2]), np.array([0, 1]), np.array([0, 0]))
    with pytest.raises(ValueError, match="method: expected one whose clients send means, got 'ensemble'"):
        covfree.diagnose(rows, num_classes=2, method=covfree.ensemble())
    with pytest.raises(ValueError, match="l2: expected a finite number of at least 0"):
        send_heads(-1.0)
