"""GH-OFL's trained heads: the subspace by the paper's matrix roots, and where training leads, by SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from scipy.special import logsumexp
from variants import slow

import covfree
from covfree.core.linalg import Scatter
from covfree.core.types import Moments
from covfree.heads.fisher import fisher_directions

CLASSES, DIM, SIZE = 4, 5, 400
RNG = np.random.default_rng(2)
LABELS = np.repeat(np.arange(3), [200, 120, 80])  # nobody holds the last class
ROOTS = [np.linalg.qr(RNG.normal(size=(DIM, DIM)))[0] * s for s in ([3, 1, 1, 1, 0.5], [1, 2, 1, 0.5, 2], 1)]
FEATURES = np.vstack(
    [
        RNG.normal(size=(n, DIM)) @ root + m
        for n, root, m in zip((200, 120, 80), ROOTS, RNG.normal(size=(3, DIM)), strict=True)
    ]
)
CLIENTS = RNG.integers(0, 7, SIZE)


def fit(method):
    return covfree.fit(method, FEATURES.astype(np.float32), LABELS, CLIENTS, num_classes=CLASSES)


def statistics(gamma=0.05 / 0.95):
    """Means, priors, class covariances and S_W of the classes that there are, by loops."""
    own = [FEATURES[c == LABELS] for c in range(3)]
    mean = np.array([x.mean(0) for x in own])
    prior = np.array([len(x) for x in own]) / SIZE
    scatters = [(x - x.mean(0)).T @ (x - x.mean(0)) for x in own]
    pooled = sum(scatters) / (SIZE - 3)
    within = pooled + gamma * np.trace(pooled) / DIM * np.eye(DIM)
    return mean, prior, [s / (len(x) - 1) for s, x in zip(scatters, own, strict=True)], within


def paper_subspace(mean, prior, within):
    """S_W^{−½} eig(S_W^{−½} S_B S_W^{−½})."""
    away = mean - prior @ mean
    between = sum(p * np.outer(a, a) for p, a in zip(prior, away, strict=True))
    root = np.linalg.inv(scipy.linalg.sqrtm(within).real)
    _, vectors = np.linalg.eigh(root @ between @ root)
    return root @ vectors[:, -2:]


def scores(head):
    """Differences between the classes that there are."""
    found = np.asarray(head(FEATURES.astype(np.float32)))[:, :3]
    return found - found.mean(1, keepdims=True)


def test_the_subspace_is_that_of_the_papers_roots():
    mean, prior, _, within = statistics()
    count = jnp.asarray([*np.round(SIZE * prior), 0], jnp.int32)
    total = jnp.asarray(np.vstack([SIZE * prior[:, None] * mean, np.zeros(DIM)]), jnp.float32)
    directions = fisher_directions(
        Scatter.from_matrix(jnp.asarray(within, jnp.float32)), Moments(count, count, total)
    )
    expected = paper_subspace(mean, prior, within)
    np.testing.assert_allclose(directions @ directions.T, expected @ expected.T, atol=1e-4)
    np.testing.assert_allclose(expected.T @ within @ expected, np.eye(2), atol=1e-8)


@pytest.mark.slow
def test_all_distilled_is_linear_discriminant_analysis():
    """In the Fisher subspace spherical naive Bayes is LDA too, so that the paper's mixture of them is LDA."""
    mean, prior, _, within = statistics()
    weight = np.linalg.solve(within, mean.T)
    expected = FEATURES @ weight - 0.5 * (mean.T * weight).sum(0) + np.log(prior)
    head = fit(covfree.proto_hyper(300, 1, distilled=1.0))
    np.testing.assert_allclose(scores(head), expected - expected.mean(1, keepdims=True), atol=2e-3)
    # What is learned beside it is of the rank that was asked for.
    learned = fit(covfree.proto_hyper(300, 1, distilled=0.0))
    values = np.linalg.svd(np.asarray(learned.weight - head.weight), compute_uv=False)
    assert values[0] > 0.01
    assert (values > 1e-3 * values[0]).sum() == 1
    subspace = paper_subspace(mean, prior, within)
    gaps = FEATURES[:, None] @ subspace - mean[None] @ subspace  # NB: variance tr(VᵀS_WV)/q about the means
    variance = np.trace(subspace.T @ within @ subspace) / 2
    naive = -0.5 * (gaps**2).sum(2) / variance + np.log(prior)
    np.testing.assert_allclose(
        naive - naive.mean(1, keepdims=True), expected - expected.mean(1, keepdims=True), atol=1e-6
    )


def drawn(spread, number=20_000):
    """NumPy's own draws in the paper's subspace, as many of each class, the features there, LDA of both."""
    mean, prior, covariances, within = statistics()
    subspace = paper_subspace(mean, prior, within)
    rng = np.random.default_rng(0)
    z = np.vstack(
        [
            rng.multivariate_normal(m @ subspace, spread**2 * subspace.T @ s @ subspace, number)
            for m, s in zip(mean, covariances, strict=True)
        ]
    )
    taught = z @ (mean @ subspace).T - 0.5 * ((mean @ subspace) ** 2).sum(1) + np.log(prior)
    real = FEATURES @ subspace
    base = real @ (mean @ subspace).T - 0.5 * ((mean @ subspace) ** 2).sum(1) + np.log(prior)
    return z, np.repeat(np.arange(3), number), taught, real, base


