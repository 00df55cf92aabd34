"""Kinds of heads as type checkers must see them; `make types` runs pyright and mypy over it."""

import dataclasses
from typing import Any, assert_type

import jax

import covfree
from covfree.core.types import Head
from covfree.heads import EnsembleHead, GaussianHead
from covfree.heads.composed import MappedHead


def quadratic(covariance: covfree.linalg.Scatter, moments: covfree.Moments) -> GaussianHead:
    return covfree.gaussian_head(covariance.dense()[None], moments)


def nearest(params: Any, system: None, moments: covfree.Moments) -> covfree.LinearHead:
    return covfree.ncm_head(moments)


def heads(features: jax.Array, labels: jax.Array, clients: jax.Array, rows: covfree.Rows) -> None:
    data = features, labels, clients
    feature_map = covfree.relu_features(8)
    assert_type(covfree.fit(covfree.fedcof(), *data), covfree.LinearHead)
    assert_type(covfree.fit(covfree.fedcof(1.0, head="ridge"), *data), covfree.LinearHead)
    assert_type(covfree.fit(covfree.fedcof().with_feature_map(feature_map), *data), MappedHead)
    assert_type(covfree.fit(covfree.fedcof(0.1, head=quadratic), *data), GaussianHead)
    assert_type(covfree.fit(covfree.fedcof_oracle(0.1, quadratic), *data), GaussianHead)
    assert_type(covfree.fit(covfree.fed3r().with_feature_map(feature_map), *data), MappedHead)
    assert_type(covfree.fit(covfree.refined(covfree.fedcof()), *data), covfree.LinearHead)
    assert_type(covfree.fit(covfree.corrected(covfree.fedcof()), *data), covfree.LinearHead)
    assert_type(covfree.fit(covfree.deepafl(), *data), MappedHead)
    assert_type(covfree.fit(covfree.ensemble(), *data), EnsembleHead)
    assert_type(covfree.solve_rows(covfree.qda(), rows, num_classes=3), GaussianHead)
    assert_type(covfree.solve_rows(covfree.afl(), covfree.Stream(rows), num_classes=3), covfree.LinearHead)
    own = covfree.Method(None, "own", covfree.methods.send_class_means(), (), None, nearest)
    assert_type(covfree.fit(own, *data), covfree.LinearHead)
    anything: covfree.Method[Head] = own
    assert_type(covfree.fit(anything, *data)(features), jax.Array)
    assert_type(covfree.evaluate(covfree.fit(anything, *data), features, labels), jax.Array)
    covfree.rounds.as_algorithm(anything, num_classes=3)
    linear = covfree.fit(covfree.fedcof(), *data)
    assert_type(dataclasses.replace(linear, bias=linear.bias + 1), covfree.LinearHead)
    scores: jax.Array = jax.jit(linear)(features)
    assert_type(jax.checkpoint(linear)(scores), Any)
