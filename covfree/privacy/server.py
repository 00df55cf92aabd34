"""Compute a head on the server from noisy sums, corrected for the noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.types import Head, LinearHead, Message, Moments, Rows
from covfree.estimators import diagonal_loading, total_gram
from covfree.heads import lda_head, ncm_head, ridge_head
from covfree.heads.composed import MappedHead
from covfree.methods import Method
from covfree.methods.fedcof_like import plain_head
from covfree.privacy.estimates import (
    debiased_reciprocal,
    debiased_within,
    noise_edge,
    positive_part,
    shrunk_means,
)
from covfree.privacy.uploads import Grid, Upload, full_matrix

# The server asks for the second moment if the noise's largest eigenvalue (`noise_edge`) is below this
# multiple of the covariance's average eigenvalue, as measured in experiments/privacy.md. Spectra of features
# decay, so the leading eigenvalues, which the matrix reveals, are far above the average. Less noise already
# harms ridge heads and FedCGS.
_WORTH_OF_LDA = 3.0
_WORTH_OF_OTHERS = 0.25
# The server also requires that the squared noise in class means is at most this share of their squared
# distance from the mean of all examples. Otherwise the rest of the privacy budget is better spent on the
# sums.
_NOISE_OF_MEANS = 0.1


@dataclass(frozen=True)
class NoisySums:
    """Noisy sums and counts of the classes, for features divided by the clip (the bound on their norm).

    Attributes:
        sums: S̃_c, [classes, dim], the noisy sum of each class's features.
        counts: Ñ_c, the noisy number of each class's examples.
        square: a low estimate of the mean squared norm of all examples: the noisy value minus two standard
            deviations of its noise.
        sum_deviation: standard deviation of the noise in each entry of the sums.
        count_deviation: standard deviation of the noise in each count.
    """

    sums: Float[np.ndarray, "classes dim"]
    counts: Float[np.ndarray, " classes"]
    square: float
    sum_deviation: float
    count_deviation: float

    @classmethod
    def of(cls, grid: Grid, total: Upload) -> NoisySums:
        """Convert the sum of all uploads, which are integers on the grid, to noisy sums and counts."""
        deviation = grid.deviation(total.noises)
        counts = total.values[:, -2] * grid.count_step
        squares = total.values[:, -1].sum() * grid.square_step
        doubt = 2 * deviation * len(counts) ** 0.5 * grid.square_step / grid.step
        return cls(
            sums=total.values[:, :-2] * grid.step,
            counts=counts,
            square=float((squares - doubt) / max(counts.sum(), 1)),
            sum_deviation=deviation,
            count_deviation=deviation * grid.count_step / grid.step,
        )

    def averaged(self, other: NoisySums) -> NoisySums:
        """Return the average of two noisy releases of the same sums, weighted by inverse noise variance."""
        share = 1 / (1 + (self.sum_deviation / other.sum_deviation) ** 2)
        return NoisySums(
            share * self.sums + (1 - share) * other.sums,
            share * self.counts + (1 - share) * other.counts,
            share * self.square + (1 - share) * other.square,
            self.sum_deviation * share**0.5,
            self.count_deviation * share**0.5,
        )

    @property
    def num_examples(self) -> float:
        """N, the sum of all noisy counts; at least 1."""
        return max(float(self.counts.sum()), 1.0)

    @property
    def reciprocals(self) -> np.ndarray:
        """[classes] estimates of 1/N_c, with N_c the true count of class c; see `debiased_reciprocal`."""
        return np.asarray(debiased_reciprocal(self.counts, self.count_deviation), np.float64)

    @property
    def present(self) -> np.ndarray:
        """Mask of the classes that count as present.

        A class counts as present if its count is above 3σ, with σ the standard deviation of the noise in a
        count. If the average count is at most 6σ, or no count is above 3σ, all classes count as present.
        """
        clear = self.num_examples / len(self.counts) > 6 * self.count_deviation
        found = self.counts > 3 * self.count_deviation
        return found if clear and found.any() else np.ones(len(self.counts), bool)

    @property
    def moments(self) -> Moments:
        """The classes' counts (1/``reciprocals``) and feature sums as `Moments`; 0 for absent classes."""
        count = np.where(self.present, 1 / self.reciprocals, 0)
        total = np.where(self.present[:, None], self.sums, 0)
        dtype = jnp.result_type(float)
        return Moments(
            jnp.asarray(count, dtype), jnp.asarray(self.present, jnp.int32), jnp.asarray(total, dtype)
        )


