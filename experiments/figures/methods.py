"""Methods of the papers' figures that are references alone: ``covfree compare --methods methods.py:name``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

import covfree
from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.products import product
from covfree.heads.softmax import softmax_head
from covfree.heads.virtual import sample_rows
from covfree.methods import Method
from covfree.methods.field.sampled import keep_terms
from covfree.methods.rounds import Round, bound
from covfree.methods.summaries import send_class_means
from covfree.statistics.transforms import count_noise


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KernelHead:
    """Scores Σ_i k(x, x_i) α_i with k(x, y) = exp(−‖x − y‖²/2σ²)."""

    examples: Any
    alpha: Any
    sigma: Any

    def __call__(self, features: Any) -> jax.Array:
        """Scores of each class."""
        return product(_kernel(jnp.asarray(features), self.examples, self.sigma), self.alpha)


def _kernel(left: jax.Array, right: jax.Array, sigma: Any) -> jax.Array:
    squares = jnp.square(left).sum(1)[:, None] + jnp.square(right).sum(1)[None] - 2 * product(left, right.T)
    return jnp.exp(-jnp.maximum(squares, 0) / (2 * sigma**2))


def _kernel_head(numbers: Any, system: None, rows: covfree.Rows, *, num_classes: int = 0) -> KernelHead:
    """Solve (K + λI) α = Y; each class's function is scaled to norm 1, as columns of Fed3R's head are."""
    ridge, sigma = numbers
    examples = jnp.where((rows.count > 0)[:, None], rows.mean, 0)
    kernel = _kernel(examples, examples, sigma)
    used = (rows.count > 0)[:, None]
    kernel = jnp.where(used & used.T, kernel, 0)
    targets = (rows.label[:, None] == jnp.arange(num_classes)[None]) & used
    alpha = solve(factorise(Scatter.from_matrix(kernel).shifted(ridge)), targets.astype(kernel.dtype))
    norm = jnp.sqrt(jnp.maximum((alpha * product(kernel, alpha)).sum(0, keepdims=True), 0))
    return KernelHead(examples, jnp.where(used, alpha, 0) / jnp.where(norm > 0, norm, 1), sigma)


def _keep(params: Any, totals: Any, rows: covfree.Rows, num_classes: int) -> Any:
    return jnp.zeros(num_classes), keep_terms(params, totals, rows, num_classes)


def _of_kept(numbers: Any, system: None, kept: Any) -> KernelHead:
    classes, rows = kept
    return _kernel_head(numbers, system, rows, num_classes=len(classes))


def kernel_ridge(ridge: float = 0.01, sigma: float = 1000.0) -> Method:
    """Exact kernel ridge regression on all examples, which clients send (Fed3R, Figure 8): n² numbers."""
    return Method(
        (jnp.float32(ridge), jnp.float32(sigma)),
        "kernel-ridge",
        send_class_means(None, 1),
        (Round(_keep),),
        None,
        bound(_of_kept),
    )


def _linear_head(
    params: Any, system: Scatter, moments: covfree.Moments, scatter: Scatter, *, num_samples: int, l2: float
) -> covfree.LinearHead:
    """Train a linear head on draws from N(μ_c, Σ), with Σ the covariance of all features."""
    first, second = jax.random.split(jax.random.key(0))
    classes = jnp.arange(len(moments.count), dtype=jnp.int32)
    centre, labels = sample_rows(covfree.Rows(moments.mean, moments.count, classes), num_samples, key=first)
    one = covfree.Rows(
        jnp.zeros_like(moments.mean[:1]),
        jnp.ones(1, jnp.int32),
        jnp.zeros(1, jnp.int32),
        covariance=system.value[None],
    )
    noise, _ = sample_rows(one, num_samples, key=second)
    return softmax_head(centre + noise, labels, len(moments.count), l2=l2)


def fedcgs_linear(num_samples: int = 10_000, l2: float = 1e-3) -> Method:
    """FedCGS's statistics with a linear head trained on draws from them ("Linear" in its Figure 2)."""
    head = bound(_linear_head, num_samples=num_samples, l2=l2)
    return replace(covfree.fedcgs(), name="fedcgs-linear", head=head)


def fedcgs_relu(num_features: int = 1000, shrinkage: float = 0.0) -> Method:
    """FedCGS on random features with a ReLU (its Figure 3)."""
    return covfree.fedcgs(shrinkage).with_feature_map(covfree.relu_features(num_features))


def noisy_counts(law: str = "laplace", epsilon: float = 0.1, shrinkage: float = 1.0) -> Method:
    """FedCOF as published, with uniform, Gaussian or Laplace noise on clients' counts (its Figure 6)."""
    method = covfree.fedcof(shrinkage, head="ridge")
    return method.with_transforms(count_noise(law, epsilon))  # pyright: ignore[reportArgumentType]
