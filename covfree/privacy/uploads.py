"""Make private uploads: clipped sums, in integers, so that their sensitivity is known exactly.

The sensitivity is the largest change of a sum if one example (or one client) is added, removed or replaced.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from covfree.core.checks import check_integer
from covfree.core.sums import add_by_group
from covfree.privacy.accounting import Neighbours
from covfree.privacy.clipping import bounded, clipped, on_grid
from covfree.privacy.discrete import RandomBytes, summed_discrete_gaussians

# Class sums, or the second moment of all examples.
Kind: TypeAlias = Literal["sums", "matrix"]

# Beside its features an example has two coordinates: the count, and the squared norm, from which the server
# judges whether a second moment would be lost in the noise. The constants are the largest values of the two
# coordinates, in units of the features' largest norm. The two coordinates cost 5 % more noise.
COUNT_SHARE = 0.3
SQUARE_SHARE = 0.15
# If an example is replaced, its class's sum moves by up to twice R, the largest norm of features. Noise that
# hides this also hides counts in which an example is 0.98 R: counts move only if the class changes, and then
# each of the two sums moves by at most R.
_FREE_COUNT_SHARE = 0.98


@dataclass(frozen=True)
class Upload:
    """The integers that a client sends in one step, or their sum over clients.

    Attributes:
        kind: ``"sums"`` of classes, or ``"matrix"``: the second moment of all examples.
        values: integers on the grid: [classes, dim + 2] sums of features, counts and squared norms, or
            [dim·(dim + 1)/2] the upper triangle of the second moment.
        noises: how many independent draws of noise the values include.
    """

    kind: Kind
    values: Int[np.ndarray, "..."]
    noises: int = 0

    def __post_init__(self) -> None:
        found = getattr(self.values, "dtype", type(self.values).__name__)
        if found != np.int64:
            raise TypeError(f"values: expected an array of int64, got {found}")
        check_integer("noises", self.noises, 0)

    def __add__(self, other: Upload) -> Upload:
        """Return the sum of two uploads of one kind; their numbers of noise draws are added too."""
        if self.kind != other.kind or self.values.shape != other.values.shape:
            raise ValueError(
                f"upload: expected {self.kind} of shape {list(self.values.shape)} as the others, got "
                f"{other.kind} of shape {list(other.values.shape)}"
            )
        return Upload(self.kind, self.values + other.values, self.noises + other.noises)


@dataclass(frozen=True)
class Grid:
    """The grid to which uploads of one kind are rounded: an upload becomes integers, to which noise is added.

    The grid determines how far one example or client can move the sum of all uploads (`sensitivity`). `step`
    and `deviation` are for features divided by B, the clip.

    Attributes:
        kind: ``"sums"`` or ``"matrix"``, as in `Upload`.
        log_deviation: log₂ of the standard deviation of one draw of noise, in grid units; for the matrix, off
            the diagonal. On the diagonal the variance is twice as large.
        clip: B, the bound on a feature vector's norm.
        weight: None if noise hides single examples. If it hides whole clients, the largest number of examples
            with which a client's upload may count.
        bound: the largest norm of the integers: of an example's features if ``weight`` is None, else of a
            client's upload.
        both: whether a client's sums and matrix are scaled down by one factor, as the client may send both.
        count: the integer that one example adds to its class's count; 0 for a matrix, or with ``weight``.
        square: the integer that an example of norm B adds to its class's sum of squared norms; 0 in the same
            cases.
    """

    kind: Kind
    log_deviation: int
    clip: float
    weight: float | None
    bound: int
    both: bool = False
    count: int = 0
    square: int = 0

    @classmethod
    def of(
        cls,
        kind: Kind,
        log_deviation: int,
        rho: float,
        noises: int,
        clip: float,
        weight: float | None,
        neighbours: Neighbours,
        both: bool = True,
    ) -> Grid:
        """Make the finest grid on which the noisy sum of all clients' uploads costs at most ρ of privacy.

        ρ is ``rho``, as in `Release`, and ``noises`` is the number of draws of noise in the sum.
        ``neighbours`` says which change is hidden: an example (with ``weight``, a client) is added or
        removed, or it is replaced. The other arguments are attributes of `Grid`.

        docs/privacy.md derives how far such a change moves the sum. On the grid, let R be the largest norm of
        an example's features, b the integer that counts the example, and e the largest integer that stands
        for its squared norm. The class sums move by at most √(R² + b² + e²) if an example is added; by
        √(4R² + e²) if it is replaced by one of the same class, and √(2R² + 2b² + 2e²) by one of another. The
        second moment moves by at most R² if an example is added, and √2 R² if it is replaced. If whole
        clients are hidden, the sum moves by at most the bound on an upload if one is added, and twice the
        bound if it is replaced.
        """
        add = neighbours == "add_remove"
        # The factor 1 − 1e-12 makes up for float rounding, so that the cost is not above ρ.
        most = math.sqrt(2 * rho) * _deviation(kind, log_deviation, noises) * (1 - 1e-12)
        count = square = 0
        if weight is not None:
            bound = math.floor(most if add else most / 2)
        elif kind == "matrix":
            bound = math.isqrt(math.floor(most if add else most / math.sqrt(2)))
        else:
            share = COUNT_SHARE if add else _FREE_COUNT_SHARE
            one = math.hypot(1, share, SQUARE_SHARE)
            bound = math.floor(most / (one if add else math.hypot(2, SQUARE_SHARE)))
            count, square = math.floor(share * bound), math.floor(SQUARE_SHARE * bound)
        # Sums on a finer grid could exceed int64. If that limits the grid, the noise exceeds what ρ requires.
        bound = min(bound, _MOST[kind] if weight is None else _MOST_OF_CLIENT)
        count, square = min(count, bound), min(square, bound)
        if bound < _LEAST:
            raise ValueError(
                "epsilon: expected a larger one; with so much noise the grid to which uploads are rounded "
                f"has {bound} steps up to the clip, fewer than {_LEAST}"
            )
        return cls(kind, log_deviation, clip, weight, bound, both, count, square)

    def rho(self, noises: int, neighbours: Neighbours) -> float:
        """Return ρ, the privacy cost (see `Release`) of releasing the noisy sum of all clients' uploads.

        ``noises`` is the number of independent draws of noise in the sum. ``neighbours`` says which change
        of the data is hidden, as in `Promise`.
        """
        return (self.sensitivity(neighbours) / _deviation(self.kind, self.log_deviation, noises)) ** 2 / 2

    def sensitivity(self, neighbours: Neighbours) -> float:
        """Return the largest distance between two neighbouring data sets' integer sums.

        The distance is Euclidean; for matrices, in Frobenius norm.
        """
        add, bound = neighbours == "add_remove", float(self.bound)
        if self.weight is not None:
            return bound if add else 2 * bound
        if self.kind == "matrix":
            return bound**2 if add else math.sqrt(2) * bound**2
        one = math.hypot(bound, self.count, self.square)
        return one if add else max(math.hypot(2 * bound, self.square), math.sqrt(2) * one)

    @property
    def step(self) -> float:
        """The number for which an integer 1 in an upload stands, in units of the clip.

        In class sums it is a feature's value; in the matrix, a product of two features, in units of clip².
        """
        if self.weight is not None:
            return _limit(self.kind, self.weight) / self.bound
        return 1 / self.bound if self.kind == "sums" else 1 / self.bound**2

    @property
    def count_step(self) -> float:
        """The number of examples that one grid unit of a class's count represents."""
        return 1 / self.count if self.weight is None else self.step / COUNT_SHARE

    @property
    def square_step(self) -> float:
        """The factor that converts the integer for a class's squared norms to Σ ‖x‖²/B², with B the clip."""
        return 1 / self.square if self.weight is None else self.step / SQUARE_SHARE

    def upload(
        self,
        features: Float[np.ndarray, "examples dim"],
        labels: Int[np.ndarray, " examples"],
        num_classes: int,
    ) -> Upload:
        """Return the integers that one client uploads, before noise is added; labels below 0 are padding.

        If ``weight`` is None, clients' uploads add up to the upload of all their examples.
        """
        kept = labels >= 0
        features, labels = clipped(np.asarray(features, np.float64)[kept], self.clip), labels[kept]
        if self.weight is None:
            return self._of_examples(features, labels, num_classes)
        return self._of_client(features, labels, num_classes, self.weight)

    def noised(self, upload: Upload, noises: int, random_bytes: RandomBytes) -> Upload:
        """Return an upload plus the sum of ``noises`` independent draws of discrete Gaussian noise."""
        log, size = self.log_deviation, upload.values.size
        noise = summed_discrete_gaussians(log, noises, size, random_bytes)
        if self.kind == "matrix":
            places = diagonal_places(dim_of_triangle(size))
            noise[places] += summed_discrete_gaussians(log, noises, len(places), random_bytes)
        return Upload(self.kind, upload.values + noise.reshape(upload.values.shape), upload.noises + noises)

    def deviation(self, noises: int) -> float:
        """Return the standard deviation of the noise in a sum that contains ``noises`` draws of noise.

        For class sums, this is the noise in each entry of a class's feature sum; for the second moment, in a
        diagonal entry. Features are in units of the clip.
        """
        return _deviation(self.kind, self.log_deviation, noises) * self.step

    def _of_examples(self, features: np.ndarray, labels: np.ndarray, num_classes: int) -> Upload:
        integers = on_grid(features, self.bound)
        if self.kind == "sums":
            norm = np.minimum((integers**2).sum(1) / self.bound**2, 1)
            square = np.rint(self.square * norm).astype(np.int64)
            count = np.full_like(square, self.count)
            return Upload("sums", add_by_group(np.c_[integers, count, square], labels, num_classes))
        # Float64 adds integers exactly below 2⁵³: the products of a block, at most 8192·2³⁸, stay below.
        product = np.zeros((features.shape[1],) * 2, np.int64)
        for start in range(0, len(integers), _BLOCK):
            block = integers[start : start + _BLOCK].astype(np.float64)
            product += (block.T @ block).astype(np.int64)
        return Upload("matrix", product[np.triu_indices(len(product))])

    def _of_client(self, features: np.ndarray, labels: np.ndarray, num_classes: int, weight: float) -> Upload:
        count = np.full(len(features), COUNT_SHARE)
        sums = np.c_[features, count, (features**2).sum(1) * SQUARE_SHARE]
        values = add_by_group(sums, labels, num_classes)
        factor = _share(_limit("sums", weight), float(np.linalg.norm(values)))
        if self.both:
            # Scale sums and matrix by one factor, as the server subtracts products of sums from the matrix.
            matrix = features.T @ features
            factor = min(factor, _share(_limit("matrix", weight), float(np.linalg.norm(matrix))))
            values = matrix if self.kind == "matrix" else values
        # Round towards 0, so that the integers' norm stays within the bound; the factor allows for float
        # rounding.
        integers = np.trunc(values * ((1 - 1e-9) * factor / self.step)).astype(np.int64)
        bounded(integers.reshape(1, -1), self.bound)
        triangle = np.triu_indices(len(integers))
        return Upload(self.kind, integers[triangle] if self.kind == "matrix" else integers)


