"""FedCOF, its relatives and Fed3R: their options, beyond what every method keeps (test_contracts)."""

from dataclasses import replace

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from classifiers import KEY, assert_same_classifier, fit
from federations import CLASSES, DIM
from precision import FLOAT32, assert_close, assert_heads_close, relative_error, x64
from variants import slow

import covfree
from covfree.estimators.shrinkage import Shrinkage, mean_variance

FEDERATION = federations.make(0)
ARRAYS = tuple(map(FLOAT32.array, FEDERATION))


@pytest.mark.parametrize("num_subsets", [2, None])
def test_subsets_keep_the_means_and_add_degrees(num_subsets):
    plain = covfree.summarise(covfree.fedcof(), *ARRAYS)
    method = covfree.fedcof(0.4, num_subsets=num_subsets)
    rows = covfree.summarise(method, *ARRAYS, key=KEY)
    first, second = (covfree.first_moments(r, CLASSES) for r in (plain, rows))
    assert_close(second.mean, first.mean, 1e-5)
    assert second.spread_degrees > first.spread_degrees
    # Two examples each, at least, where there are two.
    assert (np.asarray(rows.count) == 1).sum() <= (np.asarray(plain.count) == 1).sum()
    same = covfree.summarise(method, *ARRAYS, key=KEY)
    np.testing.assert_array_equal(same.mean, rows.mean)  # the key decides, and nothing else
    other = covfree.summarise(method, *ARRAYS, key=jax.random.key(9))
    assert relative_error(other.mean, rows.mean) > 0


