"""Noise on counts: its laws, what it leaves alone, and how it travels with a method."""

import dataclasses
import pickle

import deployed
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from classifiers import ONE_SHOT
from deployed import ragged
from federations import CLASSES
from precision import PRECISIONS
from scipy import stats

import covfree
from covfree.statistics.transforms import Transform

KINDS = ["uniform", "gaussian", "laplace"]
KEY = jax.random.key(11)
SIZE = 20_000


def table(count, label=None, size=SIZE) -> covfree.Rows:
    """Rows of one count."""
    label = np.zeros(size, np.int32) if label is None else label
    return covfree.Rows(jnp.ones((size, 1)), jnp.full(size, count), jnp.asarray(label))


def noisy(kind, epsilon, rows, key=KEY) -> np.ndarray:
    return np.asarray(covfree.count_noise(kind, epsilon)(rows, key=key).count, np.float64)


def law(kind, epsilon, count):
    """FedCOF, App. I.1: U(−(1 − ε)n, (1 − ε)n), N(0, 1/ε) with 1/ε the variance, L(0, 1/ε)."""
    if kind == "uniform":
        return stats.uniform(-(1 - epsilon) * count, 2 * (1 - epsilon) * count)
    return stats.norm(0, epsilon**-0.5) if kind == "gaussian" else stats.laplace(0, 1 / epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_law(kind, epsilon):
    """Mean, variance and distribution function, each within a bound that one key in 10⁵ misses.

    Of counts so large that nothing falls below 0, in float64: adding and taking away the count loses nothing.
    """
    with PRECISIONS["float64"].context():
        rows = covfree.Rows(jnp.ones((SIZE, 1)), jnp.full(SIZE, 1000), jnp.zeros(SIZE, int))
        draws = noisy(kind, epsilon, rows) - 1000
    expected = law(kind, epsilon, 1000)
    variance, kurtosis = expected.var(), 3 + float(expected.stats("k"))
    assert abs(draws.mean()) < 4.5 * np.sqrt(variance / SIZE)
    assert abs(draws.var() - variance) < 4.5 * variance * np.sqrt((kurtosis - 1) / SIZE)
    assert stats.kstest(draws, expected.cdf).pvalue > 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_less_epsilon_is_more_noise(kind):
    spread = [np.std(noisy(kind, epsilon, table(1000))) for epsilon in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert (np.diff(spread) < 0).all()


def test_uniform_noise_is_a_share_of_the_count():
    count = np.tile(np.array([1, 7, 300, 2**20]), SIZE // 4)
    rows = dataclasses.replace(table(1), count=jnp.asarray(count))
    share = noisy("uniform", 0.75, rows) / count - 1
    assert np.abs(share).max() <= 0.25 + 1e-6
    assert np.abs(share).max() > 0.249  # and uses all of it


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_what_falls_below_zero_is_zero(kind):
    """n + σ ≤ 0 with the chance of σ ≤ −n."""
    values = noisy(kind, 0.25, table(3))
    chance = law(kind, 0.25, 3).cdf(-3)
    assert values.min() == 0
    assert abs((values == 0).mean() - chance) < 4.5 * np.sqrt(chance * (1 - chance) / SIZE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_count_of_zero_stays_zero(kind):
    """Why it is no differential privacy: 0 and 1 are told apart for sure, and the docstring says so."""
    assert (noisy(kind, 0.1, table(0)) == 0).all()
    assert (noisy(kind, 0.1, table(1)) > 0).any()
    assert "not differential privacy" in covfree.count_noise.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_noised_apart_and_by_the_key_alone(kind):
    first, again, other = (noisy(kind, 0.5, table(1000), jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.corrcoef(first, other)[0, 1]) < 4.5 / np.sqrt(SIZE)
    assert np.abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 4.5 / np.sqrt(SIZE)


def padded_rows() -> covfree.Rows:
    """Rows 2 to 5 are padding, of every kind, which may hold anything."""
    mean = np.array([[1, 2], [3, 4], [np.nan, 0], [np.inf, 0], [0, np.nan], [9, 9]], np.float32)
    return covfree.Rows(
        jnp.asarray(mean),
        jnp.asarray(np.array([40, 30, 0, np.nan, 0, 5], np.float32)),
        jnp.array([0, 2, -1, -1, 1, -1]),
        client=jnp.array([0, 1, -1, -1, 1, -1]),
        covariance=jnp.asarray(np.array([1, 2, np.nan, 3, np.inf, 1], np.float32)),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_counts_changes_and_padding_stays_padding(kind):
    rows = padded_rows()
    transformed = covfree.count_noise(kind, 0.5)(rows, key=KEY)
    for field in ("mean", "label", "client", "covariance"):
        np.testing.assert_array_equal(getattr(transformed, field), getattr(rows, field))
    count = np.asarray(transformed.count)
    assert (count[:2] != [40, 30]).all()
    np.testing.assert_array_equal(count[2:], 0)
    assert transformed.sketch is None


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_in_a_head_nor_in_gradients(kind):
    rows = padded_rows()

    def weight(epsilon, rows):
        sent = covfree.count_noise(kind, epsilon)(rows, key=KEY)
        return covfree.solve_rows(covfree.fedcof(shrinkage=0.1), sent, num_classes=3).bias[0]

    run = jax.jit(jax.value_and_grad(weight))
    value, gradient = run(0.5, rows)
    assert np.isfinite(gradient)
    assert gradient != 0
    kept = np.arange(6) < 2
    finite = jax.tree.map(
        lambda leaf: jnp.where(kept.reshape(-1, *(1 for _ in leaf.shape[1:])), leaf, jnp.zeros_like(leaf)),
        rows,
    )
    finite = dataclasses.replace(finite, label=rows.label)
    assert run(0.5, finite) == (value, gradient)


def test_uniform_noise_of_epsilon_one_changes_nothing():
    """ε = 1 is no noise; of padding no count is left."""
    np.testing.assert_array_equal(noisy("uniform", 1.0, padded_rows()), [40, 30, 0, 0, 0, 0])


def test_counts_are_floats_of_the_means_precision(precision):
    rows = covfree.Rows(precision.array(np.ones((3, 2))), jnp.full(3, 7), jnp.zeros(3, int).astype(jnp.int32))
    assert covfree.count_noise("laplace", 1.0)(rows, key=KEY).count.dtype == precision.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("untyped")
def test_sweep_over_epsilon(kind):
    """jit, and vmap over ε, are what one ε after the other gives; a method carries it as a leaf."""
    rows, epsilons = table(50, size=32), jnp.array([0.1, 0.7, 0.95])
    swept = jax.jit(jax.vmap(lambda e: covfree.count_noise(kind, e)(rows, key=KEY).count))(epsilons)
    for epsilon, counts in zip(epsilons.tolist(), swept, strict=True):
        np.testing.assert_allclose(counts, noisy(kind, epsilon, rows), rtol=1e-6, atol=1e-5)
    transform = covfree.count_noise(kind, 0.7)
    assert jax.tree.leaves(transform) == [0.7]
    assert jax.tree.leaves(covfree.fedncm().with_transforms(transform))[-1] == 0.7


# As part of a method


def test_simulation_and_deployment_send_the_same_but_for_the_draw():
    method = covfree.fedcof().with_transforms(covfree.count_noise("uniform", 0.7))
    simulated = covfree.summarise(method, *ragged(), key=KEY)
    collected = covfree.collect(deployed.send(method), num_classes=CLASSES)
    assert collected.rejected == {}
    received, exact = collected.message.rows, covfree.summarise(covfree.fedcof(), *ragged())
    kept = np.asarray(exact.count) > 0  # simulations pad
    simulated, exact = (jax.tree.map(lambda x: np.asarray(x)[kept], rows) for rows in (simulated, exact))
    for rows in (simulated, received):
        np.testing.assert_array_equal(rows.label, exact.label)
        np.testing.assert_allclose(rows.mean, exact.mean, rtol=1e-6, atol=1e-6)
        share = np.asarray(rows.count) / np.asarray(exact.count) - 1
        assert (np.abs(share) <= 0.3 + 1e-6).all()
        assert (share != 0).all()
        assert rows.count.dtype == np.float32
    assert (np.asarray(simulated.count) != received.count).all()


def test_a_row_whose_count_becomes_zero_is_not_sent():
    """In a simulation it is padding, and its mean then changes nothing."""
    method = covfree.fedncm().with_transforms(covfree.count_noise("gaussian", 0.04))
    exact = deployed.messages("fedncm")
    sent = deployed.send(method)
    dropped = 0
    for client, message in sent.items():
        assert (np.asarray(message.rows.count) > 0).all()
        held = exact[client].rows
        index = [held.label.tolist().index(label) for label in message.rows.label.tolist()]
        np.testing.assert_array_equal(message.rows.mean, held.mean[index])
        dropped += len(held.label) - len(index)
    assert dropped > 0
    simulated = covfree.summarise(method, *ragged(), key=KEY)
    zero = np.asarray(simulated.count) == 0
    assert zero.any()
    spoiled = dataclasses.replace(simulated, mean=jnp.where(zero[:, None], jnp.nan, simulated.mean))
    head, expected = (covfree.solve_rows(method, r, num_classes=CLASSES) for r in (spoiled, simulated))
    jax.tree.map(np.testing.assert_array_equal, head, expected)


def test_no_noise_gives_the_same_head():
    method = covfree.fedncm().with_transforms(covfree.count_noise("uniform", 1.0))
    head = covfree.fit(method, *ragged(), num_classes=CLASSES, key=KEY)
    expected = covfree.fit(covfree.fedncm(), *ragged(), num_classes=CLASSES)
    np.testing.assert_allclose(head.weight, expected.weight, rtol=1e-6, atol=1e-7)


def test_transforms_follow_one_another():
    """In the order in which they were given, each with a key of its own, at once or one after the other."""
    transforms = [covfree.count_noise("laplace", 0.5), covfree.count_noise("laplace", 0.5)]
    method = covfree.fedncm().with_transforms(*transforms)
    one_by_one = covfree.fedncm().with_transforms(transforms[0]).with_transforms(transforms[1])
    assert method.transforms == one_by_one.transforms
    rows = table(1000, size=64)
    count = method.sent(rows, KEY).count
    np.testing.assert_array_equal(count, one_by_one.sent(rows, KEY).count)
    first = covfree.fedncm().with_transforms(transforms[0]).sent(rows, KEY).count
    assert (np.asarray(count) != first).all()
    # The same noise twice would add up to exactly twice the first.
    assert (np.abs(np.asarray(count) - 1000 - 2 * (np.asarray(first) - 1000)) > 1e-2).mean() > 0.9

    def to_seven(strength, rows, key):
        return dataclasses.replace(rows, count=jnp.full_like(rows.count, strength))

    seven = Transform(7.0, to_seven)
    last = covfree.fedncm().with_transforms(transforms[0], seven).sent(rows, KEY).count
    np.testing.assert_array_equal(last, 7)


def test_noise_needs_a_key():
    method = covfree.fedncm().with_transforms(covfree.count_noise("laplace", 1.0))
    with pytest.raises(
        ValueError, match="key: expected a PRNG key as the method's transforms draw at random"
    ):
        covfree.fit(method, *ragged(), num_classes=CLASSES)
    with pytest.raises(
        ValueError, match="key: expected a PRNG key as the method's transforms draw at random"
    ):
        covfree.client_message(method, *deployed.examples(23), num_classes=CLASSES)


@pytest.mark.parametrize("name", ONE_SHOT)
def test_only_rows_can_be_transformed(name):
    """What a transform of rows would not reach is refused: a matrix would tell what the noise hides."""
    method, noise = deployed.make(name), covfree.count_noise("laplace", 1.0)
    if not method.summary.stays:
        assert method.with_transforms(noise).transforms == (noise,)
        assert method.transforms == ()
    else:
        text = f"transforms: expected a method whose clients send rows, got '{method.name}', which sends"
        with pytest.raises(ValueError, match=text):
            method.with_transforms(noise)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("kind", "epsilon", "error", "text"),
    [
        (
            "poisson",
            1.0,
            ValueError,
            r"kind: expected one of \('uniform', 'gaussian', 'laplace'\), got 'poisson'",
        ),
        ("uniform", 1.5, ValueError, "epsilon: expected a number above 0 and at most 1 for uniform noise"),
        ("uniform", 0.0, ValueError, "epsilon: expected a number above 0 and at most 1 for uniform noise"),
        ("uniform", -0.1, ValueError, r"epsilon: expected a finite number of at least 0, got -0\.1"),
        ("laplace", np.inf, ValueError, "epsilon: expected a finite number of at least 0, got inf"),
        ("gaussian", np.nan, ValueError, "epsilon: expected a finite number of at least 0, got nan"),
        ("gaussian", 0.0, ValueError, r"epsilon: expected a number above 0 for gaussian noise, got 0\.0"),
        ("gaussian", jnp.float32(0), ValueError, "epsilon: expected a number above 0 for gaussian noise"),
        ("laplace", 0, ValueError, "epsilon: expected a number above 0 for laplace noise, got 0"),
        ("uniform", "much", TypeError, "epsilon: expected a number, got 'much'"),
        ("uniform", True, TypeError, "epsilon: expected a number, got True"),
        ("uniform", np.ones(2), TypeError, "epsilon: expected a number"),
    ],
)
def test_errors(kind, epsilon, error, text):
    with pytest.raises(error, match=text):
        covfree.count_noise(kind, epsilon)


def test_pickled_noise_is_the_same_noise():
    """So that a copy compiles nothing anew."""
    method = covfree.fedncm().with_transforms(covfree.count_noise("laplace", 1.0))
    (noise,) = method.transforms
    assert pickle.loads(pickle.dumps(noise)) == noise
