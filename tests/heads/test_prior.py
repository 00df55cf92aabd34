"""Class embeddings as a prior: GDA-CLIP's formula in NumPy, and classes without an example."""

import jax
import numpy as np
import oracle
import pytest
from precision import x64

import covfree

CLASSES, DIM, NEW = 4, 5, 2


def examples():
    """Features of norm 1 of all classes but one, and embeddings of all of them."""
    rng = np.random.default_rng(0)
    labels = rng.choice([c for c in range(CLASSES) if c != NEW], 90).astype(np.int32)
    prior = rng.normal(size=(CLASSES, DIM))
    features = prior[labels] + rng.normal(size=(90, DIM)) * np.linspace(0.3, 1.5, DIM)
    return (
        features / np.linalg.norm(features, axis=1, keepdims=True),
        labels,
        prior / np.linalg.norm(prior, axis=1, keepdims=True),
    )


def gda_clip(features, labels, prior, strength, scale):
    """Scores 100 zᵀt_c + α(μ_cᵀPz − ½ μ_cᵀPμ_c), P = d[(n − 1)Σ̂ + tr(Σ̂)I]⁻¹; a new class has its prior and
    the mean of all. N − C stands for n − 1, here as in Σ̂."""
    mean = np.stack([features[labels == c].mean(0) if c != NEW else features.mean(0) for c in range(CLASSES)])
    centred = features - mean[labels]
    degrees = len(features) - len(set(labels.tolist()))
    covariance = centred.T @ centred / degrees
    precision = DIM * np.linalg.inv(degrees * covariance + np.trace(covariance) * np.eye(DIM))
    evidence = features @ precision @ mean.T - 0.5 * np.einsum("ci,ij,cj->c", mean, precision, mean)
    return scale * features @ prior.T + strength * evidence


def test_exact_scatter_equals_the_papers_formula():
    features, labels, prior = examples()
    with x64():
        method = covfree.fedcof_oracle(covfree.empirical_bayes(), head=covfree.gda_head)
        head = covfree.fit(method, features, labels, np.arange(90) % 7, num_classes=CLASSES)
        assert np.asarray(head.present).tolist() == [1, 1, 0, 1]
        sweep = jax.vmap(lambda alpha: covfree.with_prior_means(head, prior, alpha, scale=20.0)(features))
        found = np.asarray(sweep(np.array([0.0, 0.3, 5.0])))
    for scores, alpha in zip(found, (0.0, 0.3, 5.0), strict=True):
        expected = gda_clip(features, labels, prior, alpha, 20.0)
        # A term that all classes share does not matter.
        expected, scores = (x - x[:, :1] for x in (expected, scores))
        np.testing.assert_allclose(scores, expected, atol=1e-9)
    assert (found[1].argmax(-1) == NEW).any()  # a class without examples is predicted


def test_class_means_alone_estimate_the_scatter():
    """FedCOF's Σ̂ and its degrees of freedom in the place of the exact ones."""
    features, labels, _ = examples()
    clients = np.arange(90) % 7
    rows = oracle.client_rows(features, labels, clients)
    degrees = oracle.spread_degrees(rows, CLASSES)
    covariance = sum(
        oracle.spread(rows, c, oracle.moments(rows, CLASSES)[2][c]) for c in range(CLASSES) if c != NEW
    )
    covariance = covariance / degrees
    count, _, mean = oracle.moments(rows, CLASSES)
    shrunk = (degrees * covariance + np.trace(covariance) * np.eye(DIM)) / DIM
    with x64():
        method = covfree.fedcof(covfree.empirical_bayes(), weighting="pooled", head=covfree.gda_head)
        head = covfree.fit(method, features, labels, clients, num_classes=CLASSES)
    centre = count @ mean / count.sum()
    weight = np.linalg.solve(shrunk, (mean - centre).T)
    held = count > 0
    np.testing.assert_allclose(np.asarray(head.weight)[:, held], weight[:, held], atol=1e-9)
    bias = -0.5 * ((mean + centre).T * weight).sum(0)
    np.testing.assert_allclose(np.asarray(head.bias), np.where(held, bias, 0), atol=1e-9)


@pytest.mark.usefixtures("untyped")
def test_bad_arguments_are_named():
    features, labels, prior = examples()
    head = covfree.LinearHead(np.zeros((DIM, CLASSES)), np.zeros(CLASSES))
    with pytest.raises(ValueError, match=r"prior_means: expected shape \[4, 5\], a row for each class"):
        covfree.with_prior_means(head, prior.T)
    with pytest.raises(ValueError, match="strength: expected a finite number of at least 0, got -1"):
        covfree.with_prior_means(head, prior, -1)
    mapped = covfree.fit(covfree.fedran(2, num_features=8), np.float32(features), labels, labels * 0)
    with pytest.raises(TypeError, match="head: expected a LinearHead, got MappedHead"):
        covfree.with_prior_means(mapped, prior)


@pytest.mark.usefixtures("untyped")
def test_what_is_no_prior_is_named_and_absent_classes_have_it_alone():
    weight = np.ones((2, 3), np.float32)
    head = covfree.LinearHead(weight, np.ones(3, np.float32), np.array([1, 0, 1], np.float32))
    prior = np.arange(6, dtype=np.float32).reshape(3, 2)
    scores = covfree.with_prior_means(head, prior, 2.0, scale=1.0)(np.ones(2, np.float32))
    np.testing.assert_allclose(scores, prior.sum(1) + 2.0 * 3 * np.array([1, 0, 1]))
    with pytest.raises(TypeError, match="prior_means: expected floats, got bool"):
        covfree.with_prior_means(head, prior > 0)
    with pytest.raises(ValueError, match="prior_means: expected finite numbers"):
        covfree.with_prior_means(head, prior * np.nan)
