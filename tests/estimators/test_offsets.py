"""Clients' offsets: the split of the covariance against explicit matrices, its expectations, its laws."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import FLOAT32, x64
from scipy.optimize import minimize
from scipy.stats import chi2

import covfree
from covfree.estimators.automatic.offsets import client_sums, no_offsets, offsets_of
from covfree.estimators.automatic.senders import SAMPLE
from covfree.estimators.scatter import Freedom, centred_rows, class_weights

CLASSES, DIM, ROWS = 5, 4, 46
ABSENT, ALONE = 3, 4  # a class without rows; a class of one row, which shows no spread
NUMBERS = np.array([0, 3, 17, 100, 254, 255, 41])  # of the clients; most numbers are of nobody


def two_way(seed=0):
    """Uneven rows of seven clients, as NumPy arrays; the last ten are padding of every kind.

    Clients lack classes, and some have two rows of a class. The last two share no class with the others.
    """
    rng = np.random.default_rng(seed)
    client = NUMBERS[rng.integers(0, 5, ROWS)]
    label = rng.integers(0, 2, ROWS)
    client[:4], label[:4] = NUMBERS[[5, 5, 6, 6]], 2
    label[4] = ALONE
    count = rng.integers(1, 9, ROWS)
    mean = rng.normal(size=(ROWS, DIM)) + 3 * label[:, None] + rng.normal(size=(256, DIM))[client]
    mean[-10:] = np.nan
    count[-10:-5] = 0
    label[-5:] = [-1, CLASSES, -7, -1, 99]
    client[-3:] = [-1, 256, 3]
    client[-7] = 1000
    return mean, count, label, client


def rows_of(arrays, precision=FLOAT32):
    return covfree.Rows(*(precision.array(a) for a in arrays[:3]), client=precision.array(arrays[3]))


@partial(jax.jit, static_argnums=1)
def prepared(rows, weighting="per_class"):
    """Moments, freedom, and the factor y_r."""
    moments = covfree.first_moments(rows, CLASSES)
    weight = class_weights(moments, weighting) / jnp.maximum(moments.within_degrees, 1)
    return moments, Freedom.of_classes(moments, weight), centred_rows(rows, moments, weight)


@jax.jit
def sums_of(rows, moments, freedom, factor):
    return client_sums(factor, rows, moments, freedom.weight)


def level_of(factor):
    """tr(Σ̂)/d."""
    return jnp.square(factor).sum() / factor.shape[1]


split = jax.jit(offsets_of)


def offsets_from(rows, weighting="per_class"):
    moments, freedom, factor = prepared(rows, weighting)
    return split(sums_of(rows, moments, freedom, factor), moments, freedom, level_of(factor))


def first_part(offsets):
    """Σ_j z_j z_jᵀ."""
    vector = np.asarray(offsets.vector, np.float64)
    return vector.T @ vector


class Explicit:
    """The layout in float64 with matrices of all rows, built row by row; every formula from the model."""

    def __init__(self, arrays, weighting="per_class"):
        valid = (arrays[1] > 0) & (arrays[2] >= 0) & (arrays[2] < CLASSES)
        mean, count, label, client = (np.asarray(a)[valid] for a in arrays)
        total = np.array([count[label == c].sum() for c in range(CLASSES)])
        rows = np.array([(label == c).sum() for c in range(CLASSES)])
        examples = total.sum() - (total > 0).sum()
        numerator = total - 1 if weighting == "per_class" else np.full(CLASSES, examples)
        denominator = rows - 1 if weighting == "per_class" else np.full(CLASSES, (rows - 1)[rows > 0].sum())
        self.weight = np.array(
            [numerator[c] / denominator[c] / examples if rows[c] > 1 else 0.0 for c in range(CLASSES)]
        )
        people = sorted(set(client.tolist()))
        self.share = np.zeros((CLASSES, len(people)))
        for n, c, k in zip(count, label, client, strict=True):
            self.share[c, people.index(k)] += n / total[c]
        factor, design, row_weight = [], [], []
        for x, n, c, k in zip(mean, count, label, client, strict=True):
            centre = sum(m * a for m, a, b in zip(mean, count, label, strict=True) if b == c) / total[c]
            own = np.array([float(k == other) for other in people])
            scale = np.sqrt(self.weight[c] * n)
            factor.append(scale * (x - centre))
            design.append(scale * (own - self.share[c]))
            row_weight.append(self.weight[c])
        self.factor, design = np.array(factor), np.array(design)
        values, self.vectors = np.linalg.eigh(design.T @ design)
        kept = values > 1e-9
        self.strength, self.vectors = values[kept], self.vectors[:, kept]
        self.projector = design @ np.linalg.pinv(design.T @ design, rcond=1e-9) @ design.T
        leverage = np.diag(self.projector)
        self.degrees = np.array(
            [rows[c] - 1 - leverage[label == c].sum() if self.weight[c] > 0 else 0.0 for c in range(CLASSES)]
        )
        self.whole_degrees = np.where(self.weight > 0, rows - 1, 0)
        self.noise = np.trace(self.projector @ np.diag(row_weight)) / kept.sum()
        self.directions = design @ self.vectors / np.sqrt(self.strength)


@pytest.mark.parametrize("weighting", ["per_class", "pooled"])
def test_split_is_that_of_explicit_matrices(precision, weighting):
    arrays = two_way()
    expected = Explicit(arrays, weighting)
    got = offsets_from(rows_of(arrays, precision), weighting)
    kept = np.asarray(got.strength) > 0
    # Seven clients in two groups without a common class: 4 + 1 directions.
    assert kept.sum() == len(expected.strength) == 5
    precision.assert_close(got.strength[kept], expected.strength)
    np.testing.assert_array_equal(np.asarray(got.vector)[~kept], 0)
    # Eigenvectors have no sign: compare what has none.
    z = expected.factor.T @ expected.directions
    share = expected.share @ expected.vectors
    pairs = np.asarray(got.share)[:, kept].T[:, :, None] * np.asarray(got.vector)[kept][:, None, :]
    precision.assert_close(pairs, share.T[:, :, None] * z.T[:, None, :], factor=10)
    precision.assert_close(
        got.vector.T @ got.vector, expected.factor.T @ expected.projector @ expected.factor
    )
    precision.assert_close(np.square(got.share)[:, kept], np.square(share), factor=10)
    # No direction is lost: those that the covariance does not hold have their share in the means too.
    precision.assert_close(np.square(got.share).sum(1), np.square(expected.share).sum(1))
    precision.assert_close(got.degrees, expected.degrees)
    precision.assert_close(got.noise, expected.noise)


def test_sums_are_those_of_plain_loops(precision):
    arrays = two_way()
    moments, freedom, factor = prepared(rows_of(arrays, precision))
    got = sums_of(rows_of(arrays, precision), moments, freedom, factor)
    counts, totals = np.zeros((CLASSES, SAMPLE), int), np.zeros((SAMPLE, DIM))
    for _, n, c, k, y in zip(*arrays, np.asarray(factor, np.float64), strict=True):
        if n > 0 and 0 <= c < CLASSES:
            counts[c, k] += n
            totals[k] += np.sqrt(float(freedom.weight[c]) * n) * y
    np.testing.assert_array_equal(got.counts, counts)
    precision.assert_close(got.totals, totals)
    np.testing.assert_allclose(got.classes, 0, atol=precision.tolerance * np.abs(totals).max())


def test_sums_add_up_over_any_split_in_any_order(precision):
    arrays = two_way()
    rows = rows_of(arrays, precision)
    moments, freedom, factor = prepared(rows)
    whole = sums_of(rows, moments, freedom, factor)
    order = np.random.default_rng(1).permutation(ROWS)
    parts = [
        sums_of(jax.tree.map(lambda a, p=part: a[p], rows), moments, freedom, factor[part])
        for part in (order[: ROWS // 2], order[ROWS // 2 :])
    ]
    added = jax.tree.map(jnp.add, *parts)
    np.testing.assert_array_equal(added.counts, whole.counts)
    precision.assert_close(added.totals, whole.totals)
    size = np.abs(whole.totals).max()
    np.testing.assert_allclose(added.classes, whole.classes, atol=precision.tolerance * size)


@pytest.mark.parametrize(
    "dtype",
    [np.int8, np.uint8, np.int16, np.uint32],
)
def test_client_numbers_of_any_integer_type(dtype):
    """As small a type as the numbers allow, and unsigned ones."""
    mean, count, label, client = two_way()
    client = np.where(client == 254, 120, np.where(client == 255, 121, np.where(client == 256, 5, client)))
    client = np.where((client == 1000) | (client == -1), 5, client)
    rows = rows_of((mean, count, label, client))
    moments, freedom, factor = prepared(rows)
    small = replace(rows, client=jnp.asarray(client.astype(dtype)))
    for got, expected in zip(
        sums_of(small, moments, freedom, factor), sums_of(rows, moments, freedom, factor), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_shift_leaves_the_rest_as_it_is(precision):
    """(I − P)Y does not feel what is added to all rows of a client; the first part does."""
    arrays = two_way()
    shift = np.random.default_rng(2).normal(size=(2000, DIM))[arrays[3]]
    parts = []
    for mean in (arrays[0], arrays[0] + 2 * shift):
        rows = rows_of((mean, *arrays[1:]), precision)
        factor = np.asarray(prepared(rows)[2], np.float64)
        offsets = offsets_from(rows)
        part = first_part(offsets)
        parts.append((part, factor.T @ factor - part))
    before, after = parts
    np.testing.assert_allclose(after[1], before[1], atol=precision.tolerance * np.abs(after[0]).max())
    assert np.linalg.norm(after[0] - before[0]) > np.linalg.norm(before[0])


@pytest.mark.parametrize("weighting", ["per_class", "pooled"])
def test_expectations(weighting):
    """E Σ_j z_j z_jᵀ = Σ_j λ_j Δ + J c Σ and E of the rest Σ_c w_c degrees_c Σ, over 2,000 draws."""
    draws = 2000
    rng = np.random.default_rng(3)
    _, count, label, client = arrays = two_way()
    mixing, offset_mixing = rng.normal(size=(2, DIM, DIM))
    noise = rng.normal(size=(draws, ROWS, DIM)) @ mixing.T / np.sqrt(np.maximum(count, 1))[:, None]
    shift = (rng.normal(size=(draws, 2000, DIM)) @ offset_mixing.T)[:, client]
    with x64():
        rows = jax.tree.map(jnp.asarray, covfree.Rows(*arrays[:3], client=client))
        drawn = jnp.asarray(3.0 * label[:, None] + noise + shift)

        def parts(mean):
            moments, freedom, factor = prepared(replace(rows, mean=mean), weighting)
            sums = client_sums(factor, rows, moments, freedom.weight)
            offsets = offsets_of(sums, moments, freedom, level_of(factor))
            part = offsets.vector.T @ offsets.vector
            # Made of counts alone, so the same in all draws.
            sizes = offsets.strength.sum(), (offsets.strength > 0).sum() * offsets.noise
            return part, factor.T @ factor - part, *sizes, (freedom.weight * offsets.degrees).sum()

        part, rest, *sizes = (np.asarray(x) for x in jax.jit(jax.vmap(parts))(drawn))
    strength, noise_size, degrees = (size[0] for size in sizes)
    covariance, offset_covariance = mixing @ mixing.T, offset_mixing @ offset_mixing.T
    expected = (strength * offset_covariance + noise_size * covariance, degrees * covariance)
    for got, mean in zip((part, rest), expected, strict=True):
        z = (got.mean(0) - mean) / (got.std(0) / np.sqrt(draws))
        assert np.abs(z).max() < 4
    if weighting == "pooled":
        # Noise of one variance: the parts are independent, not only of the offsets.
        traces = np.trace(part, axis1=1, axis2=2), np.trace(rest, axis1=1, axis2=2)
        assert abs(np.corrcoef(*traces)[0, 1]) < 4 / np.sqrt(draws)


def log_likelihood(ratio, variance, expected, square, left):
    """Of the squares of the parts, each a multiple of χ² with ``DIM`` times its degrees of freedom."""
    scale = variance * (expected.strength * ratio + expected.noise)
    parts = [chi2.logpdf(DIM * s / m, DIM) - np.log(m) for s, m in zip(square, scale, strict=True)]
    degrees = expected.degrees.sum()
    mean = variance * (expected.degrees * expected.weight).sum() / degrees
    return sum(parts) + chi2.logpdf(DIM * left / mean, DIM * degrees) - np.log(mean)


@pytest.mark.parametrize("shift", [0.3, 1.0, 5.0])
def test_ratio_is_that_of_the_greatest_likelihood(shift):
    """Of SciPy's law of χ², climbed over both parameters."""
    mean, *others = two_way()
    mean = mean + shift * np.random.default_rng(6).normal(size=(256, DIM))[np.clip(others[2], 0, 255)]
    expected = Explicit((mean, *others))
    square = np.square(expected.factor.T @ expected.directions).mean(0)
    left = np.square(expected.factor).sum() / DIM - square.sum()
    best = minimize(
        lambda x: -log_likelihood(*np.exp(x), expected, square, left), np.zeros(2), method="Nelder-Mead"
    )
    got = offsets_from(rows_of((mean, *others)))
    ratio, variance = np.exp(best.x)
    # Candidates are 6 % apart.
    np.testing.assert_allclose(got.ratio, ratio, rtol=0.08)
    whole = (expected.whole_degrees * expected.weight).sum()
    free = variance * whole * DIM / np.square(expected.factor).sum()
    np.testing.assert_allclose(got.free, free, rtol=0.02)