# The number of examples in one product of integers.
_BLOCK = 8192

# The largest norm in grid steps. Up to it, int64 holds the squares of an example (2⁶²), a sum of 10⁷
# examples' products in a matrix (each at most 2³⁸), and a sum of 10⁶ clients' uploads.
_MOST: dict[Kind, int] = {"sums": 2**31, "matrix": 2**19}
_MOST_OF_CLIENT = 2**40
# The bound on norms must be at least this many grid steps.
_LEAST = 32


def _deviation(kind: Kind, log_deviation: int, noises: int) -> float:
    """Return the standard deviation of the noise in one integer of a sum of uploads.

    The noise is the sum of ``noises`` draws; ``log_deviation`` is log₂ of the standard deviation of one. For
    ``"matrix"``, the integer is on the diagonal, where a draw has twice the variance.
    """
    return 2.0**log_deviation * math.sqrt(noises * (2 if kind == "matrix" else 1))


def _limit(kind: Kind, weight: float) -> float:
    """Return the largest norm that a client's upload may have; a longer upload is scaled down to it.

    ``weight`` is the number of examples with which the client may count. Features are divided by the clip, so
    each has norm 1 at most. For class sums, the limit is the norm of the sums of ``weight`` such examples of
    one class. For the second moment of all features (``"matrix"``) it is 2·``weight``, covfree's choice.
    """
    return weight * (math.hypot(1, COUNT_SHARE, SQUARE_SHARE) if kind == "sums" else 2)