def worth_a_matrix(method: Method[Any], known: NoisySums, grid: Grid, noises: int) -> bool:
    """Decide what clients upload next: True for the second moment, False if noise would drown it.

    The noisy class sums in ``known`` decide; the second moment would contain ``noises`` draws of noise. Let
    there be N examples x of d features, N_c of them in class c with mean μ_c. Two ratios must be small:

    - noise to signal in the within-class covariance: the largest eigenvalue of the noise, `noise_edge`/N,
      divided by the average eigenvalue of the covariance, (mean ‖x‖² − Σ_c N_c ‖μ_c‖²/N)/d;
    - noise to signal in class means: the mean squared norm of their noise, divided by the mean squared
      distance of class means from the mean of all examples.
    """
    dim = known.sums.shape[1]
    squares = (known.sums**2).sum(1) - dim * known.sum_deviation**2
    between = float(np.maximum(squares * known.reciprocals, 0).sum()) / known.num_examples
    spread = (known.square - between) / dim
    edge = float(noise_edge(grid.deviation(noises), dim)) / known.num_examples
    means = (known.sums * known.reciprocals[:, None])[known.present]
    noise = dim * float(np.mean((known.sum_deviation * known.reciprocals[known.present]) ** 2))
    signal = float(np.mean(((means - known.sums.sum(0) / known.num_examples) ** 2).sum(1))) - noise
    if noise > _NOISE_OF_MEANS * signal:
        return False
    return edge < (_WORTH_OF_LDA if _is_within_lda(method) else _WORTH_OF_OTHERS) * spread


def _is_within_lda(method: Method[Any]) -> bool:
    return plain_head(method) == "lda"


# fed3r-within and FedCGS subtract products of class sums from the Gram matrix. Noise of variance σ² in the
# sums makes these products too large by kσ²I on average. This table has each method's k; fed3r subtracts
# nothing.
_SUBTRACTED: dict[str, Callable[[NoisySums], float]] = {
    "fed3r": lambda known: 0.0,
    "fed3r-within": lambda known: float(known.reciprocals[known.present].sum()),
    "fedcgs": lambda known: known.present.sum() / known.num_examples,
}


def needs_matrix(method: Method[Any]) -> bool:
    """Return whether the method's head needs second moments in addition to the class sums."""
    if method.name == "fedncm":
        return False
    if method.name in _SUBTRACTED:
        return True
    if plain_head(method) not in ("lda", "ridge"):
        raise ValueError(
            "method: expected one whose head is a function of class sums and the second moment: fedncm, "
            f"fed3r, fedcgs, or fedcof with an LDA or ridge head; got {method.name!r}"
        )
    return True


def nearest_mean(method: Method[Any], known: NoisySums) -> Head:
    """Make a nearest-mean head from noisy class sums alone, with means from `shrunk_means`."""
    moments, present = known.moments, known.present
    number = jnp.asarray(known.sums[present]), jnp.asarray(known.counts[present])
    means = np.zeros(known.sums.shape, moments.total.dtype)
    means[present] = shrunk_means(*number, known.sum_deviation, known.count_deviation)
    return mapped(method, ncm_head(replace(moments, total=moments.count[:, None] * means)))