@pytest.mark.parametrize("told_apart", [True, False])
def test_ratio_is_found(told_apart):
    """On average over 200 draws, of offsets of another shape than the noise."""
    rng = np.random.default_rng(7)
    clients, dim = 30, 20
    label, client = (x.ravel() for x in np.indices((3, clients)))
    # One class for a client, but for two of them; or two for each.
    kept = (label == client % 3) | ((client < 2) if not told_apart else (label == (client + 1) % 3))
    label, client = label[kept], client[kept]
    count = rng.geometric(0.05, len(label))
    scale = np.linspace(0.2, 2, dim)
    noise = rng.normal(size=(200, len(label), dim)) * scale / np.sqrt(count)[:, None]
    offset = (rng.normal(size=(200, clients, dim)) * scale[::-1])[:, client]

    @jax.jit
    @jax.vmap
    def found(mean):
        rows = covfree.Rows(mean, jnp.asarray(count), jnp.asarray(label), jnp.asarray(client))
        moments, freedom, factor = prepared(rows)
        sums = sums_of(rows, moments, freedom, factor)
        offsets = offsets_of(sums, moments, freedom, level_of(factor))
        return offsets.ratio, offsets.free * level_of(factor), offsets.told_apart

    for shift in (0.0, 0.5, 2.0):
        ratio, free, apart = map(np.asarray, found(jnp.asarray(noise + shift * offset, jnp.float32)))
        assert (apart == told_apart).all()
        np.testing.assert_allclose(np.median(ratio), shift**2, rtol=0.15, atol=0.02)
        np.testing.assert_allclose(np.median(free), np.square(scale).mean(), rtol=0.15)


