"""Methods of several rounds of sums: their formulas by loops in float64, whoever holds the examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf
from scipy.stats import norm
from variants import slow

import covfree
from covfree import rounds, studies
from covfree.core.keys import derive
from covfree.data import load_digits
from covfree.engine.totals import How, InMemory, through
from covfree.methods.field.deepafl import solve_layer

CLASSES, DIM, SIZE, CLIENTS = 4, 5, 60, 5
RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 3, SIZE)  # nobody holds the last class
FEATURES = RNG.normal(size=(SIZE, DIM)) + 1.5 * RNG.normal(size=(3, DIM))[LABELS] + 1
# Two federations of clients of one size, of which the second's are each of few classes.
PARTITIONS = np.arange(SIZE) % CLIENTS, np.argsort(np.argsort(LABELS, kind="stable")) // (SIZE // CLIENTS)
DEEP = covfree.deepafl(2, 7, 6, ridge=0.3, layer_ridge=0.2, seed=4)
SAFLE = covfree.safle(2, 3, ridge=0.5, seed=4)
HOW = How(CLASSES, False)
METHODS = pytest.mark.parametrize("method", [SAFLE, *slow(DEEP)], ids=lambda m: m.name)


def after(method, features, rounds):
    """The server's state after some rounds over all examples."""
    source = InMemory(covfree.Rows.from_examples(features, LABELS), HOW)
    return through(method.rounds[:rounds], method.params, source)


def normal(stream, rows, columns):
    drawn = jax.random.normal(derive(jax.random.key(4), stream), (rows + 1, columns), jnp.float32)
    return np.asarray(drawn, float) / np.sqrt(rows)


def ridge(mapped, targets, strength):
    return np.linalg.solve(mapped.T @ mapped + strength * np.eye(mapped.shape[1]), mapped.T @ targets)


def layer(random, residual, weight, strength):
    """Ω from the normal equations of all its entries at once: vec(AΩB) = (Bᵀ ⊗ A) vec(Ω)."""
    left = np.kron(weight @ weight.T, random.T @ random)
    right = (random.T @ residual @ weight.T).ravel(order="F")
    flat = np.linalg.solve(left + strength * np.eye(len(left)), right)
    return flat.reshape(random.shape[1], weight.shape[0], order="F")


def deep_scores(layers):
    targets = np.eye(CLASSES)[LABELS]
    scaled = [[*(np.sqrt(DIM) * x / np.linalg.norm(x)), 1] for x in FEATURES]
    mapped = np.tanh(np.array(scaled) @ normal("input", DIM, 7))
    for index in range(layers):
        weight = ridge(mapped, targets, 0.3)
        inner = np.hstack([mapped, np.ones((SIZE, 1))]) @ normal(f"layer {index}", 7, 6)
        random = 0.5 * inner * (1 + erf(inner / np.sqrt(2)))
        mapped = mapped + random @ layer(random, targets - mapped @ weight, weight, 0.2)
    return mapped @ ridge(mapped, targets, 0.3)


