"""Integers of every type give what int32 gives; those beyond it do not pass; misuse of functions is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import x64

import covfree
from covfree.core.doors import as_int32
from covfree.heads.file import SavedHead
from covfree.methods import Method, keep_examples

pytestmark = pytest.mark.usefixtures("untyped")

TYPES = [np.int8, np.uint16, np.uint32, np.int64, np.uint64]
RNG = np.random.default_rng(0)
EXAMPLES, CLASSES = 24, 300  # more classes than small types count
LABELS, CLIENTS = np.arange(EXAMPLES) % 3, np.arange(EXAMPLES) % 5
COUNTS = np.arange(1, EXAMPLES + 1)
FEATURES = (RNG.normal(size=(EXAMPLES, 2)) + LABELS[:, None]).astype(np.float32)
NCM = covfree.fedncm()
HEAD = covfree.LinearHead(jnp.asarray(RNG.normal(size=(2, CLASSES)).astype(np.float32)), jnp.zeros(CLASSES))


def rows(labels, clients, counts):
    return covfree.Rows(FEATURES, counts, labels, clients)


# Functions of labels, clients and counts; the arguments that each of them looks at.
FUNCTIONS = {
    "fit": ("lk", lambda y, k, n: covfree.fit(NCM, FEATURES, y, k, num_classes=CLASSES)),
    "fit, classes counted": ("lk", lambda y, k, n: covfree.fit(NCM, FEATURES, y, k)),
    "summarise": ("lk", lambda y, k, n: covfree.summarise(NCM, FEATURES, y, k)),
    "client_message": ("l", lambda y, k, n: covfree.client_message(NCM, FEATURES, y, num_classes=CLASSES)),
    "class_means": ("l", lambda y, k, n: covfree.class_means(FEATURES, y, CLASSES)),
    "class_covariances": ("l", lambda y, k, n: covfree.class_covariances(FEATURES, y, CLASSES)),
    "gram": ("l", lambda y, k, n: covfree.gram(FEATURES, y, CLASSES)),
    "client_rows": ("lk", lambda y, k, n: covfree.client_rows(FEATURES, y, k, num_rows=EXAMPLES)),
    "count_rows": ("lk", lambda y, k, n: covfree.count_rows(y, k)),
    "sent_bytes": ("lk", lambda y, k, n: covfree.sent_bytes(covfree.fed3r(), y, k, dim=2)),
    "first_moments": ("l", lambda y, k, n: covfree.first_moments(rows(y, k, n), CLASSES)),
    "solve_rows": ("lkn", lambda y, k, n: covfree.solve_rows(NCM, rows(y, k, n), num_classes=CLASSES)),
    "evaluate": ("l", lambda y, k, n: covfree.evaluate(HEAD, FEATURES, y)),
}
COLUMNS = {"l": ("label", LABELS), "k": ("client", CLIENTS), "n": ("count", COUNTS)}


def numbers(result):
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(result)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_of_every_type_are_int32(name):
    _, function = FUNCTIONS[name]
    columns = LABELS, CLIENTS, COUNTS
    expected = numbers(function(*(column.astype(np.int32) for column in columns)))
    for dtype, array in [(dtype, np.asarray) for dtype in TYPES] + [(np.uint8, jnp.asarray)]:
        actual = numbers(function(*(array(column.astype(dtype)) for column in columns)))
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=str(dtype))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("column", "lk")
def test_what_int32_cannot_hold(name, column):
    """2³² is 0 where it is cut. It is refused, but `fit` numbers clients anew."""
    looked_at, function = FUNCTIONS[name]
    if column not in looked_at:
        return
    argument, _ = COLUMNS[column]
    for dtype, large in ((np.int64, 2**32), (np.uint32, 2**32 - 1), (np.uint64, 2**63)):
        wide = {c: np.array(values).astype(dtype) for c, (_, values) in COLUMNS.items()}
        wide[column][7] = large
        if column == "k" and name in ("fit", "fit, classes counted", "summarise", "count_rows", "sent_bytes"):
            named = np.array(CLIENTS)
            named[7] = 5
            expected = numbers(function(LABELS, named, COUNTS))
            for one, other in zip(numbers(function(*wide.values())), expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
            continue
        with pytest.raises(ValueError, match=f"{argument}.*{large}"):
            function(*wide.values())


def test_far_below_zero_is_padding():
    """−2³² is 0 too where it is cut."""
    labels = LABELS.astype(np.int64)
    labels[:3] = -(2**32)
    _, counts = covfree.class_means(FEATURES, labels, 3)
    np.testing.assert_array_equal(counts, np.bincount(LABELS[3:]))
    assert covfree.summarise(NCM, FEATURES, labels, CLIENTS).count.sum() == EXAMPLES - 3
    assert as_int32("labels", labels).dtype == jnp.int32
    # Clients' messages are padded to few lengths, and rows are put on devices.
    labels[:3] = -(2**32) + 1
    message = covfree.client_message(NCM, FEATURES, labels, num_classes=3)
    np.testing.assert_array_equal(message.rows.count, np.bincount(LABELS[3:]))
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = covfree.Rows(FEATURES, labels.clip(0) - (labels < 0) * 2**40, labels)
    sharded = covfree.shard_rows(rows, mesh)
    assert int((sharded.label == 0).sum()) == int((labels == 0).sum())
    assert int((sharded.count > 0).sum()) == int((labels > 0).sum())


# Misuse

ROWS = rows(LABELS, CLIENTS, COUNTS)
MESSAGE = covfree.client_message(NCM, FEATURES, LABELS, num_classes=3)
NAMES = np.array(["ward"] * EXAMPLES)
MISUSE = {
    "a name": (
        lambda: covfree.fit("fedcof", FEATURES, LABELS, CLIENTS),
        r"method: .*registry\(\)\['fedcof'\]",
    ),
    "not called": (
        lambda: covfree.fit(covfree.fedcof, FEATURES, LABELS, CLIENTS),
        "method: .*fedcof.*call it",
    ),
    "solve_rows": (lambda: covfree.solve_rows("fedcof", ROWS, num_classes=3), "method: expected a method"),
    "solve_totals": (lambda: covfree.solve_totals(None), "method: .* got NoneType"),
    "summarise": (
        lambda: covfree.summarise("fedcof", FEATURES, LABELS, CLIENTS),
        "method: expected a method",
    ),
    "client_message": (
        lambda: covfree.client_message(covfree.fedcof, FEATURES, LABELS, num_classes=3),
        "method: expected a method",
    ),
    "sent_bytes": (lambda: covfree.sent_bytes("fedcof", LABELS, CLIENTS, dim=2), "method: expected a method"),
    "stream": (
        lambda: covfree.solve_rows("fedcof", covfree.Stream(ROWS), num_classes=3),
        "method: expected a method",
    ),
    "diagnose": (lambda: covfree.diagnose(ROWS, num_classes=3, method="fedcof"), "method: expected a method"),
    "swapped": (lambda: covfree.solve_rows(ROWS, NCM, num_classes=3), "method: .* got Rows"),
    "a message": (lambda: covfree.solve_rows(NCM, MESSAGE, num_classes=3), "rows: .* got Message"),
    "rows": (lambda: covfree.solve_message(NCM, ROWS, num_classes=3), "message: .* got Rows"),
    "dense means": (lambda: covfree.estimate_covariances(np.ones((4, 3, 2)), 3), "rows: .*from_means"),
    "means and counts": (
        lambda: covfree.estimate_covariances(np.ones((4, 3, 2)), np.ones((4, 3))),
        "rows: .*from_means",
    ),
    "names of clients": (
        lambda: covfree.fit(NCM, FEATURES, LABELS, NAMES),
        "clients: expected integers.*np.unique",
    ),
    "a list of names": (
        lambda: covfree.summarise(NCM, FEATURES, LABELS, NAMES.tolist()),
        "clients: expected integers.*np.unique",
    ),
    "objects": (
        lambda: covfree.fit(NCM, FEATURES, LABELS, NAMES.astype(object)),
        "clients: expected integers",
    ),
    "no clients": (lambda: covfree.fit(NCM, FEATURES, LABELS, None), "clients: expected integers.* got None"),
    "classes, fit": (
        lambda: covfree.fit(NCM, FEATURES, LABELS, CLIENTS, num_classes=3.0),
        r"num_classes: .*3\.0",
    ),
    "classes, message": (
        lambda: covfree.client_message(NCM, FEATURES, LABELS, num_classes="3"),
        "num_classes: .*'3'",
    ),
    "classes, collect": (
        lambda: covfree.collect({"a": MESSAGE}, num_classes=0),
        "num_classes: expected an integer of at least 1, got 0",
    ),
    "no head": (lambda: covfree.evaluate("lda", FEATURES, LABELS), "head: expected a head .* got str"),
    "a saved head": (
        lambda: covfree.evaluate(SavedHead(lambda x: x, None, 5, 3), FEATURES, LABELS),
        "got SavedHead; pass its .head",
    ),
    "a method as a head": (
        lambda: covfree.evaluate(NCM, FEATURES, LABELS),
        "got Method; fit it first",
    ),
    "float labels": (lambda: covfree.evaluate(HEAD, FEATURES, LABELS * 1.0), "labels: expected integers"),
    "summary of a method": (
        lambda: Method(None, "own", "means", NCM.rounds, None, NCM.head),
        "summary: expected a Summary, got 'means'",
    ),
    "a method that would send its examples": (
        lambda: covfree.client_message(
            Method(None, "own", keep_examples(), NCM.rounds, None, NCM.head), FEATURES, LABELS, num_classes=3
        ),
        "method: expected one whose clients send a single message each, got 'own', whose clients send sums",
    ),
    "rounds of a method": (
        lambda: Method(None, "own", NCM.summary, ("sum",), None, NCM.head),
        "rounds: expected a tuple of Rounds",
    ),
    "a function as a transform": (
        lambda: NCM.with_transforms(lambda rows: rows),
        "transforms: expected .*Transform makes one of a function",
    ),
    "a transform": (lambda: NCM.with_transforms("laplace"), "transforms: expected .* got 'laplace'"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named(case):
    call, message = MISUSE[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_evaluate_wants_a_label_for_each_example():
    with pytest.raises(ValueError, match=r"labels: expected shape \[24\].*got \[1\]"):
        covfree.evaluate(HEAD, FEATURES, LABELS[:1])


def test_the_door_looks_at_nothing_else():
    """Raw keys are uint32; under x64 jax cuts nothing; what a jitted function can do besides stays."""
    key = jax.random.split(jax.random.PRNGKey(0))[1]
    assert int(np.max(key)) > 2**31
    drawn = covfree.sample_rows(rows(LABELS, CLIENTS, COUNTS), 5, key=key)
    assert drawn[0].shape == (5, 2)
    with x64():
        table = covfree.Rows(FEATURES, np.full(EXAMPLES, 2**31 - 1, np.int64), LABELS)
        totals = covfree.accumulate(NCM, table, num_classes=3)
    assert totals[0].count[0] == np.float32(8 * (2**31 - 1))
    assert "func" in covfree.evaluate.lower(HEAD, FEATURES, LABELS).as_text()


def test_rows_far_below_zero_are_padding():
    labels = np.array([0, -(2**32), 1, 1 - 2**32] * 6)
    totals = covfree.accumulate(NCM, rows(labels, CLIENTS, np.ones(EXAMPLES, int)), num_classes=2)
    np.testing.assert_array_equal(totals[0].count, [6, 6])


def test_missing_arguments_are_those_of_the_function():
    with pytest.raises(TypeError, match=r"missing a required.* argument: 'num_classes'"):
        covfree.diagnose(ROWS)


def test_solutions_that_were_not_collected():
    sent = covfree.client_message(covfree.afl(), FEATURES, LABELS, num_classes=3)
    with pytest.raises(
        ValueError,
        match=r"message: expected collect\(.*got a client's message of ridge",
    ):
        covfree.solve_message(covfree.afl(), sent, num_classes=3)


def test_constants_of_a_traced_function():
    with x64():
        labels = jnp.asarray(LABELS.astype(np.int64))
        counts = jax.jit(lambda x: covfree.class_means(x, labels, 3)[1])(FEATURES)
    np.testing.assert_array_equal(counts, [8, 8, 8])
