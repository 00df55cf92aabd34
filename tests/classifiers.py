"""The registered methods as the tests run them, and what it means that two classifiers are the same."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from federations import CLASSES, DIM
from precision import FLOAT32, assert_close, assert_heads_close

import covfree
from covfree.methods import registry

KEY = jax.random.key(0)
# Methods of a single message from each client; the others are tested in tests/methods/test_refined.py and
# tests/methods/test_deepafl_safle.py.
ONE_SHOT = [name for name, entry in registry().items() if entry.make().one_shot]
# Methods as a table would run them, by the numbers that they accept; "auto" is a rule, not a formula, and
# has no oracle, so where a shrinkage is accepted one is given.
NUMBERS = {"shrinkage": 0.4, "ridge": 0.7}
SIZES = {"num_features": 24, "num_directions": 2}
# One subset, so that its clients draw nothing (more in tests/methods/test_recent.py); no γ, as published.
OWN = {"stsa-e": {"num_subsets": 1}, "fedcgs": {"shrinkage": 0.0}}
# Functions of (features, labels, clients, num_classes), which give (weight, bias) or a function to scores.
# Where a method maps features, of what the map gives.
ORACLES = {
    "fedncm": oracle.fedncm,
    "fed3r": partial(oracle.fed3r, ridge=0.7),
    "fed3r-within": partial(oracle.fed3r, ridge=0.7, scatter="within"),
    "afl": partial(oracle.afl, ridge=0.7),
    "fedcgs": oracle.fedcgs,
    "fedcof": partial(oracle.fedcof, gamma=0.4),
    "fedcof-paper": partial(oracle.fedcof, gamma=0.4, head="ridge"),
    "fedcof-random": partial(oracle.fedcof, gamma=0.4),
    "fedcof-residuals": partial(oracle.fedcof_residuals, gamma=0.4, num_directions=2),
    "fedcof-student": partial(oracle.fedcof_student, gamma=0.4),
    "fedcof-residuals-student": partial(oracle.fedcof_residuals_student, gamma=0.4, num_directions=2),
    "fedcof-oracle": partial(oracle.fedcof_oracle, gamma=0.4),
    "fedcof-diagonal": partial(oracle.fedcof_oracle, gamma=0.4, covariance="diagonal"),
    "fedcof-spherical": partial(oracle.fedcof_oracle, gamma=0.4, covariance="spherical"),
    "stsa-e": lambda *examples: oracle.stsa_e(oracle.client_rows(*examples[:3]), examples[3], 0.7),
    "fedran": partial(oracle.fedran, ridge=0.7, num_directions=2),
    "naive-bayes": oracle.naive_bayes,
    "qda": partial(oracle.qda, gamma=0.4),
    "qda-means": partial(oracle.qda, gamma=0.4, means=True),
}
# The same of methods whose clients draw at random what they send: functions of (rows, num_classes), given the
# library's rows without padding.
ROW_ORACLES = {
    "fedcof-components": partial(oracle.fedcof_components, gamma=0.4),
}
# Methods whose head is trained on draws, here few: it has no formula (see tests/methods/test_sampled.py).
# The penalty is large, so that the training soon ends.
SAMPLED = {
    "ccvr": partial(covfree.ccvr, 240, l2=0.1),
    "fedpft": partial(covfree.fedpft, num_samples=240, l2=0.1),
    "fishermix": partial(covfree.fishermix, 240, l2=0.1),
    "proto-hyper": partial(covfree.proto_hyper, 240, l2=0.1),
}
# Methods whose head is trained: two runs on examples that differ by rounding agree as far as training goes.
TRAINED = {*SAMPLED, "ensemble"}
# Methods in which what a client sends depends on random draws, so on its number and on its examples' order.
DRAWN = {"fedpft", *ROW_ORACLES}


def make(name, **numbers):
    """The method with the tests' numbers, as the oracles have them."""
    if name in SAMPLED:
        return SAMPLED[name](**numbers)
    if name == "ensemble":  # whose clients' training soon ends, too
        return covfree.ensemble(l2=0.1, **numbers)
    entry = registry()[name]
    numbers = {**SIZES, **NUMBERS, **OWN.get(name, {}), **numbers}
    return entry.make(**{k: v for k, v in numbers.items() if k in entry.accepts})


def default(name):
    """The method with its defaults, but for its sizes."""
    if name in SAMPLED:
        return SAMPLED[name]()
    entry = registry()[name]
    return entry.make(**{k: v for k, v in SIZES.items() if k in entry.accepts})


def fit(method, federation, precision=FLOAT32):
    features, labels, clients = federation
    return covfree.fit(
        method, np.asarray(features, precision.dtype), labels, clients, num_classes=CLASSES, key=KEY
    )


def expected_head(name, method, federation, num_classes=CLASSES):
    """What the oracle makes of the federation without padding: (weight, bias), or a function to scores."""
    if name in ROW_ORACLES:
        rows = covfree.summarise(method, *map(jnp.asarray, federation), key=KEY)
        kept = np.asarray(rows.count) > 0
        return ROW_ORACLES[name](jax.tree.map(lambda x: np.asarray(x)[kept], rows), num_classes)
    clean = federation.clean
    # In NumPy, as jax compiles each choice of examples for itself.
    mapped = clean.with_features(np.asarray(method.mapped(jnp.asarray(clean.features))))
    head = ORACLES[name](*mapped, num_classes)
    if method.feature_map is None:
        return head
    return lambda features: np.asarray(method.mapped(features)).astype(np.float64) @ head[0] + head[1]


def tolerance(name, closed=FLOAT32.tolerance):
    """How near two heads of one method are: one that is trained stops where its gradient is small."""
    return 3e-2 if name in TRAINED else closed


def probes(dim=DIM):
    """Features on which classifiers are compared; exact in float32."""
    values = 2 * np.random.default_rng(0).normal(size=(16, dim)).astype(np.float32)
    return jnp.asarray(values, jnp.result_type(float))


def assert_same_classifier(actual, expected, tolerance, dim=DIM):
    """Linear heads by weight and bias, others by their scores, with −∞ in the same places.

    Args:
        actual: a head.
        expected: a head; or (weight, bias); or a function from features to scores.
        tolerance: relative error.
        dim: of the features.
    """
    if isinstance(actual, covfree.LinearHead):
        assert_heads_close(actual, expected, tolerance)
    else:
        assert_close(actual(probes(dim)), expected(probes(dim)), tolerance)


def of_classes(head, index):
    """The classifier of some of the classes, in another order."""
    if isinstance(head, covfree.LinearHead):
        return covfree.LinearHead(head.weight[:, index], head.bias[index], head.present[index])
    return lambda features: head(features)[..., index]


def only(rows, kept):
    """The table with the other rows made padding; all columns stay."""
    return replace(rows, count=jnp.where(kept, rows.count, 0))