def test_numbers_of_clients_mean_nothing(precision):
    mean, count, label, client = two_way()
    renamed = np.random.default_rng(4).permutation(SAMPLE)
    valid = (count > 0) & (label >= 0) & (label < CLASSES)
    others = np.where(valid, renamed[np.where(valid, client, 0)], client)
    before, after = (
        offsets_from(rows_of((mean, count, label, names), precision)) for names in (client, others)
    )
    precision.assert_close(np.sort(after.strength), np.sort(before.strength))
    precision.assert_close(after.vector.T @ after.vector, np.asarray(before.vector.T @ before.vector))
    for name in ("noise", "degrees", "ratio", "free"):
        precision.assert_close(getattr(after, name), getattr(before, name))


def test_nobody_known():
    """As if the rows did not say whose they are."""
    mean, count, label, client = two_way()
    rows = rows_of((mean, count, label, np.full_like(client, -1)))
    moments, freedom, factor = prepared(rows)
    offsets = split(sums_of(rows, moments, freedom, factor), moments, freedom, level_of(factor))
    for name in ("strength", "vector", "share", "unseen", "copies", "noise", "ratio", "known"):
        np.testing.assert_array_equal(getattr(offsets, name), 0)
    assert offsets.free == 1
    np.testing.assert_array_equal(offsets.degrees, no_offsets(moments, freedom).degrees)