def bucket_scores(_):
    mean, deviation = FEATURES.mean(0), FEATURES.std(0)
    order = np.asarray(jax.random.permutation(derive(jax.random.key(4), "permutation"), 2 * DIM))
    tables = -(-2 * DIM // 3)
    mapped = np.zeros((SIZE, tables, 8))
    for i, x in enumerate(FEATURES):
        bits = [
            x[j] > mean[j] + deviation[j] * norm.ppf(share) for j in range(DIM) for share in (1 / 3, 2 / 3)
        ]
        # A table's digits, the first the least; the last table lacks some.
        digits = [bits[source] for source in order] + [False] * (3 * tables - 2 * DIM)
        for table in range(tables):
            mapped[i, table, sum(int(digits[3 * table + g]) << g for g in range(3))] = 1
    mapped = mapped.reshape(SIZE, -1)
    return mapped @ ridge(mapped, np.eye(CLASSES)[LABELS], 0.5)


EXPECTED = {"deepafl": deep_scores, "safle": bucket_scores}


def test_examples_are_rows_wherever_they_lie():
    """As of any method: from a stream of parts as from memory."""
    features = FEATURES.astype(np.float32)
    rows = covfree.Rows.from_examples(features, LABELS)
    expected = covfree.fit(SAFLE, features, LABELS, PARTITIONS[0], num_classes=CLASSES)
    head = covfree.solve_rows(SAFLE, covfree.Stream(rows, part_rows=16), num_classes=CLASSES)
    np.testing.assert_allclose(head(features), expected(features), rtol=1e-3, atol=1e-4)


@METHODS
def test_heads_are_those_of_the_formulas_whoever_holds_the_examples(method):
    features = FEATURES.astype(np.float32)
    expected = EXPECTED[method.name](2)
    head = covfree.fit(method, features, LABELS, PARTITIONS[0], num_classes=CLASSES)
    scores = np.asarray(head(features))
    np.testing.assert_allclose(scores[:, :3], expected[:, :3], atol=2e-3)
    assert (scores[:, 3] == -np.inf).all()
    assert (scores.argmax(1) == LABELS).mean() > 0.8
    if method is DEEP:  # one layer shows as much
        method, expected = covfree.deepafl(1, 7, 6, ridge=0.3, layer_ridge=0.2, seed=4), deep_scores(1)
    algorithm = rounds.as_algorithm(method, num_classes=CLASSES)
    for clients in PARTITIONS:
        done = rounds.run(
            algorithm, features, LABELS, clients, key=jax.random.key(0), evaluate=lambda head: {"there": 1}
        )
        np.testing.assert_allclose(done.result(features)[:, :3], expected[:, :3], atol=2e-3)
    # There is a head after the rounds in which one is solved.
    there = [record["round"] for record in done.history if "there" in record]
    assert there == ([2] if method is SAFLE else [0, 2])
    # Bytes by the runner are those that are computed in advance, of as many classes.
    labels = np.append(LABELS, CLASSES - 1)
    clients = np.append(PARTITIONS[0], 0)
    sent = covfree.sent_bytes(method, labels, clients, dim=DIM)
    assert sum(record["bytes_up"] for record in done.history) == sent.total
    received = covfree.received_bytes(method, labels, clients, dim=DIM)
    assert sum(record["bytes_down"] for record in done.history) == received > 0


def test_bytes_are_the_docstrings():
    labels, clients = np.arange(6) % 3, np.array([0, 0, 0, 1, 1, 1])
    sent = covfree.sent_bytes(covfree.deepafl(2, 11, 13), labels, clients, dim=5)
    assert sent == covfree.SentBytes(2 * 4 * (3 * (11 * 11 + 11 * 3) + 2 * (13 * 13 + 13 * 3)), 2 * 4 * 3 * 3)
    mapped = 8 * 5
    sent = covfree.sent_bytes(covfree.safle(), labels, clients, dim=5)
    assert sent == covfree.SentBytes(2 * 4 * (3 * 5 + mapped * mapped + mapped * 3), 2 * 4 * (2 + 3))
    nobody = np.full(3, -1)
    assert covfree.sent_bytes(covfree.safle(), nobody, nobody, dim=5).total == 0
    assert covfree.client_flops(covfree.safle(), nobody, nobody, dim=5) == 0
    assert covfree.client_flops(DEEP, labels, clients, dim=5) == 2 * covfree.client_flops(
        DEEP, labels[:3], clients[:3], dim=5
    )


def test_layers_minimise_what_they_claim():
    """Whatever ranks G and W have: the gradient GΩWWᵀ + γΩ − HWᵀ is 0."""
    for inner, width, classes, size in ((6, 3, 5, 20), (8, 7, 2, 4)):
        random = RNG.normal(size=(size, inner)).astype(np.float32)
        weight = RNG.normal(size=(width, classes)).astype(np.float32)
        gram, cross = random.T @ random, random.T @ RNG.normal(size=(size, classes)).astype(np.float32)
        found = np.asarray(solve_layer(jnp.asarray(gram), jnp.asarray(cross), jnp.asarray(weight), 0.1))
        slope = gram @ found @ weight @ weight.T + 0.1 * found - cross @ weight.T
        assert np.abs(slope).max() < 2e-3 * np.abs(cross @ weight.T).max()


def test_padding_adds_nothing_and_units_do_not_matter():
    features = FEATURES.astype(np.float32)
    for method in (DEEP, SAFLE):
        nobody = InMemory(covfree.Rows.from_examples(features, np.full(SIZE, -1)), HOW)
        for number, each in enumerate(method.rounds[:2]):
            zeros = nobody(each, method.params, after(method, features, number))
            assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(zeros))
        clients = np.where(np.arange(SIZE) < 50, 0, -1)
        spoiled = np.where(clients[:, None] < 0, np.float32(1e30), 8 * features)
        head = covfree.fit(method, spoiled, LABELS, clients, num_classes=CLASSES)
        plain = covfree.fit(
            method, np.where(clients[:, None] < 0, 0, features), LABELS, clients, num_classes=CLASSES
        )
        np.testing.assert_allclose(head(8 * features)[:, :3], plain(features)[:, :3], atol=1e-4)


