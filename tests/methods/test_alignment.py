"""Alignment of clients: the barycentre's equation, closed forms, and where the clients' features end up."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from precision import x64

import covfree
from covfree import alignment
from covfree.methods.field.alignment import Gaussian

DIM, RANK, CLIENTS, SIZE = 6, 4, 3, 60


def examples():
    """Clients with another mean and another covariance each, in an order that mixes them."""
    rng = np.random.default_rng(0)
    clients = rng.permutation(np.repeat([3, 8, 11], [40, 60, 80]))
    mixing = {k: np.eye(DIM) + 0.4 * rng.normal(size=(DIM, DIM)) for k in (3, 8, 11)}
    offset = {k: rng.normal(size=DIM) for k in (3, 8, 11)}
    drawn = rng.normal(size=(len(clients), DIM))
    features = np.stack([x @ mixing[k] + offset[k] for x, k in zip(drawn, clients, strict=True)])
    return features, clients, np.linalg.qr(rng.normal(size=(DIM, RANK)))[0]


def root(matrix):
    return np.real(scipy.linalg.sqrtm(matrix))


def gaussians(covariances, counts=(40, 60, 80)):
    means = np.arange(CLIENTS * RANK, dtype=float).reshape(CLIENTS, RANK)
    return Gaussian(jnp.asarray(means), jnp.asarray(covariances), jnp.asarray(counts))


def drawn_covariances():
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(CLIENTS, RANK, 9)) * rng.uniform(0.3, 3, size=(CLIENTS, RANK, 1))
    return factors @ factors.transpose(0, 2, 1)


def test_barycentre_solves_its_equation():
    covariances, share = drawn_covariances(), np.array([40, 60, 80]) / 180
    with x64():
        found = alignment.barycentre(gaussians(covariances))
    matrix = np.asarray(found.covariance)
    outer = root(matrix)
    right = sum(w * root(outer @ c @ outer) for w, c in zip(share, covariances, strict=True))
    np.testing.assert_allclose(matrix, right, atol=1e-8)
    np.testing.assert_allclose(found.mean, share @ np.asarray(gaussians(covariances).mean))
    assert int(found.count) == 180
    # Another weighting is another barycentre.
    with x64():
        other = alignment.barycentre(replace(gaussians(covariances), count=jnp.ones(CLIENTS)))
    assert np.abs(np.asarray(other.covariance) - matrix).max() > 0.01


def test_barycentre_of_commuting_covariances_in_closed_form():
    basis = np.linalg.qr(np.random.default_rng(2).normal(size=(RANK, RANK)))[0]
    values = np.array([[1.0, 4.0, 9.0, 0.0], [4.0, 1.0, 0.25, 0.0], [1.0, 1.0, 1.0, 0.0]])  # one is singular
    covariances = np.stack([basis * v @ basis.T for v in values])
    with x64():
        found = alignment.barycentre(gaussians(covariances, (1, 1, 2)))
    expected = np.array([0.25, 0.25, 0.5]) @ np.sqrt(values)
    np.testing.assert_allclose(found.covariance, basis * expected**2 @ basis.T, atol=1e-9)


def test_clients_send_mean_and_ledoit_wolf_covariance():
    features, clients, basis = examples()
    mine = features[clients == 3]
    with x64():
        sent = alignment.client_gaussian(mine, basis)
    inside = mine @ basis
    np.testing.assert_allclose(sent.mean, inside.mean(0))
    scatter = np.cov(inside.T)
    degrees, trace = len(mine) - 1, np.trace(scatter)
    fourth = (np.square(inside - inside.mean(0)).sum(1) ** 2).sum() / degrees**2
    weight = (fourth - (scatter**2).sum() / degrees) / ((scatter**2).sum() - trace**2 / RANK)
    assert 0.01 < weight < 0.99
    expected = (1 - weight) * scatter + weight * trace / RANK * np.eye(RANK)
    np.testing.assert_allclose(sent.covariance, expected, atol=1e-10)
    one = alignment.client_gaussian(mine[:1], basis)
    assert not np.asarray(one.covariance).any()


def test_aligned_clients_have_the_barycentres_mean_and_covariance():
    features, clients, basis = examples()
    with x64():
        found = covfree.align(features, clients, basis)
        moved = np.asarray(found(features, clients))
        half = np.asarray(covfree.align(features, clients, basis, 0.5)(features, clients))
    target = found.target
    outside = np.eye(DIM) - basis @ basis.T
    np.testing.assert_allclose(moved @ outside, features @ outside, atol=1e-10)
    np.testing.assert_allclose(half, (features + moved) / 2)
    sent = []
    for place, k in enumerate((3, 8, 11)):
        mine = clients == k
        inside = moved[mine] @ basis
        np.testing.assert_allclose(inside.mean(0), target.mean, atol=1e-9)
        # The map takes what the client sent, its shrunk covariance, to the barycentre's.
        with x64():
            sent.append(alignment.client_gaussian(features[mine], basis))
            # A client by itself makes the same map.
            alone = jax.jit(alignment.affine_map(sent[-1], target, basis))(jnp.asarray(features[mine]))
        matrix = np.asarray(found.maps.matrix[place])
        covariance = np.asarray(sent[-1].covariance)
        np.testing.assert_allclose(matrix @ covariance @ matrix, target.covariance, atol=1e-9)
        np.testing.assert_allclose(alone, moved[mine], atol=1e-9)
        # So far as shrinkage changed nothing, these are those of the features too.
        np.testing.assert_allclose(np.cov(inside.T), target.covariance, atol=0.5)
    with x64():
        whole = alignment.barycentre(jax.tree.map(lambda *x: jnp.stack(x), *sent))
    np.testing.assert_allclose(whole.covariance, target.covariance, atol=1e-9)
    found = covfree.align(np.float32(features), clients, np.float32(basis))
    single = np.asarray(found(np.float32(features), clients))
    np.testing.assert_allclose(single, moved, atol=1e-3)


def test_examples_of_nobody_stay_and_those_of_strangers_are_an_error():
    features, clients, basis = (np.asarray(x) for x in examples())
    padded = np.where(np.arange(len(clients)) < 5, -1, clients)
    found = covfree.align(np.float32(features), padded, np.float32(basis))
    assert found.client.tolist() == [3, 8, 11]
    np.testing.assert_array_equal(found(np.float32(features), padded)[:5], np.float32(features[:5]))
    with pytest.raises(ValueError, match="clients: expected clients with a map, got 4; a new client"):
        found(np.float32(features), np.where(clients == 8, 4, clients))


def test_a_client_without_examples_weighs_nothing():
    """Its mean of nothing is NaN."""
    some = gaussians(drawn_covariances().astype(np.float32))
    nothing = jax.tree.map(lambda x: jnp.full((1, *x.shape[1:]), jnp.nan), some)
    nothing = replace(nothing, count=jnp.zeros(1, some.count.dtype))
    both = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), nothing, some)
    for x, y in zip(*(jax.tree.leaves(alignment.barycentre(each)) for each in (both, some)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    # The features that it may be asked for later stay where they are.
    features, _, basis = (np.asarray(x, np.float32) for x in examples())
    own, target = (alignment.client_gaussian(features[:n], basis) for n in (0, len(features)))
    np.testing.assert_allclose(alignment.affine_map(own, target, basis)(features), features, atol=1e-6)


def test_a_client_of_one_example_is_moved_to_the_barycentres_mean():
    features, clients, basis = examples()
    clients = np.where(np.arange(len(clients)) == 7, 99, clients)
    found = covfree.align(np.float32(features), clients, np.float32(basis))
    moved = np.asarray(found(np.float32(features), clients))
    assert np.isfinite(moved).all()
    np.testing.assert_allclose(moved[7] @ basis, found.target.mean, atol=1e-5)


@pytest.mark.slow
def test_alignment_undoes_domains_before_any_method():
    """A domain that is sheared and moved towards other classes: aligned, one linear head serves both."""
    rng = np.random.default_rng(3)
    labels, clients = rng.integers(0, 3, 600), np.arange(600) % 2
    features = rng.normal(size=(600, 5)) + 4 * np.eye(3, 5)[labels]
    turned = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    other = features @ (turned * np.array([0.3, 0.6, 1, 2, 4]) @ turned.T) + 6 * np.array([1, -1, 0, 0, 0])
    features = np.float32(np.where(clients[:, None] == 0, features, other))
    rows = covfree.Rows.from_examples(features, labels)
    found = covfree.align(features[:400], clients[:400], alignment.principal_basis(rows, 5))
    moved = found(features, clients)

    def accuracy(values):
        head = covfree.fit(covfree.fedcgs(), values[:400], labels[:400], clients[:400])
        return float(covfree.evaluate(head, values[400:], labels[400:]))

    assert accuracy(moved) > 0.9 > accuracy(features) + 0.1


def test_principal_basis_is_that_of_the_rows():
    features, clients, _ = examples()
    mean, count = np.float32(features[:8]), clients[:8]
    rows = covfree.Rows(mean, count, np.arange(8) % 3)
    basis = np.asarray(alignment.principal_basis(rows, 2))
    centred = np.sqrt(count)[:, None] * (mean - count @ mean / count.sum())
    _, _, right = np.linalg.svd(centred)
    np.testing.assert_allclose(basis @ basis.T, right[:2].T @ right[:2], atol=1e-4)
    with pytest.raises(ValueError, match="num_components: expected at most 6"):
        alignment.principal_basis(rows, 7)


@pytest.mark.usefixtures("untyped")
def test_bad_arguments_are_named():
    features, clients, basis = examples()
    align = partial(covfree.align, features, clients)
    with pytest.raises(ValueError, match=r"basis: expected shape \[6, rank\]"):
        align(basis.T)
    own = alignment.client_gaussian(features, basis)
    for make in (align, partial(alignment.affine_map, own, own)):
        with pytest.raises(ValueError, match=r"strength: expected a number in \[0, 1\], got 1\.5"):
            make(basis, 1.5)
    with pytest.raises(ValueError, match=r"own: expected a mean and a covariance of rank 4, .*\[6\]"):
        alignment.affine_map(replace(own, mean=jnp.zeros(6)), own, basis)
    with pytest.raises(ValueError, match="clients: expected a client of 0 or above"):
        covfree.align(features, -1 - clients, basis)
    with pytest.raises(ValueError, match=r"gaussians: expected means \[clients, rank\]"):
        alignment.barycentre(own)
    with pytest.raises(ValueError, match=r"basis: expected orthonormal columns, .* differs from I by 8"):
        align(3 * basis)
    features[5] = np.nan
    with pytest.raises(ValueError, match=rf"features: row 5 of client {clients[5]} .* holds nan"):
        align(basis)


def test_half_precision_features_are_moved_in_float32():
    features, clients, basis = examples()
    basis = jnp.asarray(basis, jnp.float32)
    half = jnp.asarray(features, jnp.bfloat16)
    moved = covfree.align(half, clients, basis)(half, clients)
    assert moved.dtype == jnp.float32
    single = half.astype(jnp.float32)
    np.testing.assert_allclose(moved, covfree.align(single, clients, basis)(single, clients), atol=0.05)


def test_the_strength_may_be_swept():
    features, clients, basis = examples()
    strengths = jnp.array([0.0, 0.5])
    swept = jax.vmap(lambda s: covfree.align(features, clients, basis, s)(features, clients))(strengths)
    np.testing.assert_allclose(swept[0], features, rtol=1e-5)
    whole = covfree.align(features, clients, basis)(features, clients)
    np.testing.assert_allclose(swept[1], (features + whole) / 2, atol=1e-4)


@pytest.mark.parametrize("exponent", [-50, 50])
def test_aligned_features_are_the_same_in_any_unit(exponent):
    """Fourth powers of what is beyond 1e±10 leave float32, products of covariances too."""
    features, clients, basis = (np.asarray(x) for x in examples())
    features, basis, unit = np.float32(features), np.float32(basis), np.float32(2.0**exponent)
    found, other = (covfree.align(x, clients, basis) for x in (features, features * unit))
    moved = np.asarray(other(features * unit, clients)) / unit
    np.testing.assert_allclose(moved, found(features, clients), rtol=1e-5, atol=1e-5)
    assert found.maps.basis.shape == basis.shape  # one for all
    own, target = (alignment.client_gaussian(x * unit, basis) for x in (features[:40], features))
    alone = alignment.affine_map(own, alignment.barycentre(jax.tree.map(lambda x: x[None], target)), basis)
    own, target = (alignment.client_gaussian(x, basis) for x in (features[:40], features))
    np.testing.assert_allclose(alone.matrix, alignment.affine_map(own, target, basis).matrix, atol=1e-4)
