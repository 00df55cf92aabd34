"""Methods whose head is trained on virtual features: what they draw from, and where the training leads."""

from dataclasses import replace

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from classifiers import KEY, SAMPLED, fit
from federations import ALONE, CLASSES, CLIENTS, DIM, EXAMPLES
from precision import FLOAT32, assert_close, relative_error
from variants import slow

import covfree

FEDERATION = federations.make(0)
STRUCTURES = ["diagonal", "spherical", "full"]


def shifted_classes(dim=3, number=40):
    """Two classes of the very same sample covariance, of which one has thrice the examples."""
    rng = np.random.default_rng(1)
    cloud = rng.normal(size=(number, dim)) @ np.diag(1.0 + np.arange(dim))
    features = np.concatenate([cloud, *[cloud + 1.5] * 3])
    labels = np.repeat([0, 1], [number, 3 * number])
    return features.astype(np.float32), labels, rng.integers(0, 5, len(labels))


def test_ccvr_sums_up_to_the_covariances_of_equation_24(precision):
    method = covfree.ccvr(8)
    rows = covfree.summarise(method, *map(precision.array, FEDERATION))
    moments, scatters = covfree.accumulate(method, rows, num_classes=CLASSES)
    parts = oracle.client_covariances(*FEDERATION.clean, CLASSES)
    for c in range(CLASSES):
        number = int(moments.count[c])
        assert number == sum(n for _, n, _ in parts[c])
        expected = oracle.aggregate_covariances(*zip(*parts[c], strict=True)) if number > 1 else 0
        precision.assert_close(scatters[c] / max(number - 1, 1), np.zeros((DIM, DIM)) + expected)


@pytest.mark.slow
def test_ccvr_comes_near_linear_discriminant_analysis():
    # Of Gaussian classes with one covariance that is the very solution of logistic regression.
    features, labels, clients = shifted_classes()
    # The clouds are equal: the class covariance with the divisor N_c − 1, but for rounding.
    rows = oracle.example_rows(features, labels)
    count, _, mean = oracle.moments(rows, 2)
    weight, bias = oracle.lda_head(np.cov(features[:40], rowvar=False), count, mean)
    errors = []
    for number in (400, 40_000):
        head = covfree.fit(covfree.ccvr(number, l2=1e-7), features, labels, clients)
        gap = np.asarray(head.weight[:, 1] - head.weight[:, 0])
        errors.append(relative_error(gap, weight[:, 1] - weight[:, 0]))
    assert errors[1] < 0.08
    assert errors[1] < errors[0] / 3  # as 1/√n, ten times
    offset = float(head.bias[1] - head.bias[0])
    assert offset == pytest.approx(bias[1] - bias[0], abs=0.15)


# The others draw by the same functions: fedpft as CCVR, proto-hyper as FisherMix.
@pytest.mark.parametrize("name", ["fishermix", *slow("ccvr")])
def test_the_seed_decides_what_is_drawn(name):
    method = SAMPLED[name]()
    rows = covfree.summarise(method, *map(FLOAT32.array, FEDERATION), key=KEY)

    def head(seed):
        # One of the numbers of the method: it may be swept.
        drawn = replace(method, params=method.params._replace(seed=seed))
        return covfree.solve_rows(drawn, rows, num_classes=CLASSES)

    seeds = jnp.array([0, 1, 2, 0])
    if name == "ccvr":
        many = jax.jit(jax.vmap(head))(seeds)
    else:  # takes longer to compile
        many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(head, seeds))
    np.testing.assert_array_equal(many.weight[0], many.weight[3])
    assert relative_error(many.weight[1, :, :2], many.weight[0, :, :2]) > 1e-3
    assert_close(many.weight[0], fit(method, FEDERATION).weight, 3e-2)
    # As different as the draws are, they are of the same classes.
    scores = jax.vmap(lambda head: head(FEDERATION.clean.features))(many)
    right = (scores.argmax(-1) == FEDERATION.clean.labels[None, :]).mean(1)
    assert (right > 0.5).all()