def copied(copies, seed=9):
    """A federation of 30 clients, in so many copies of other draws; ``client`` as copies of the first."""
    rng = np.random.default_rng(seed)
    client, label = np.nonzero(rng.random((30, 3)) < 0.6)
    count = rng.integers(1, 20, len(label))
    client = np.concatenate([client + 30 * copy for copy in range(copies)])
    label, count = np.tile(label, copies), np.tile(count, copies)
    mean = 3.0 * label[:, None] + rng.normal(size=(len(label), 40)) / np.sqrt(count)[:, None]
    return mean + rng.normal(size=(30 * copies, 40))[client], count, label, client


def test_a_sample_stands_for_all():
    """Of five copies of a federation, one that is known shows the layout of all five."""
    with x64():
        mean, count, label, client = copied(5)
        found = []

        @jax.jit
        def run(rows):
            moments = covfree.first_moments(rows, 3)
            weight = class_weights(moments, "pooled") / moments.within_degrees
            freedom, factor = Freedom.of_classes(moments, weight), centred_rows(rows, moments, weight)
            sums = client_sums(factor, rows, moments, weight)
            return offsets_of(sums, moments, freedom, level_of(factor))

        for known in (client, np.where(client < 30, client, -1)):
            rows = covfree.Rows(*(jnp.asarray(x) for x in (mean, count, label, known)))
            found.append(jax.tree.map(np.asarray, run(rows)))
    whole, sample = found
    np.testing.assert_allclose(sample.copies, 4)
    assert whole.told_apart
    assert not sample.told_apart
    # The same eigenvalues, as often.
    alike = np.sort(np.append(sample.strength, np.repeat(sample.unseen, 4)))
    assert (alike > 0).sum() > 100
    np.testing.assert_allclose(alike[alike > 0], np.sort(whole.strength[whole.strength > 0]), rtol=1e-9)
    for name in ("noise", "degrees"):
        np.testing.assert_allclose(getattr(sample, name), getattr(whole, name), rtol=1e-9)
    for power in (-1, -2):

        def shares(offsets, power=power):
            scale = (1 + 50 * offsets.strength) ** power
            return (offsets.share * scale) @ offsets.share.T

        np.testing.assert_allclose(shares(sample), shares(whole), rtol=1e-9)
    np.testing.assert_allclose((whole.ratio, sample.ratio), 1, rtol=0.3)
    np.testing.assert_allclose(sample.free, whole.free, rtol=0.2)