def _share(limit: float, norm: float) -> float:
    """Return the factor, at most 1, that scales a finite norm down to ``limit``."""
    return min(1.0, limit / norm) if norm else 1.0


def dim_of_triangle(size: int) -> int:
    """Return d, the dimension of a symmetric matrix with ``size`` = d·(d + 1)/2 entries in a triangle."""
    return (math.isqrt(8 * size + 1) - 1) // 2


def diagonal_places(dim: int) -> Int[np.ndarray, " dim"]:
    """Return the indices of the diagonal's entries in an upper triangle that is stored row by row."""
    return np.cumsum(np.r_[0, np.arange(dim, 1, -1)])


def full_matrix(triangle: Float[np.ndarray, " size"]) -> Float[np.ndarray, "dim dim"]:
    """Return the symmetric matrix with this upper triangle, stored row by row."""
    dim = dim_of_triangle(triangle.size)
    matrix = np.zeros((dim, dim), triangle.dtype)
    places = np.triu_indices(dim)
    matrix[places] = triangle
    matrix.T[places] = triangle
    return matrix


def added(uploads: Sequence[Upload]) -> Upload:
    """Return the sum of uploads of one kind."""
    if not uploads:
        raise ValueError("uploads: expected at least one, got none")
    return functools.reduce(operator.add, uploads)