@pytest.mark.parametrize("covariance", ["full", *slow("diagonal", "spherical")])
def test_mixtures_keep_the_class_means_and_learn(covariance):
    method = covfree.fedpft(2, covariance, 240)
    rows = covfree.summarise(method, *map(FLOAT32.array, FEDERATION), key=KEY)
    shape = {"diagonal": (DIM,), "spherical": (), "full": (DIM, DIM)}[covariance]
    assert rows.covariance.shape == (len(rows.count), *shape)
    count, mean, label, owner = map(np.asarray, (rows.count, rows.mean, rows.label, rows.client))
    clean = FEDERATION.clean
    for k in range(CLIENTS):
        for c in range(CLASSES):
            examples = clean.features[(clean.clients == k) & (clean.labels == c)]
            mine = (label == c) & (owner == k) & (count > 0)
            assert mine.sum() <= max(len(examples) // 2, min(len(examples), 1))
            if len(examples):
                assert_close(count[mine].sum(), len(examples), 1e-5)
                assert_close(count[mine] @ mean[mine] / len(examples), examples.mean(0), 1e-4)
    # Classes of one client are there too, with one component for each two examples, at most.
    assert (label[count > 0] == ALONE).sum() >= 1
    head = covfree.solve_rows(method, rows, num_classes=CLASSES)
    assert covfree.evaluate(head, *map(FLOAT32.array, (clean.features, clean.labels))) > 0.6
    if covariance == "spherical":
        descent = covfree.fedpft(2, covariance, epochs=100, learning_rate=0.05, batch_size=16)
        head = covfree.solve_rows(descent, rows, num_classes=CLASSES)
        assert covfree.evaluate(head, *map(FLOAT32.array, (clean.features, clean.labels))) > 0.6


# The others draw by the same functions.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedpft", "fishermix"])
def test_classes_of_one_example(name):
    # Nothing is known of their spread: what is drawn is the example itself, again and again.
    features = np.zeros((EXAMPLES, DIM), np.float32)
    labels = np.full(EXAMPLES, -1, np.int32)
    features[:3], labels[:3] = 5 * np.eye(DIM)[:3], np.arange(3)
    head = fit(SAMPLED[name](), federations.Federation(features, labels, np.arange(EXAMPLES) % CLIENTS))
    np.testing.assert_array_equal(head.present, np.arange(CLASSES) < 3)
    np.testing.assert_array_equal(head(features[:3]).argmax(-1), np.arange(3))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: covfree.ccvr(0), ValueError, "num_samples: expected an integer of at least 1, got 0"),
        (lambda: covfree.ccvr(l2=-1.0), ValueError, r"l2: expected a finite number of at least 0, got -1\.0"),
        (lambda: covfree.fedpft(0), ValueError, "num_components: expected an integer of at least 1, got 0"),
        (lambda: covfree.fedpft(covariance="tied"), ValueError, "covariance: expected one of .*got 'tied'"),
        (lambda: covfree.fedpft(num_samples=0), ValueError, "num_samples: expected an integer .*got 0"),
        (lambda: covfree.fedpft(l2=float("nan")), ValueError, "l2: expected a finite number .*got nan"),
        (lambda: covfree.fedpft(epochs=0), ValueError, "epochs: expected an integer of at least 1, got 0"),
        (
            lambda: covfree.fedpft(momentum=0.5),
            ValueError,
            "momentum: expected None if epochs is None, got 0.5",
        ),
        (
            lambda: covfree.fedpft(num_samples=5, epochs=1),
            ValueError,
            "num_samples: expected None if epochs is given",
        ),
        (
            lambda: covfree.fedpft(epochs=1, momentum=2),
            ValueError,
            "momentum: expected a number in",
        ),
    ],
)
def test_wrong_arguments(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_mixtures_want_a_key():
    with pytest.raises(ValueError, match="key: expected a PRNG key"):
        covfree.fit(covfree.fedpft(), *FEDERATION.clean)