def head_of(method: Method[Any], known: NoisySums, grid: Grid, total: Upload) -> Head:
    """Make the private head from two noisy sums over clients: class sums ``known``, second moments ``total``.

    Three corrections reduce the harm of the noise:

    - the noise's expectation is subtracted from the scatter, and negative eigenvalues become 0;
    - the noise's largest eigenvalue (`noise_edge`) is added to the regulariser;
    - LDA has the biases −½ μᵀΣ⁻¹μ with the covariance Σ. Noise of variance v_c in each entry of a class mean
      μ shifts them by −½ v_c tr Σ⁻¹ on average; this shift is undone.

    Both sums are of features divided by the clip of ``grid``, so that squares do not overflow. The head takes
    features that are not divided.
    """
    with np.errstate(over="ignore"):  # the check below raises if a number overflows
        head = _head_of(method, known, grid, total)
    # Convert the head to features that are not divided by the clip. In LDA, divide the weights by it: all
    # scores stay. In ridge regression, multiply the bias by it: all scores scale alike, and the
    # weights' columns keep norm 1.
    lda = method.name == "fedcgs" or _is_within_lda(method)
    part, factor = ("weight", 1 / grid.clip) if lda else ("bias", grid.clip)
    found = {name: np.asarray(getattr(head, name), np.float64) for name in ("weight", "bias")}
    found[part] = found[part] * factor
    dtype = head.weight.dtype
    if not all((np.abs(each) <= float(jnp.finfo(dtype).max)).all() for each in found.values()):
        raise ValueError(
            f"clip: expected one with which the head's numbers fit {dtype}, got {grid.clip}; multiply all "
            "features, and the clip, by one number"
        )
    return mapped(method, replace(head, **{name: jnp.asarray(each, dtype) for name, each in found.items()}))


def _head_of(method: Method[Any], known: NoisySums, grid: Grid, total: Upload) -> LinearHead:
    moments, dtype = known.moments, jnp.result_type(float)
    second = jnp.asarray(full_matrix(total.values.astype(np.float64)) * grid.step, dtype)
    edge = noise_edge(grid.deviation(total.noises), second.shape[0])
    if method.name in _SUBTRACTED:
        second += jnp.eye(len(second), dtype=dtype) * (
            known.sum_deviation**2 * _SUBTRACTED[method.name](known)
        )
        label = jnp.arange(len(known.counts))
        message = Message(Rows(moments.mean, moments.count, label), second)
        assert method.summary.merge is not None
        state = method.summary.merge(method.params, message, len(label))
        assert method.system is not None
        # A ridge, or γ, is added to products of features divided by the clip, so divide it by the clip twice.
        system = method.system(method.params / grid.clip / grid.clip, *state)
        scale = jnp.maximum(moments.num_examples - 1, 1) if method.name == "fedcgs" else 1
        system = _positive(system.unshifted.dense()).shifted(system.shift + edge / scale)
        head = method.head(method.params, system, *state)
        return _without_noise(head, system, known) if method.name == "fedcgs" else head
    assert method.estimate is not None  # `needs_matrix` raises an error if it is None
    gram = method.estimate.gram
    degrees = jnp.maximum(moments.within_degrees, 1)
    sums, counts = known.sums[known.present], known.counts[known.present]
    within = debiased_within(second, sums, counts, known.sum_deviation, known.count_deviation)
    scatter = _positive(within).shifted(edge + _own_shrinkage(method) / grid.clip / grid.clip * degrees)
    if gram is None:
        covariance = scatter.scaled(1 / degrees)
        return _without_noise(lda_head(covariance, moments), covariance, known)
    return ridge_head(total_gram(scatter, moments, scatter=gram), moments)


def _own_shrinkage(method: Method[Any]) -> Any:
    """Return γ if the method's shrinkage adds a fixed γI to the covariance; else 0.

    Other shrinkage rules are ignored, as they need the clients' class means, which are not sent.
    """
    plain = diagonal_loading(0.0).rule
    return method.params.strength if method.params.rule is plain else 0.0


def _positive(matrix: jax.Array) -> Scatter:
    return Scatter.from_matrix(positive_part(matrix))


def _without_noise(head: LinearHead, covariance: Scatter, known: NoisySums) -> LinearHead:
    """Correct an LDA head's biases for the noise in the class means.

    The noise changes the bias of class c by −½ v_c tr Σ⁻¹ on average, which is subtracted again. Σ is
    ``covariance``, and v_c = σ²/N_c² the variance of the noise in each coordinate of the mean of class c.
    """
    inverse = solve(factorise(covariance), jnp.eye(covariance.dim, dtype=head.bias.dtype))
    variance = jnp.asarray((known.sum_deviation * known.reciprocals) ** 2 * known.present, head.bias.dtype)
    return replace(head, bias=head.bias + variance * jnp.trace(inverse) / 2)


def mapped(method: Method[Any], head: Head) -> Head:
    """Return a head that applies the method's feature map first, if the method has one."""
    return head if method.feature_map is None else MappedHead(method.feature_map, head)
