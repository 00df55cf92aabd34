"""Make methods differentially private: the server computes the head from noisy sums."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from covfree.core.checks import (
    check,
    check_above_zero,
    check_example_structure,
    check_integer,
    check_positive,
    num_classes_of,
)
from covfree.core.types import AnyArray, Head
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.privacy.accounting import (
    Neighbours,
    Noise,
    Promise,
    Release,
    Unit,
    check_promise,
    rho_for,
    spent,
)
from covfree.privacy.centre import centred, check_centre, moved_back
from covfree.privacy.discrete import RandomBytes
from covfree.privacy.projection import public_projection
from covfree.privacy.server import NoisySums, head_of, nearest_mean, needs_matrix, worth_a_matrix
from covfree.privacy.uploads import Grid, Kind, Upload, added

# log₂ of the noise's standard deviation in grid steps. It is lower if each client adds noise, so that sums
# fit in int64.
_LOG_DEVIATION: dict[Noise, int] = {"central": 22, "distributed": 18, "local": 18}


@dataclass(frozen=True, eq=False)
class Private:
    """A differentially private method, made by `private`: what clients and server compute in each step.

    In step 0 clients upload class sums. From their noisy total the server chooses what clients upload in
    step 1: the second moment (a matrix), or class sums again if noise would drown the second moment. FedNCM
    has only step 0.

    Attributes:
        method: the method that is made private. If features are projected, its ``feature_map`` does this.
        promise: the privacy promise.
        grids: for each step, a dict with a `Grid` (how an upload is rounded) for each kind of upload that
            the server may ask for, ``"sums"`` or ``"matrix"``.
        centre: a public vector, subtracted from features before they are clipped; None for 0.
    """

    method: Method[Any]
    promise: Promise
    grids: tuple[dict[Kind, Grid], ...]
    centre: Float[np.ndarray, " dim"] | None = None

    def __repr__(self) -> str:
        return f"Private({self.method.name}: {self.promise})"

    def upload(
        self,
        step: int,
        kind: Kind,
        features: Float[AnyArray, "examples dim"],
        labels: Integer[AnyArray, " examples"],
        *,
        num_classes: int,
        random_bytes: RandomBytes = os.urandom,
    ) -> Upload:
        """Make one client's upload, with the client's noise unless the noise is central.

        Args:
            step: 0 or 1.
            kind: ``"sums"`` in step 0; in step 1 the result of `choose`.
            features: the client's features; an example that is not finite counts as zeros.
            labels: their classes; below 0 is padding.
            num_classes: C, the same for all clients: absent classes are sent too.
            random_bytes: source of the noise; use anything but `os.urandom` only for experiments.
        """
        grid = self._grid(step, kind)
        check_example_structure(features, labels)
        # Do not check the features' values: an error would reveal one bad example, which counts as zeros.
        check(np.ones((len(labels), 1)), labels, num_classes=num_classes)
        plain = grid.upload(
            centred(self.method, self.centre, features),
            np.asarray(labels),
            check_positive("num_classes", num_classes),
        )
        return plain if self.promise.noise == "central" else grid.noised(plain, 1, random_bytes)

    def total(
        self, step: int, uploads: Sequence[Upload], *, random_bytes: RandomBytes = os.urandom
    ) -> Upload:
        """Return the sum of a step's uploads, plus the noise if it is central.

        Raises:
            ValueError: if fewer clients have added noise than the promise needs, if an upload lacks the noise
                that each client adds, or if it has noise although the server adds it.
        """
        total = added(uploads)
        if self.promise.noise == "central":
            if total.noises:
                raise ValueError(f"uploads: expected no noise, as it is central; got {total.noises} noises")
            return self._grid(step, total.kind).noised(total, 1, random_bytes)
        if any(each.noises < 1 for each in uploads):
            raise ValueError(f"uploads: expected noise in each, as it is {self.promise.noise}; one has none")
        self._check_total(step, total)
        return total

    def choose(self, first: Upload) -> Kind | None:
        """Choose what clients upload in the second step: the second moment ("matrix") or class sums ("sums").

        ``first``, the total of the first step, shows whether a second moment would be lost in its noise.
        Return None if the method has no second step.
        """
        if len(self.grids) == 1:
            return None
        self._check_total(0, first, first)
        grids = self.grids[1]
        worth = worth_a_matrix(self.method, self._known(first), grids["matrix"], first.noises)
        return "matrix" if worth else "sums"

    def head(self, *totals: Upload) -> Head:
        """Make the private head; ``totals`` has, for each step in order, the sum of uploads from `total`."""
        if len(totals) != len(self.grids):
            raise ValueError(f"totals: expected {len(self.grids)}, one for each step, got {len(totals)}")
        for step, total in enumerate(totals):
            self._check_total(step, total, totals[0])
        known = self._known(totals[0])
        if len(totals) == 1:
            head = nearest_mean(self.method, known)
        elif totals[1].kind == "sums":
            head = nearest_mean(self.method, known.averaged(self._known(totals[1])))
        else:
            head = head_of(self.method, known, self._grid(1, "matrix"), totals[1])
        return moved_back(self.method, self.centre, head)

    def fit(
        self,
        features: Float[AnyArray, "examples dim"],
        labels: Integer[AnyArray, " examples"],
        clients: Integer[AnyArray, " examples"],
        *,
        num_classes: int | None = None,
        random_bytes: RandomBytes = os.urandom,
    ) -> Head:
        """Simulate the federation (every client's upload, their sum, the noise) and return the head.

        The noise of many clients is drawn as one sum (`summed_discrete_gaussians`).

        Args:
            features: [examples, dim] of all clients.
            labels: their classes; below 0 is padding.
            clients: the client of each example; below 0 is padding.
            num_classes: C; by default the largest label plus 1. Give C if the largest label is not public.
            random_bytes: source of the noise.
        """
        check(features, labels, clients, num_classes=num_classes)
        owners, classes = np.asarray(clients), np.asarray(labels)
        classes = np.where(owners < 0, -1, classes)
        number = num_classes_of(classes) if num_classes is None else num_classes
        present = np.unique(owners[owners >= 0])
        if not present.size or number < 1:
            raise ValueError("clients: expected at least one with examples, got none")
        if len(present) < (least := self.promise.honest or 1):
            raise ValueError(f"clients: expected at least {least}, as the promise says, got {len(present)}")
        units = int((classes >= 0).sum()) if self.promise.unit == "example" else len(present)
        if not self.promise.delta * units < 1:
            raise ValueError(
                f"delta: expected well below one over the {units:,} {self.promise.unit}s, got "
                f"{self.promise.delta}"
            )
        mapped = centred(self.method, self.centre, features)
        totals: list[Upload] = []
        kind: Kind | None = "sums"
        while kind is not None:
            grid = self._grid(len(totals), kind)
            plain = _sum_of_clients(grid, mapped, classes, owners, number)
            noises = 1 if self.promise.noise == "central" else len(present)
            totals.append(grid.noised(plain, noises, random_bytes))
            kind = self.choose(totals[0]) if len(totals) == 1 else None
        return self.head(*totals)

    def _check_total(self, step: int, total: Upload, first: Upload | None = None) -> None:
        """Raise ValueError if the sum of all clients' uploads lacks noise, or has a wrong shape.

        ``total`` is the sum of the uploads of step ``step``; the promise says how many draws of noise it must
        contain. Its expected shape follows from ``first``, the sum of step 0; with None the shape is not
        checked.
        """
        self._grid(step, total.kind)
        if total.noises < (least := self.promise.honest or 1):
            raise ValueError(f"total: expected at least {least} noises in step {step}, got {total.noises}")
        if first is None:
            return
        found, shape = list(total.values.shape), list(first.values.shape)
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 3:
            raise ValueError(f"total: expected class sums of shape [classes, dim + 2], got {shape}")
        dim = shape[1] - 2
        expected = shape if total.kind == "sums" else [dim * (dim + 1) // 2]
        if found != expected:
            raise ValueError(f"total: expected {total.kind} of shape {expected} in step {step}, got {found}")

    def _grid(self, step: int, kind: Kind) -> Grid:
        if not 0 <= step < len(self.grids) or kind not in self.grids[step]:
            raise ValueError(f"kind: expected a kind of step {step} of {len(self.grids)}, got {kind!r}")
        return self.grids[step][kind]

    def _known(self, total: Upload) -> NoisySums:
        return NoisySums.of(self._grid(0, "sums"), total)


def private(
    method: Method[Any],
    *,
    epsilon: float,
    delta: float,
    clip: float,
    unit: Unit = "example",
    noise: Noise = "central",
    neighbours: Neighbours = "add_remove",
    honest: int | None = None,
    weight: float | None = None,
    projection: int | None = None,
    seed: int = 0,
    centre: Float[AnyArray, " dim"] | None = None,
) -> Private:
    """Make a method private: clip, round to a public grid, sum, and add discrete Gaussian noise.

    Clients send sums and counts of classes. They never send means, whose sensitivity would depend on the
    private count. docs/privacy.md derives the sensitivities, says who learns what, and how to choose the
    numbers.

    Args:
        method: a method whose head is a function of class sums and the second moment: `fedncm`, `fed3r`,
            `fedcgs`, or `fedcof` with an LDA or ridge head. A shrinkage rule is replaced by the noise's
            largest eigenvalue (`noise_edge`). A fixed loading γI, or a ridge, is kept, and that eigenvalue is
            added.
        epsilon: ε of all releases together, above 0.
        delta: δ, well below one over the number of examples (or clients, if ``unit`` is ``"client"``).
        clip: B; features with a larger norm are scaled down to it. It must be public, so it may not be
            computed from the data that it protects.
        unit: what is hidden: one example, or all examples of a client.
        noise: who adds the noise. ``"central"``: a trusted server adds it to the sum. ``"distributed"``: each
            client adds a share, so that the sum has enough; secure sums (`covfree.secure`,
            `covfree.deployment`) must hide single uploads. ``"local"``: each client adds all of it, so that
            its upload is private by itself.
        neighbours: whether an example (or client) is added or removed, or replaced by another.
        honest: for distributed noise, the number of clients that surely take part and keep their noise
            secret.
        weight: with ``unit="client"``, the largest number of examples with which a client may count. The
            client's sums are scaled down to the largest norm that so many examples of one class can have, and
            its second moment to the largest norm for twice as many.
        projection: p, the number of features after a public random projection; None for no projection.
        seed: public seed of the projection.
        centre: [dim], subtracted from features before clipping, and added back in the head; None for 0. The
            centre too must be public, such as the mean of public features of the same backbone; ``clip`` then
            bounds a feature's distance from it. If the method has its own feature map, give the centre of
            mapped features.

    Raises:
        ValueError: if an argument is out of range, or the method's head needs more than these sums.
        ImportError: if dp-accounting is not installed.

    >>> import covfree, numpy as np
    >>> from covfree.privacy import private
    >>> rng = np.random.default_rng(0)
    >>> labels, clients = rng.integers(0, 3, 3000), np.arange(3000) % 30
    >>> features = (0.3 * rng.normal(size=(3000, 4)) + np.eye(3, 4)[labels]).astype(np.float32)
    >>> made = private(covfree.fedcof(), epsilon=1.0, delta=1e-6, clip=1.5)
    >>> head = made.fit(features, labels, clients)
    >>> bool((head(features).argmax(-1) == labels).mean() > 0.9)
    True
    """
    check_method(method)
    if method.transforms:
        raise ValueError("method: expected one without transforms of its rows, as sums are sent; got some")
    check_promise(unit, neighbours, noise)
    check_above_zero("clip", clip)
    rho = rho_for(epsilon, delta)
    if (noise == "distributed") != (honest is not None):
        wanted = "the number of clients that surely add noise" if honest is None else "None"
        raise ValueError(f"honest: expected {wanted} with noise={noise!r}, got {honest!r}")
    if unit == "client":
        if weight is None:
            raise ValueError(
                "weight: expected the most that a client weighs, in examples, with unit='client' (such as a "
                "tenth of a client's examples), got None"
            )
        check_above_zero("weight", weight)
    elif weight is not None:
        text = f"expected None with unit={unit!r}, as it bounds the weight of a client, got {weight!r}"
        raise ValueError(f"weight: {text}")
    least = 1 if honest is None else check_integer("honest", honest, 1)
    if projection is not None:
        if method.feature_map is not None:
            raise ValueError("projection: expected None, as the method has a feature map of its own")
        projected = public_projection(check_positive("projection", projection), seed=seed)
        method = replace(method, feature_map=projected)
    both = needs_matrix(method)
    kinds: tuple[tuple[Kind, ...], ...] = (("sums",), ("sums", "matrix")) if both else (("sums",),)
    about = _LOG_DEVIATION[noise], rho / len(kinds), least, clip, weight, neighbours, both
    grids: tuple[dict[Kind, Grid], ...] = tuple(
        {kind: Grid.of(kind, *about) for kind in step} for step in kinds
    )
    names = ("class sums", "second moment, or class sums again")
    releases = tuple(
        Release(name, max(grid.rho(least, neighbours) for grid in step.values()))
        for name, step in zip(names, grids, strict=False)
    )
    promise = Promise(spent(releases, delta), delta, unit, neighbours, noise, honest, releases)
    return Private(method, promise, grids, None if centre is None else check_centre(centre))


def _sum_of_clients(
    grid: Grid, features: np.ndarray, labels: np.ndarray, owners: np.ndarray, num_classes: int
) -> Upload:
    """Return the sum of all clients' uploads, without noise."""
    if grid.weight is None:
        return grid.upload(features, labels, num_classes)
    order = np.argsort(owners, kind="stable")
    order = order[owners[order] >= 0]
    places = np.split(order, np.flatnonzero(np.diff(owners[order])) + 1)
    return functools.reduce(
        operator.add, (grid.upload(features[own], labels[own], num_classes) for own in places)
    )
