"""Student heads against densities of full matrices in float64, their limits, and what takes them."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import CLASSES
from precision import FLOAT32, PRECISIONS, assert_close

import covfree
from covfree.core.lapack import orthonormal
from covfree.estimators.row_law import client_variance, row_law
from covfree.heads import metrics
from covfree.heads.gamma import log_gamma_ratio
from covfree.methods.student import shared_directions
from covfree.protocol.files import save_message
from covfree.protocol.inbox import Inbox
from covfree.rounds import as_algorithm, run
from covfree.testing.laws import centred

DIM = 6
FLOAT64 = PRECISIONS["float64"]
# Class 0 has more rows than dimensions, class 2 has one, class 3 none, −1 is padding.
LABELS = np.array([0] * 9 + [1] * 4 + [2] + [-1] * 2 + [0] * 2 + [4] * 3)


def table(offset=0.0, shift=0.0):
    """Rows, Σ̃ and features to classify, exact in float32."""
    rng = np.random.default_rng(0)
    count = rng.integers(1, 9, len(LABELS))
    spread = np.sqrt(1 / count + shift)[:, None] * np.array([1.0, 3.0, 1.0, 1.0, 0.3, 1.0])[LABELS][:, None]
    means = spread * rng.normal(size=(len(LABELS), DIM)) + 2 * np.eye(CLASSES, DIM)[LABELS] + offset
    root = rng.normal(size=(DIM, DIM))
    probes = 2 * rng.normal(size=(24, DIM)) + offset
    covariance = root @ root.T / DIM + np.eye(DIM)
    means, covariance, probes = (
        np.asarray(x, np.float32).astype(np.float64) for x in (means, covariance, probes)
    )
    return (means, count, LABELS), covariance, probes


@jax.jit
def head_of(covariance, means, count, label, prior):
    return covfree.student_head(
        covariance, covfree.Rows(means, count, label), num_classes=CLASSES, prior=prior
    )


def made(given, precision, prior=1.0):
    (means, count, label), covariance, _ = given
    with precision.context():
        arrays = (jnp.asarray(x, precision.dtype) for x in (covariance, means))
        return head_of(*arrays, jnp.asarray(count, jnp.int32), jnp.asarray(label, jnp.int32), prior)


def scored(head, probes, precision):
    with precision.context():
        return centred(head(jnp.asarray(probes, precision.dtype)))


def expected(given, prior=1.0):
    rows, covariance, probes = given
    return centred(oracle.student_scores(list(zip(*rows, strict=True)), covariance, CLASSES, prior)(probes))


@pytest.mark.parametrize(
    ("numbers", "prior"),
    [({}, 0.5), ({"offset": 100.0}, 0.05), ({"shift": 4.0}, 3.0)],
    ids=str,
)
def test_scores_are_those_of_full_matrices(numbers, prior):
    given = table(**numbers)
    exact = expected(given, prior)
    assert np.isneginf(exact[:, [3, 5]]).all()
    assert_close(scored(made(given, FLOAT64, prior), given[2], FLOAT64), exact, 1e-9)
    assert_close(scored(made(given, FLOAT32, prior), given[2], FLOAT32), exact, 1e-5)


@pytest.mark.slow
def test_clients_that_differ_count_for_less():
    means, count, label = table(shift=4.0)[0]
    one_size = np.full_like(count, count.max())  # nothing tells that clients differ
    found = []
    for sizes in (count, one_size):
        rows = list(zip(means, sizes, label, strict=True))
        number, _, centres = oracle.moments(rows, CLASSES)
        found.append(oracle.client_variance(rows, number, centres, 1.0))
        table_of = covfree.Rows(jnp.asarray(means, jnp.float32), jnp.asarray(sizes), jnp.asarray(label))
        law = row_law(table_of, covfree.first_moments(table_of, CLASSES), 1.0)
        np.testing.assert_allclose(client_variance(law), found[-1], rtol=1e-4)
    assert found[0] > 0.1
    assert found[1] == 0


def test_any_unit_and_far_from_zero():
    given = table()
    near = scored(made(given, FLOAT32), given[2], FLOAT32)
    (means, count, label), covariance, probes = given
    for unit in (2.0**-40, 2.0**40):
        other = (means * unit, count, label), covariance * unit**2, probes * unit
        assert_close(scored(made(other, FLOAT32), other[2], FLOAT32), near, 1e-5)
    away = table(offset=1e4)
    assert_close(scored(made(away, FLOAT32), away[2], FLOAT32), expected(away), 2e-3)


def test_a_heavy_prior_is_linear_discriminant_analysis():
    (means, count, label), covariance, probes = table()
    # Many examples: Student scores know of the variance of class means, which LDA does not.
    given = (means, 1000 * count, label), covariance, probes
    columns = np.float32(means), np.int32(given[0][1]), np.int32(label)
    moments = covfree.first_moments(covfree.Rows(*map(jnp.asarray, columns)), CLASSES)
    expected = centred(covfree.lda_head(np.float32(covariance), moments)(np.float32(probes)))
    head = made(given, FLOAT32, 1e7)
    assert_close(scored(head, probes, FLOAT32), expected, 2e-3)
    assert_close(centred(head.linear(np.float32(probes))), expected, 1e-5)


def test_ratios_of_gamma_functions():
    from scipy.special import gammaln

    extra = np.array([0.0, 0.5, 7.0, 400.0])
    for dim in (1, 2, 5, 64, 65):
        for least in (1.1, 20.0):
            exact = gammaln(least + extra + dim / 2) - gammaln(least + extra)
            exact -= gammaln(least + dim / 2) - gammaln(least)
            found = log_gamma_ratio(jnp.float32(least), jnp.asarray(extra, jnp.float32), dim)
            np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-6)
    # Where logarithms of Γ are 10¹¹ apart from what differs: (d/2) log(1 + extra/least) to first order.
    found = log_gamma_ratio(jnp.float32(1e9), jnp.asarray(extra, jnp.float32), 64)
    np.testing.assert_allclose(found, 32 * extra / 1e9, rtol=1e-4)


def test_blocks_of_examples_have_the_scores_of_each(monkeypatch):
    given = table()
    head, many = made(given, FLOAT32), np.float32(np.tile(given[2], (9, 1)))
    monkeypatch.setattr("covfree.heads.student._BLOCK", 1)
    assert_close(np.asarray(head(many)), np.tile(np.asarray(head(many[:24])), (9, 1)), 1e-6)


def federation(num=900, dim=12):
    """Classes of very different covariances, at clients that hold some of them."""
    rng = np.random.default_rng(num)
    labels, clients = rng.integers(0, 3, num), rng.integers(0, 40, num)
    scale = np.exp(np.random.default_rng(1).normal(size=(3, dim)))
    features = 0.3 * np.eye(3, dim)[labels] + scale[labels] * rng.normal(size=(num, dim))
    return np.float32(features), labels.astype(np.int32), clients.astype(np.int32)


@pytest.mark.slow
def test_every_estimate_of_the_shared_covariance_takes_it():
    features, labels, clients = federation()
    tests, truth, _ = federation(num=3000)
    choices = {
        "fedcof": covfree.fedcof(0.1, head="student"),
        "oracle": covfree.fedcof_oracle(0.1, head="student"),
        "components": covfree.fedcof_components(0.1, head="student"),
        "random features": covfree.fedcof(0.1, head="student").with_feature_map(covfree.relu_features(40)),
    }
    found = {}
    for name, method in choices.items():
        head = covfree.fit(method, features, labels, clients, key=jax.random.key(0))
        found[name] = float(covfree.evaluate(head, tests, truth))
        assert "student" in method.name
    linear = float(
        covfree.evaluate(covfree.fit(covfree.fedcof(0.1), features, labels, clients), tests, truth)
    )
    assert min(found.values()) > linear + 0.05, (found, linear)


@pytest.mark.slow
def test_the_oracles_messages_give_the_head_of_the_simulation():
    features, labels, clients = federation()
    for rank in (None, 4):
        method = covfree.fedcof_oracle(0.1, head=covfree.student(rank=rank))
        simulated = covfree.fit(method, features, labels, clients)
        sent = {
            int(k): covfree.client_message(
                method, features[clients == k], labels[clients == k], num_classes=3
            )
            for k in np.unique(clients)
        }
        message = covfree.collect(sent, num_classes=3).message
        deployed = covfree.solve_message(method, message, num_classes=3)
        assert_close(centred(deployed(features[:9])), centred(simulated(features[:9])), 1e-3)


def test_the_server_holds_one_table_of_rows_beside_the_head():
    rows = covfree.Rows(jnp.ones((9000, 8)), jnp.ones(9000, jnp.int32), jnp.arange(9000, dtype=jnp.int32) % 3)
    method = covfree.fedcof(0.1, head="student")
    # The state keeps the means as they came; a compiled function would have copied them.
    *_, kept = covfree.accumulate(method, rows, num_classes=3)
    assert kept.mean is rows.mean
    moments = covfree.first_moments(rows, 3)
    law = jax.jit(row_law).lower(rows, moments, 1.0).compile().memory_analysis()
    assert law.temp_size_in_bytes < rows.mean.nbytes


@pytest.mark.slow
def test_few_directions_from_sums(tmp_path):
    features, labels, clients = federation()
    exact = covfree.fit(covfree.fedcof(0.1, head="student"), features, labels, clients)
    # As many directions as dimensions know all.
    whole = covfree.fedcof(0.1, head=covfree.student(rank=12))
    head = covfree.fit(whole, features, labels, clients)
    assert_close(centred(head(features[:50])), centred(exact(features[:50])), 1e-3)
    # Sums alone, which clients may send too.
    few = covfree.fedcof(0.1, head=covfree.student(rank=3))
    rows = covfree.summarise(few, features, labels, clients)
    one = covfree.solve_rows(few, rows, num_classes=3)
    assert one.parts.shape == (9, 12)

    def part(index):
        kept = jnp.arange(len(rows.label)) % 3 == index
        return covfree.Rows(rows.mean, jnp.where(kept, rows.count, 0), rows.label, rows.client)

    totals = covfree.accumulate(few, covfree.Generated(part, 3), num_classes=3)
    for k in np.unique(clients):
        mine = clients == k
        message = covfree.client_message(few, features[mine], labels[mine], num_classes=3)
        save_message(message, tmp_path / f"{k:02}.safetensors")
    others = {
        "parts": covfree.solve_totals(few, *totals),
        "files": covfree.solve_rows(few, covfree.Stream(Inbox(tmp_path), part_rows=32), num_classes=3),
        "clients' sums": run(
            as_algorithm(few, num_classes=3, uploads="sums"), features, labels, clients, key=jax.random.key(0)
        ).result,
    }
    for other in others.values():
        assert_close(centred(other(features[:50])), centred(one(features[:50])), 1e-4)
    every = covfree.fedcof(head="student")
    for make in (
        lambda: covfree.accumulate(every, covfree.Generated(part, 3), num_classes=3),
        lambda: covfree.accumulate(every, covfree.Stream(rows), num_classes=3),
        lambda: as_algorithm(every, num_classes=3, uploads="sums"),
    ):
        with pytest.raises(
            ValueError, match=r"method: expected one with totals of fixed size.*student\(rank=16"
        ):
            make()
    shared = shared_directions(12, 3, jnp.float32)
    assert_close(shared.T @ shared, np.eye(3), 1e-5)
    assert orthonormal(shared).shape == (12, 3)


@pytest.mark.slow
def test_probabilities_are_calibrated():
    """Where a class has few rows, plug-in Gaussians are over-confident and Student densities are not."""
    features, labels, clients = federation(num=120)
    tests, truth, _ = federation(num=3000)
    found = {}
    for name, method in {
        "lda": covfree.fedcof(0.1),
        "qda": covfree.qda(0.1, prior=0.05, covariance="means"),
        "student": covfree.fedcof(0.1, head=covfree.student(0.05)),
    }.items():
        scores = covfree.fit(method, features, labels, clients)(tests)
        found[name] = (
            float(metrics.nll(scores, truth)),
            float(metrics.calibration_error(scores, truth)),
        )
    assert found["student"][0] < min(found["lda"][0], found["qda"][0]), found
    assert found["student"][1] < found["qda"][1], found


@pytest.mark.slow
def test_training_starts_from_its_linear_part():
    from covfree.finetune import linear_model

    features, labels, clients = federation()
    head = covfree.fit(covfree.fedcof(0.1, head="student"), features, labels, clients)
    linear = covfree.fit(covfree.fedcof(0.1), features, labels, clients)
    assert_close(centred(linear_model(head)(features)), centred(linear(features)), 1e-3)
    finite = covfree.with_finite_scores(head)
    assert finite.present is None
    assert_close(np.asarray(finite(features)), np.asarray(head(features)), 1e-6)
    rows = covfree.summarise(covfree.fedcof(), features, labels, clients)
    diagnosis = covfree.diagnose(rows, num_classes=3, method=covfree.fedcof(0.1, head="student"))
    assert int(diagnosis.system.rank) == 12


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: covfree.student(0.0), r"prior: expected a finite number above 0, got 0\.0"),
        (lambda: covfree.student(-1.0), "prior: expected a finite number"),
        (lambda: covfree.student(rank=0), "rank: expected"),
        (lambda: covfree.fedcof(head="student", scatter="both"), "scatter: expected 'within' unless"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_head_is_differentiated_with_its_integers():
    (means, count, label), covariance, features = (jax.tree.map(np.float32, x) for x in table())
    head = head_of(covariance, means, count, label.astype(int), 1.0)
    slope = jax.grad(lambda head: head(features)[:, 0].sum(), allow_int=True)(head)
    assert slope.label.dtype == jax.dtypes.float0
    np.testing.assert_allclose(slope.log_prior[0], len(features))
    assert jax.grad(lambda head: head(features)[:, 0].sum())(head.linear).bias[0] == len(features)
