"""What clients send, and the server's door: a bad message is set aside and named, the others count."""

import dataclasses

import federations
import jax
import numpy as np
import oracle
import pytest
from federations import CLASSES, DIM
from precision import FLOAT32, assert_heads_close

import covfree
from covfree.methods import registry

METHODS = list(registry())


def ragged(seed: int = 0):
    """Features in float32 (NaN where padding), labels, clients; ids with gaps."""
    features, labels, clients = federations.make(seed)
    return features.astype(np.float32), labels, np.where(clients >= 0, 10 * clients + 3, -1).astype(np.int32)


def send(method, seed: int = 0, key=None) -> dict[int, covfree.Message]:
    """Every client's message; clients are padded to one size, so that they share compiled functions."""
    features, labels, clients = ragged(seed)
    messages = {}
    for client in np.unique(clients[clients >= 0]).tolist():
        mine = clients == client
        short = 24 - mine.sum()
        x = np.pad(features[mine], [(0, short), (0, 0)], constant_values=np.nan)
        y = np.pad(labels[mine], (0, short), constant_values=-1)
        messages[client] = covfree.client_message(method, x, y, num_classes=CLASSES, key=key)
    return messages


def assert_rows_are_the_class_means(rows, features, labels):
    means, counts = oracle.class_means(features, labels, CLASSES)
    present = [c for c in range(CLASSES) if counts[c] > 0]
    np.testing.assert_array_equal(rows.label, present)
    np.testing.assert_array_equal(rows.count, counts[present])
    FLOAT32.assert_close(rows.mean, means[present], factor=0.1)


# What a client sends


@pytest.mark.parametrize("name", registry())
def test_contents(name):
    """Class means of the classes present, and beside them what the method's kind says."""
    method, (features, labels, clients) = registry()[name].make(), ragged()
    for client, message in send(method).items():
        mine = (clients == client) & (labels >= 0)
        x, y = features[mine], labels[mine]
        assert_rows_are_the_class_means(message.rows, x, y)
        assert (message.matrix is not None) == (method.message in ("gram", "scatter"))
        assert (message.covariances is not None) == (method.message == "covariances")
        if method.message == "gram":
            FLOAT32.assert_close(message.matrix, oracle.gram(x, y, CLASSES)[0])
        if method.message == "scatter":
            FLOAT32.assert_close(message.matrix, oracle.exact_within_scatter(x, y, CLASSES))
        if message.covariances is not None:
            covariances = oracle.class_covariances(x, y, CLASSES)
            FLOAT32.assert_close(message.covariances, covariances[np.asarray(message.rows.label)])


def test_class_sums_of_fed3r_are_means_times_counts():
    features, labels, clients = ragged()
    for client, message in send(covfree.fed3r()).items():
        sums = np.zeros((CLASSES, DIM), np.float32)
        sums[message.rows.label] = message.rows.mean * message.rows.count[:, None]
        FLOAT32.assert_close(
            sums, oracle.gram(features[clients == client], labels[clients == client], CLASSES)[1]
        )