def test_the_sample_does_not_feel_how_classes_lie():
    """Its rows are taken about their own class means, whatever the others add to a class."""
    mean, count, label, client = copied(2)
    moved = mean + 9.0 * (client >= 30)[:, None]
    parts, weight = [], jnp.ones(3)

    @jax.jit
    def run(rows):
        moments = covfree.first_moments(rows, 3)
        factor = centred_rows(rows, moments, weight)
        sums = client_sums(factor, rows, moments, weight)
        return offsets_of(sums, moments, Freedom.of_classes(moments, weight), level_of(factor))

    for values in (mean, moved):
        rows = covfree.Rows(
            *(jnp.asarray(x) for x in (values, count, label, np.where(client < 30, client, -1)))
        )
        parts.append(first_part(run(rows)))
    np.testing.assert_allclose(parts[0], parts[1], rtol=1e-3, atol=1e-3 * np.abs(parts[0]).max())


@pytest.mark.parametrize("lone", [5, 6])
def test_too_few_degrees_within_clients(lone):
    """Three clients with two classes, others with a class of their own, which shows no more than offsets.

    Two degrees of freedom are left: with five lone clients, of 2·2 + 4 = 8, a quarter; with six, of 9.
    """
    label = np.array([0, 0, 0, 1, 1, 1] + [2] * lone)
    client = np.array([0, 1, 2, 0, 1, 2, *range(3, 3 + lone)])
    padding = ROWS - len(label)
    label, client = np.pad(label, (0, padding), constant_values=-1), np.pad(client, (0, padding))
    mean = np.random.default_rng(5).normal(size=(ROWS, DIM))
    rows = rows_of((mean, np.full(ROWS, 4), label, client))
    offsets = offsets_from(rows)
    assert offsets.known
    assert offsets.told_apart == (lone == 5)
    assert (offsets.strength > 0).sum() == lone + 1
    # Half of the layout of two classes is left, and nothing of the lone clients' class.
    np.testing.assert_allclose(offsets.degrees, [1, 1, 0, 0, 0], atol=1e-4)