def test_the_size_of_subsets_bounds_their_number():
    # As many as the size allows: ⌊n/size⌋ of each client's class, at least one.
    counts = np.asarray(covfree.summarise(covfree.fedcof(), *ARRAYS).count)
    for size in (1, 3):
        method = covfree.fedcof(num_subsets=None, subset_size=size)
        rows = covfree.summarise(method, *ARRAYS, key=KEY)
        assert (np.asarray(rows.count) > 0).sum() == np.maximum(counts[counts > 0] // size, 1).sum()
    # Single examples are the examples: what is seen is their own scatter.
    everything = covfree.summarise(covfree.fedcof(num_subsets=None, subset_size=1), *ARRAYS, key=KEY)
    moments = covfree.first_moments(everything, CLASSES)
    exact = oracle.exact_within_scatter(*FEDERATION.clean[:2], CLASSES)
    assert_close(covfree.within_scatter(everything, moments), exact, FLOAT32.tolerance)


def test_pooled_weighting_equals_the_oracle():
    head = fit(covfree.fedcof(shrinkage=0.4, weighting="pooled"), FEDERATION)
    expected = oracle.fedcof(*FEDERATION.clean, CLASSES, gamma=0.4, weighting="pooled")
    assert_heads_close(head, expected, FLOAT32.tolerance)


@pytest.mark.parametrize("scatter", ["within", "both", "between"])
def test_parts_of_the_gram_matrix(scatter):
    head = fit(covfree.fedcof(shrinkage=0.4, head="ridge", scatter=scatter), FEDERATION)
    rows = oracle.client_rows(*FEDERATION.clean)
    count, _, mean = oracle.moments(rows, CLASSES)
    # γ stays in every case, as (N − C)·γ.
    matrix = oracle.diagonal_loading(
        oracle.grand_term(rows, CLASSES), 0.4 * oracle.within_degrees(rows, CLASSES)
    )
    if scatter != "between":
        matrix = matrix + oracle.within_scatter(rows, CLASSES)
    if scatter != "within":
        matrix = matrix + oracle.between_scatter(rows, CLASSES)
    assert_heads_close(head, oracle.ridge_head(matrix, count, mean), FLOAT32.tolerance)


@pytest.mark.parametrize("covariance", ["full", "diagonal", "spherical"])
def test_what_clients_send_of_their_covariances_is_enough_for_a_ridge_head(covariance):
    head = fit(covfree.fedcof_oracle(0.4, "ridge", covariance=covariance), FEDERATION)
    expected = oracle.fedcof_oracle(*FEDERATION.clean, CLASSES, 0.4, "ridge", covariance)
    assert_heads_close(head, expected, FLOAT32.tolerance)


def test_one_client_sends_its_own_covariance():
    # No means spread: of diagonal covariances the diagonal is all that is left.
    clean = FEDERATION.clean
    one = clean._replace(clients=np.zeros_like(clean.clients))
    # A head function gives the covariance away.
    seen = lambda covariance, moments: covfree.LinearHead(covariance.dense(), jnp.zeros(DIM))  # noqa: E731
    exact = oracle.exact_within_scatter(one.features, one.labels, CLASSES) / (len(one.labels) - CLASSES + 1)
    full, diagonal, spherical = (
        fit(covfree.fedcof_oracle(0.0, seen, covariance=c), one).weight
        for c in ("full", "diagonal", "spherical")
    )
    assert_close(full, exact, FLOAT32.tolerance)
    assert_close(diagonal, np.diag(np.diag(exact)), FLOAT32.tolerance)
    assert_close(spherical, np.eye(DIM) * np.trace(exact) / DIM, FLOAT32.tolerance)


def test_a_head_may_be_a_function():
    def head(covariance, moments):
        return covfree.lda_head(covariance.dense(), moments)

    custom = fit(covfree.fedcof(shrinkage=0.4, head=head), FEDERATION)
    assert_heads_close(custom, fit(covfree.fedcof(shrinkage=0.4, head="lda"), FEDERATION), 1e-5)

    def quadratic(covariance, moments):
        return covfree.gaussian_head(jnp.stack([covariance.dense()] * CLASSES), moments)

    # One covariance for all classes: but for what all scores share, linear discriminant analysis.
    scores, linear = (
        h(FEDERATION.clean.features.astype(np.float32))
        for h in (fit(covfree.fedcof(shrinkage=0.4, head=quadratic), FEDERATION), custom)
    )
    assert_close(jax.nn.softmax(scores), jax.nn.softmax(linear), 1e-4)


MAPPED = {
    "fed3r": covfree.fed3r(0.4),
    "fedcof": covfree.fedcof(0.4),
    "afl": covfree.afl(),
    "qda": covfree.qda(),
    "ensemble": covfree.ensemble(),
    "refined": covfree.refined(covfree.fedcof(0.4), 1),
    "corrected": covfree.corrected(covfree.fedcof(0.4), 2),
    "deepafl": covfree.deepafl(2, 16, 16),
    "safle": covfree.safle(),
}


@pytest.mark.parametrize("method", ["fed3r", "fedcof", *slow(*[*MAPPED][2:])])
def test_a_map_of_features_is_as_good_as_features_that_were_mapped(method):
    method, feature_map = MAPPED[method], covfree.relu_features(7, seed=3)
    head = fit(method.with_feature_map(feature_map), FEDERATION)
    mapped = FEDERATION.with_features(np.asarray(feature_map(ARRAYS[0])))
    plain = fit(method, mapped)
    assert_same_classifier(head, lambda x: plain(feature_map(x)), 1e-5)


def test_another_map_is_another_head_and_there_is_one():
    heads = [
        fit(covfree.fedcof(0.4).with_feature_map(covfree.relu_features(7, seed=seed)), FEDERATION)
        for seed in (3, 4)
    ]
    assert relative_error(heads[1].head.weight, heads[0].head.weight) > 1e-3
    mapped = covfree.fedcof().with_feature_map(covfree.relu_features(7))
    with pytest.raises(
        ValueError, match="feature_map: expected a method without a map, got 'fedcof', which has"
    ):
        mapped.with_feature_map(covfree.relu_features(7))
    with pytest.raises(ValueError, match="feature_map: expected a method that select did not make, got"):
        covfree.select([covfree.fedcof(0.1), covfree.fedcof(1.0)]).with_feature_map(covfree.relu_features(7))
    with pytest.raises(TypeError, match=r"feature_map: expected a map such as .*, got <function"):
        covfree.fedcof().with_feature_map(lambda x: 2 * x)
    # It has all that a map needs, but is no pytree.
    unregistered = type("Own", (), {"num_features": 2, "__call__": lambda self, x: x})()
    with pytest.raises(TypeError, match=r"feature_map: .* got <.*Own .*register_dataclass makes"):
        covfree.fedcof().with_feature_map(unregistered)


def test_a_method_is_shown_by_its_name_and_numbers():
    method = covfree.fedcof(0.5).with_feature_map(covfree.relu_features(7))
    shown = "Shrinkage(strength=0.5, rule=_identity, statistics=_nothing, needs_rows=False)"
    assert repr(method) == f"Method('fedcof', params={shown}, feature_map=ReluFeatures)"
    noisy = covfree.fedncm().with_transforms(covfree.count_noise("laplace", 1.0))
    noise = "Transform(strength=1.0, apply=_Noise(kind='laplace'))"
    assert repr(noisy) == f"Method('fedncm', params=None, transforms=({noise},))"
    nested = covfree.select([covfree.refined(covfree.fedcof(number), 1) for number in (0.5, 1.0)])
    traced = []
    jax.jit(lambda number: traced.append(repr(covfree.fed3r(number))))(0.5)
    assert " at 0x" not in repr(nested) + traced[0]


@pytest.mark.slow
def test_derivatives():
    """The default takes the strength that it chose as given; test_contracts differentiates by a number."""
    federation, weight = FEDERATION.clean, np.random.default_rng(0).normal(size=(DIM, CLASSES))
    with x64():
        rows = covfree.summarise(covfree.fedcof(), *federation)
        moments, spread = covfree.accumulate(covfree.fedcof(), rows, num_classes=CLASSES)
        direction = jnp.asarray(np.random.default_rng(1).normal(size=rows.mean.shape))

        @jax.jit
        @jax.value_and_grad
        def loss(step, method):
            moved = replace(rows, mean=rows.mean + step * direction)
            head = covfree.solve_rows(method, moved, num_classes=CLASSES)
            return (weight * head.weight).sum()

        default = covfree.fedcof()
        chosen = default.system(default.params, moments, spread)
        scale = mean_variance(chosen.unshifted) / mean_variance(spread.scatter)
        # Of (a·Σ̂ + b·I) with the same a and b held fixed.
        given = covfree.fedcof(Shrinkage(chosen.shift, lambda strength, *_: (scale, strength)))
        (value, slope), expected = loss(0.0, default), loss(0.0, given)
        np.testing.assert_allclose((value, slope), expected, rtol=1e-9)
        differences = (loss(1e-5, default)[0] - loss(-1e-5, default)[0]) / 2e-5
        assert abs(slope / differences - 1) > 1e-3


# Arguments


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: covfree.fedcof(weighting="mean"),
            ValueError,
            r"weighting: expected one of \('per_class', 'pooled'\), got 'mean'",
        ),
        (lambda: covfree.fedcof(head="svm"), ValueError, "head: expected 'lda', .* or a function, got 'svm'"),
        (lambda: covfree.fedcof(head="auto"), ValueError, "head: expected 'lda', 'ridge', .*got 'auto'"),
        (lambda: covfree.fedcof(head=3), ValueError, "head: expected 'lda', .* or a function, got 3"),
        (lambda: covfree.fedcof_oracle(head="svm"), ValueError, "head: expected"),
        (
            lambda: covfree.fedcof_oracle(covariance="tied"),
            ValueError,
            "covariance: expected one of .*'tied'",
        ),
        (lambda: covfree.fedcof(num_subsets=0), ValueError, "num_subsets: expected .*at least 1.*got 0"),
        (lambda: covfree.fedcof(num_subsets=1.5), TypeError, r"num_subsets: expected .*got 1\.5"),
        (lambda: covfree.fedcof(subset_size=0), ValueError, "subset_size: expected .*at least 1.*got 0"),
        (lambda: covfree.fedcof(head="ridge", scatter="all"), ValueError, "scatter: expected one of .*'all'"),
        (
            lambda: covfree.fedcof(scatter="both"),
            ValueError,
            "scatter: expected 'within' unless the head is 'ridge', got 'both'",
        ),
        (lambda: covfree.fedcof(shrinkage="best"), ValueError, "shrinkage: expected"),
        (lambda: covfree.fedcof_oracle(shrinkage=-1.0), ValueError, "expected a finite number of at least 0"),
        (lambda: covfree.fed3r(ridge=-1.0), ValueError, r"ridge: expected .*got -1\.0"),
        (lambda: covfree.fed3r(ridge=float("nan")), ValueError, "ridge: expected .*got nan"),
        (lambda: covfree.fed3r(ridge="one"), TypeError, "ridge: expected .*got 'one'"),
        (lambda: covfree.fed3r(scatter="between"), ValueError, "scatter: expected one of .*got 'between'"),
        (lambda: covfree.afl(-1.0), ValueError, r"gamma: expected .*got -1\.0"),
        (lambda: covfree.afl(ridge=float("inf")), ValueError, "ridge: expected .*got inf"),
    ],
)
def test_wrong_arguments(build, error, message):
    with pytest.raises(error, match=message):
        build()