@pytest.mark.parametrize("num_subsets", [2, 3])
def test_subsets_partition_each_class(num_subsets):
    """At most so many subsets, each of 2 or more unless the class has one; counts and sums add up."""
    features, labels, clients = ragged()
    messages = send(covfree.fedcof(num_subsets=num_subsets), key=jax.random.key(0))
    for client, message in messages.items():
        mine = clients == client
        means, counts = oracle.class_means(features[mine], labels[mine], CLASSES)
        for c in range(CLASSES):
            of_class = np.asarray(message.rows.label) == c
            sizes = np.asarray(message.rows.count)[of_class]
            assert len(sizes) == (min(num_subsets, max(counts[c] // 2, 1)) if counts[c] else 0)
            assert sizes.sum() == counts[c]
            assert (sizes >= min(2, counts[c])).all()
            if counts[c]:
                mean = sizes @ np.asarray(message.rows.mean)[of_class] / counts[c]
                np.testing.assert_allclose(mean, means[c], atol=1e-5)


def test_subsets_follow_the_key_and_need_one():
    method = covfree.fedcof(num_subsets=2)
    first, again, other = (send(method, key=jax.random.key(seed)) for seed in (0, 0, 1))
    client = max(first, key=lambda k: first[k].rows.count.sum())
    np.testing.assert_array_equal(first[client].rows.mean, again[client].rows.mean)
    assert (first[client].rows.mean != other[client].rows.mean).any()
    with pytest.raises(ValueError, match="key: expected a PRNG key"):
        send(method)


@pytest.mark.parametrize("name", registry())
def test_a_client_with_one_example(name):
    message = covfree.client_message(
        registry()[name].make(), np.full((1, DIM), 2, np.float32), np.array([4]), num_classes=CLASSES
    )
    assert message.rows.label.tolist() == [4]
    assert message.rows.count.tolist() == [1]
    np.testing.assert_array_equal(message.rows.mean, 2)
    if message.matrix is not None:
        np.testing.assert_array_equal(message.matrix, 4 if name == "fed3r" else 0)
    if message.covariances is not None:
        np.testing.assert_array_equal(message.covariances, 0)


@pytest.mark.parametrize("name", registry())
def test_a_client_without_examples_has_no_rows(name):
    method = registry()[name].make()
    for labels in (np.zeros(0, np.int32), np.array([-1, -1])):
        features = np.full((len(labels), DIM), np.nan, np.float32)
        message = covfree.client_message(method, features, labels, num_classes=CLASSES)
        assert message.rows.mean.shape == (0, DIM)
        assert message.rows.count.shape == message.rows.label.shape == (0,)


def test_messages_are_in_float32_and_in_float64_only_where_enabled(precision):
    features, labels, clients = ragged()
    mine = clients == 13
    message = covfree.client_message(
        covfree.fed3r(), precision.array(features[mine]), labels[mine], num_classes=CLASSES
    )
    assert message.rows.mean.dtype == message.matrix.dtype == precision.dtype


@pytest.mark.parametrize(
    ("features", "labels", "error", "text"),
    [
        (np.array([[1.0, np.nan]]), np.array([0]), ValueError, r"features: row 0 \(class 0\) holds nan"),
        (np.ones((1, 2)), np.array([7]), ValueError, r"labels: row 0 has label 7; expected labels below"),
        (np.ones((1, 2), int), np.array([0]), TypeError, "features: expected floats, got int"),
        (np.ones((1, 2)), np.array([0.0]), TypeError, "labels: expected integers, got float"),
        (np.ones(2), np.array([0, 1]), ValueError, r"features: expected shape \[examples, dim\]"),
        (np.ones((2, 2)), np.array([0]), ValueError, r"labels: expected shape \[2\]"),
    ],
)
def test_a_client_is_told_what_is_wrong(untyped, features, labels, error, text):
    with pytest.raises(error, match=text):
        covfree.client_message(covfree.fedcof(), features, labels, num_classes=3)


# From messages to a head


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", [0, 1])
def test_solving_messages_is_fitting_the_examples(name, seed):
    method, (features, labels, clients) = registry()[name].make(), ragged(seed)
    messages = send(method, seed)
    collected = covfree.collect(messages, num_classes=CLASSES)
    assert collected.rejected == {}
    head = covfree.solve_message(method, collected.message, num_classes=CLASSES)
    expected = covfree.fit(method, features, labels, clients, num_classes=CLASSES)
    assert_heads_close(head, expected, FLOAT32.tolerance * 10)


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter(name):
    method = registry()[name].make()
    messages = send(method)
    messages["broken"] = spoil(messages[13], mean=np.nan)
    forth = covfree.collect(messages, num_classes=CLASSES)
    back = covfree.collect(dict(reversed(messages.items())), num_classes=CLASSES)
    assert forth.rejected == back.rejected
    assert_heads_close(
        covfree.solve_message(method, forth.message, num_classes=CLASSES),
        covfree.solve_message(method, back.message, num_classes=CLASSES),
        FLOAT32.tolerance,
    )


def test_rows_are_in_the_order_of_the_clients():
    messages = send(covfree.fedcof())
    rows = covfree.collect(messages, num_classes=CLASSES).message.rows
    np.testing.assert_array_equal(
        rows.mean, np.concatenate([np.asarray(m.rows.mean) for m in messages.values()])
    )
    np.testing.assert_array_equal(rows.count, np.concatenate([m.rows.count for m in messages.values()]))
    np.testing.assert_array_equal(rows.label, np.concatenate([m.rows.label for m in messages.values()]))


# The server's door


def rows(mean=((1, 2), (3, 4)), count=(3, 5), label=(0, 2), **dtypes) -> covfree.Message:
    """Sound by default: two classes of three, d = 2."""
    return covfree.Message(
        covfree.Rows(
            np.array(mean, dtypes.get("mean_dtype", np.float32)),
            np.array(count, dtypes.get("count_dtype", np.int32)),
            np.array(label, dtypes.get("label_dtype", np.int32)),
        )
    )


def spoil(message: covfree.Message, *, mean: float) -> covfree.Message:
    wrong = np.array(message.rows.mean)
    wrong[0, 1] = mean
    return dataclasses.replace(message, rows=dataclasses.replace(message.rows, mean=wrong))


BAD = {
    "nan mean": (
        dict(mean=((1, 2), (np.nan, 4))),
        "mean: row 1 (class 2) holds nan at position 0; expected finite numbers",
    ),
    "infinite mean": (
        dict(mean=((1, -np.inf), (3, 4))),
        "mean: row 0 (class 0) holds -inf at position 1; expected finite numbers",
    ),
    "negative count": (
        dict(count=(3, -5)),
        "count: row 1 has count -5; expected finite numbers of at least 0",
    ),
    "nan count": (
        dict(count=(np.nan, 5), count_dtype=np.float32),
        "count: row 0 has count nan; expected finite numbers of at least 0",
    ),
    "infinite count": (
        dict(count=(np.inf, 5), count_dtype=np.float32),
        "count: row 0 has count inf; expected finite numbers of at least 0",
    ),
    "label past the end": (
        dict(label=(0, 3)),
        "label: row 1 has label 3; expected labels below num_classes = 3",
    ),
    "wrong dim": (dict(mean=((1, 2, 9), (3, 4, 9))), "mean: expected shape [rows, 2], got [2, 3]"),
    "one mean, not a table": (dict(mean=(1, 2)), "mean: expected shape [rows, 2], got [2]"),
    "integer mean": (dict(mean_dtype=np.int32), "mean: expected floats, got int32"),
    "means that are words": (dict(mean=(("a", "b"), ("c", "d")), mean_dtype="U1"), "mean: expected floats"),
    "float label": (dict(label_dtype=np.float32), "label: expected integers, got float32"),
    "complex count": (dict(count_dtype=np.complex64), "count: expected numbers, got complex64"),
    "a count too many": (dict(count=(3, 5, 7)), "count: expected shape [2] as mean has, got [3]"),
    "a label too few": (dict(label=(0,)), "label: expected shape [2] as mean has, got [1]"),
}


@pytest.mark.parametrize(("wrong", "reason"), BAD.values(), ids=BAD)
def test_a_bad_message_is_set_aside_and_the_others_count(untyped, wrong, reason):
    good = rows()
    messages = {"first": good, "bad": rows(**wrong), "last": good}
    collected = covfree.collect(messages, num_classes=3)
    assert set(collected.rejected) == {"bad"}
    assert collected.rejected["bad"].startswith(reason)
    np.testing.assert_array_equal(collected.message.rows.mean, np.concatenate([good.rows.mean] * 2))
    np.testing.assert_array_equal(collected.message.rows.count, [3, 5, 3, 5])
    np.testing.assert_array_equal(collected.message.rows.label, [0, 2, 0, 2])


@pytest.mark.parametrize("wrong", [None, {"mean": 1}, 3.0], ids=str)
def test_what_is_no_message_at_all_is_set_aside(untyped, wrong):
    collected = covfree.collect({"bad": wrong, "good": rows()}, num_classes=3)
    assert set(collected.rejected) == {"bad"}
    np.testing.assert_array_equal(collected.message.rows.count, [3, 5])


def test_many_bad_messages_at_once(untyped):
    """Every one is named with its own reason, and what is left is solved as if they had never come."""
    good = send(covfree.fedcof())
    bad = {f"bad {i}": rows(**wrong) for i, (wrong, _) in enumerate(BAD.values())}
    pairs = [*good.items(), *bad.items()]
    mixed = dict(pairs[i] for i in np.random.default_rng(0).permutation(len(pairs)))
    collected = covfree.collect(mixed, num_classes=CLASSES, dim=DIM)
    assert set(collected.rejected) == set(bad)
    head, expected = (
        covfree.solve_message(covfree.fedcof(), x.message, num_classes=CLASSES)
        for x in (collected, covfree.collect(good, num_classes=CLASSES))
    )
    assert_heads_close(head, expected, FLOAT32.tolerance)


@pytest.mark.parametrize(("announced", "sound"), [(8, True), (7, False), (9, False), (0, False)])
def test_counts_must_sum_to_what_was_announced(announced, sound):
    messages = {"a": rows(), "b": rows()}
    collected = covfree.collect(messages, num_classes=3, num_examples={"a": announced})
    if sound:
        assert collected.rejected == {}
    else:
        reason = f"count: counts sum to 8; expected the {announced} examples announced"
        assert collected.rejected == {"a": reason}
        np.testing.assert_array_equal(collected.message.rows.count, [3, 5])


def test_padding_rows_do_not_count_towards_the_sum_nor_need_be_finite():
    padded = rows(
        mean=((1, 2), (np.nan, np.nan), (np.inf, 0), (3, 4)), count=(3, 0, 9, 5), label=(0, 1, -1, 2)
    )
    collected = covfree.collect({"a": padded}, num_classes=3, num_examples={"a": 8})
    assert collected.rejected == {}


def test_large_counts_are_added_exactly():
    """2³¹ examples do not fit into the counts' own int32."""
    messages = {"a": rows(count=(2**30, 2**30))}
    assert covfree.collect(messages, num_classes=3, num_examples={"a": 2**31}).rejected == {}


def test_dim_is_that_of_most_messages_unless_given():
    wide = rows(mean=((1, 2, 3), (4, 5, 6)))
    messages = {"wide": wide, "a": rows(), "b": rows()}
    assert set(covfree.collect(messages, num_classes=3).rejected) == {"wide"}
    assert set(covfree.collect(messages, num_classes=3, dim=3).rejected) == {"a", "b"}


@pytest.mark.parametrize("dims", [(5, 13), (2, 3)])
def test_a_tie_between_dims_does_not_depend_on_the_order(dims):
    messages = {f"of {d}": rows(mean=np.ones((2, d))) for d in dims}
    forth = covfree.collect(messages, num_classes=3)
    back = covfree.collect(dict(reversed(messages.items())), num_classes=3)
    assert forth.rejected == back.rejected


def test_a_message_without_rows_is_sound():
    """A client without examples takes part and adds nothing."""
    collected = covfree.collect({"none": rows(np.zeros((0, 2)), (), ()), "a": rows()}, num_classes=3)
    assert collected.rejected == {}
    np.testing.assert_array_equal(collected.message.rows.count, [3, 5])


def test_all_bad_raises_and_names_the_first_reasons():
    messages = {name: spoil(rows(), mean=np.nan) for name in ("a", "b", "c", "d")}
    with pytest.raises(ValueError, match="expected a sound message, got none among 4") as error:
        covfree.collect(messages, num_classes=3)
    text = str(error.value)
    assert text.startswith("messages:")
    for name in ("a", "b", "c"):
        assert f"client '{name}': mean: row 0 (class 0) holds nan at position 1" in text


def test_no_message_raises():
    with pytest.raises(ValueError, match="got none among 0"):
        covfree.collect({}, num_classes=3)


# Matrices beside the rows


@pytest.mark.parametrize(
    ("matrices", "reason"),
    [
        ({"matrix": np.ones((3, 3), np.float32)}, "matrix: expected shape [2, 2], got [3, 3]"),
        (
            {"matrix": np.full((2, 2), np.nan, np.float32)},
            "matrix: holds nan at (0, 0); expected finite numbers",
        ),
        (
            {"covariances": np.ones((1, 2, 2), np.float32)},
            "covariances: expected shape [2, 2, 2], got [1, 2, 2]",
        ),
    ],
    ids=["shape", "nan", "one covariance too few"],
)
def test_a_bad_matrix_is_set_aside(untyped, matrices, reason):
    good = dataclasses.replace(rows(), matrix=np.eye(2, dtype=np.float32))
    collected = covfree.collect({"bad": dataclasses.replace(rows(), **matrices), "good": good}, num_classes=3)
    assert collected.rejected == {"bad": reason}
    np.testing.assert_array_equal(collected.message.matrix, np.eye(2))


@pytest.mark.parametrize(("name", "part"), [("fed3r", "matrix"), ("fedcof-oracle", "covariances")])
def test_a_message_of_another_method(name, part):
    with pytest.raises(ValueError, match=f"message: expected a {part} beside the rows"):
        covfree.solve_message(registry()[name].make(), rows(), num_classes=3)


def test_a_rule_that_looks_at_rows_needs_them():
    method = covfree.fedcof_oracle(shrinkage=covfree.ledoit_wolf())
    message = covfree.collect(send(method), num_classes=CLASSES).message
    with pytest.raises(ValueError, match="shrinkage: the rule looks at single rows"):
        covfree.solve_message(method, message, num_classes=CLASSES)