def test_one_client_has_nothing_to_split():
    mean, count, label, _ = two_way()
    rows = rows_of((mean, count, label, np.full(ROWS, 200)))
    moments, freedom, _ = prepared(rows)
    offsets = offsets_from(rows)
    for name in ("strength", "vector", "noise", "ratio"):
        np.testing.assert_array_equal(getattr(offsets, name), 0)
    np.testing.assert_array_equal(offsets.degrees, freedom.degrees)
    np.testing.assert_allclose(offsets.free, 1, rtol=1e-5)
    # Its offset is in the mean of every class as it is.
    np.testing.assert_allclose(np.square(offsets.share).sum(1), np.asarray(moments.count) > 0, rtol=1e-6)


def test_rows_that_do_not_say_whose_they_are_have_no_sums():
    rows = replace(rows_of(two_way()), client=None)
    moments, freedom, factor = prepared(rows)
    assert client_sums(factor, rows, moments, freedom.weight) is None


def test_where_rows_tell_nothing_rounding_does_not_choose():
    """Clients with one class each and equal counts: all ratios are as likely, at any scale of features."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 4
    means = (rng.normal(size=(40, 8)) + 3 * rng.normal(size=(4, 8))[labels]).astype(np.float32)
    chosen, method = [], covfree.fedcof()

    @jax.jit
    def run(rows):
        moments, spread = covfree.accumulate(method, rows, num_classes=4)
        shift = method.system(covfree.automatic(), moments, spread).shift
        return shift, jnp.trace(spread.scatter.dense())

    for scale in (1, 2, 64, 1024):
        rows = covfree.Rows(means * np.float32(scale), np.full(40, 20), labels, np.arange(40))
        shift, trace = run(rows)
        chosen.append(float(shift) / scale**2)
    np.testing.assert_allclose(chosen, chosen[0], rtol=1e-3)
    # About t·d/ν, as of clients alike.
    level = float(trace) / 8 / 1024**2
    assert 0.1 < chosen[0] / level < 0.5