@pytest.mark.slow
def test_compared_as_other_methods():
    name = "deepafl:num_layers=1:width=96:inner=16"
    chosen, federation = studies.variants([name]), studies.Federation(20, "inner_dirichlet", 0.1)
    study = studies.Study({"digits": lambda seed: load_digits(seed=seed)}, [federation], chosen, [0])
    (run,) = study.runs()
    data = load_digits(seed=0)
    clients = federation.assign(data, 0)
    method = chosen[name].method
    head = covfree.fit(method, data.train_features, data.train_labels, clients, num_classes=10)
    accuracy = float(covfree.evaluate(head, data.test_features, data.test_labels))
    assert run.accuracy == pytest.approx(accuracy, abs=0.005)
    assert run.sent == covfree.sent_bytes(method, data.train_labels, clients, dim=64)
    assert run.received > 0
    assert run.rows == len(data.train_labels)
    assert accuracy > 0.85


@pytest.mark.usefixtures("untyped")
def test_wrong_arguments():
    for build, message in (
        (lambda: covfree.deepafl(0), "num_layers: expected an integer of at least 1, got 0"),
        (lambda: covfree.deepafl(width=0), "width: expected an integer of at least 1, got 0"),
        (lambda: covfree.deepafl(layer_ridge=0), "layer_ridge: expected a finite number above 0, got 0"),
        (lambda: covfree.deepafl(ridge=-1), "ridge: expected a finite number of at least 0, got -1"),
        (lambda: covfree.safle(0), "num_buckets: expected an integer of at least 1, got 0"),
        (lambda: covfree.safle(ridge=0.0), r"ridge: expected a finite number above 0, got 0\.0"),
        (
            lambda: covfree.bucket_features(np.zeros(3)),
            r"thresholds: expected shape \[dim, buckets\], got \[3\]",
        ),
        (
            lambda: covfree.bucket_features(np.zeros((3, 1)), 21),
            "group_size: expected at most 20, as a table has 2ᴳ entries, got 21",
        ),
        (
            lambda: covfree.bucket_features(np.zeros((3, 2)))(np.zeros((4, 1), np.float32)),
            "features: expected dim 3, a row of thresholds for each feature, got dim 1",
        ),
        (
            lambda: covfree.bucket_features(np.zeros((3, 1)), 0),
            "group_size: expected an integer of at least 1",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            build()
    with pytest.raises(
        ValueError, match=r"whose clients send a single message each, got 'deepafl', .* 5 rounds"
    ):
        covfree.client_message(DEEP, FEATURES, LABELS, num_classes=CLASSES)
    with pytest.raises(ValueError, match=r"transforms: .* got 'deepafl', which sends sums"):
        DEEP.with_transforms(covfree.count_noise("laplace", 1.0))
    with pytest.raises(ValueError, match="num_classes: expected an integer of at least 1, got 0"):
        rounds.as_algorithm(DEEP, num_classes=0)


def test_no_examples_make_a_head_that_predicts_nothing():
    none = np.zeros((0, 3), np.float32), np.zeros(0, int), np.zeros(0, int)
    head = covfree.fit(covfree.safle(), *none, num_classes=2)
    np.testing.assert_array_equal(head(np.ones((2, 3), np.float32)), -np.inf)


def test_deep_features_are_the_same_in_any_unit():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    head = covfree.fit(covfree.deepafl(1, 8, 4), features, labels, labels, num_classes=2)
    for scale in (2.0**-100, 2.0**100):
        np.testing.assert_allclose(head(features * np.float32(scale)), head(features), rtol=1e-5, atol=1e-6)


def test_safles_thresholds_stand_wherever_the_features_lie():
    """E[x²] − E[x]² is rounding where features lie 10,000 deviations from 0."""
    far = (FEATURES + 1e4 * np.array([1, -1, 1, 0, 10])).astype(np.float32)
    near = (far.astype(float) - far.astype(float).mean(0)).astype(np.float32)  # rounded as far ones are
    (state,), (other,) = (after(SAFLE, features, 2) for features in (far, near))
    # A step of float32 at 1e5 is 0.008.
    thresholds = np.asarray(state.thresholds, float) - far.astype(float).mean(0)[:, None]
    np.testing.assert_allclose(thresholds, other.thresholds, atol=0.01)
    head, same = (covfree.fit(SAFLE, x, LABELS, PARTITIONS[0], num_classes=CLASSES) for x in (far, near))
    assert np.abs(np.asarray(head(far) - same(near)))[:, :3].mean() < 0.02