def trained(loss_and_slope, z, real):
    """Scores z U + b that minimise a convex loss of the scores."""

    def function(flat):
        weight, bias = flat[:6].reshape(2, 3), flat[6:]
        value, slope = loss_and_slope(z @ weight + bias)
        return value, np.concatenate([(z.T @ slope).ravel(), slope.sum(0)])

    flat = scipy.optimize.minimize(function, np.zeros(9), jac=True, method="BFGS").x
    found = real @ flat[:6].reshape(2, 3) + flat[6:]
    return found - found.mean(1, keepdims=True)


def softmax(scores):
    return np.exp(scores - logsumexp(scores, axis=1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fishermix", "proto-hyper"])
def test_training_leads_where_scipy_finds_the_minimum(name):
    alpha, temperature = 0.6, 2.0
    z, labels, taught, real, base = drawn(0.75)
    truth = np.eye(3)[labels]

    def entropy(s):
        return -np.log((softmax(s) * truth).sum(1)).mean(), (softmax(s) - truth) / len(z)

    def distilled(residual):
        s = taught + residual
        t, p = softmax(taught / temperature), softmax(s / temperature)
        value, slope = entropy(s)
        divergence = temperature**2 * (t * np.log(t / p)).sum(1).mean()
        slope = alpha * temperature * (p - t) / len(z) + (1 - alpha) * slope
        return alpha * divergence + (1 - alpha) * value, slope

    if name == "fishermix":
        expected, method = trained(entropy, z, real), covfree.fishermix(20_000, l2=1e-7)
    else:
        expected = trained(distilled, z, real) + base - base.mean(1, keepdims=True)
        method = covfree.proto_hyper(20_000, l2=1e-7, distilled=alpha, temperature=temperature)
    found = scores(fit(method))
    # Both are of draws: their difference is that of a few per cent in the training's weights.
    assert np.abs(found - expected).mean() < 0.06 * np.abs(expected).mean()
    lda = base - base.mean(1, keepdims=True)
    assert np.abs(lda - expected).mean() > 0.1 * np.abs(expected).mean()


@pytest.mark.usefixtures("untyped")
def test_wrong_arguments():
    for build, message in (
        (lambda: covfree.fishermix(0), "num_samples: expected an integer of at least 1, got 0"),
        (lambda: covfree.fishermix(spread=0.0), r"spread: expected a finite number above 0, got 0\.0"),
        (
            lambda: covfree.fishermix(shrinkage=covfree.ledoit_wolf()),
            "shrinkage: expected a rule that needs only covariances",
        ),
        (
            lambda: fit(covfree.fishermix(CLASSES - 1)),
            f"num_samples: expected at least {CLASSES}, one of each",
        ),
        (lambda: covfree.proto_hyper(rank=0), "rank: expected an integer of at least 1, got 0"),
        (lambda: covfree.proto_hyper(distilled=1.5), r"distilled: expected a number in \[0, 1\], got 1\.5"),
        (lambda: covfree.proto_hyper(temperature=0), "temperature: expected a finite number above 0, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
    swept = jax.eval_shape(lambda t: fit(covfree.proto_hyper(30, temperature=t)), jnp.ones(()))
    assert swept.weight.shape == (DIM, CLASSES)


@pytest.mark.slow
def test_many_classes_keep_their_directions():
    """A cut that grows with the classes left 74 of 99 directions, and 25 of 1,000 classes."""
    rng, classes, dim = np.random.default_rng(4), 100, 128
    means = rng.normal(size=(classes, dim)) @ np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    means *= 5 / np.arange(1, dim + 1)
    moments = Moments(
        count=jnp.full(classes, 20),
        num_rows=jnp.full(classes, 20),
        total=jnp.asarray(20 * means, jnp.float32),
    )
    directions = np.asarray(fisher_directions(Scatter.from_matrix(jnp.eye(dim)), moments), float)
    projector = directions.T @ directions
    assert round(np.trace(projector)) == classes - 1
    np.testing.assert_allclose(projector @ projector, projector, atol=0.02)


@pytest.mark.parametrize("far", [1e4, *slow(1e3)])
def test_a_class_far_from_all_others_hides_no_direction(far):
    """The other classes are told apart as by LDA in float64; a cut of squares left 0.2 of them, or NaN."""
    rng = np.random.default_rng(0)
    labels, means = np.arange(SIZE) % 4, 4 * np.eye(4, DIM)
    means[3, DIM - 1] = far
    features = np.float32(rng.normal(size=(SIZE, DIM)) + means[labels])
    own = [np.float64(features[labels == c]) for c in range(4)]
    within = sum((x - x.mean(0)).T @ (x - x.mean(0)) for x in own) / (SIZE - 4)
    centres = np.array([x.mean(0) for x in own])
    scores = np.float64(features) @ np.linalg.solve(within, centres.T)
    scores -= 0.5 * (centres.T * np.linalg.solve(within, centres.T)).sum(0)
    expected = (scores.argmax(1) == labels).mean()
    assert expected > 0.97
    for method in (covfree.fishermix(2000), covfree.proto_hyper(2000)):
        head = covfree.fit(method, features, labels, CLIENTS)
        assert (np.asarray(head(features)).argmax(1) == labels).mean() > expected - 0.01
