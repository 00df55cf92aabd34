"""The server's door: bad messages are set aside and named, the others count, and rounds add up."""

import dataclasses
import itertools

import deployed
import jax
import numpy as np
import oracle
import pytest
from deployed import KINDS, assert_same, collect, messages, ragged, rows, spoil, with_rows
from federations import CLASSES, DIM
from precision import FLOAT32, assert_close, assert_heads_close

import covfree
from covfree.methods import registry


def head_of(name: str, collected: covfree.Collected):
    return covfree.solve_message(deployed.make(name), collected.message, num_classes=CLASSES)


def assert_same_head(actual, expected) -> None:
    if isinstance(expected, covfree.LinearHead):
        assert_heads_close(actual, expected, FLOAT32.tolerance)
    else:
        probes = np.random.default_rng(0).normal(size=(20, DIM)).astype(np.float32)
        assert_close(actual(probes), expected(probes), FLOAT32.tolerance)


# Values and structure of one message

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
    """Every one is named with its own reason, and what is left is what it would be had they never come."""
    good = messages("fedcof")
    bad = {f"bad {i}": rows(**wrong) for i, (wrong, _) in enumerate(BAD.values())}
    pairs = [*good.items(), *bad.items()]
    mixed = dict(pairs[i] for i in np.random.default_rng(0).permutation(len(pairs)))
    collected = covfree.collect(mixed, num_classes=CLASSES, dim=DIM)
    assert set(collected.rejected) == set(bad)
    assert_same(collected, collect(good), good)


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


def test_a_message_that_is_nobody_s_rows():
    """Nobody with an example: nothing to solve with, and no error."""
    collected = covfree.collect({"none": rows(np.zeros((0, 2)), (), ())}, num_classes=3)
    assert collected.clients == ("none",)
    assert collected.message.rows.mean.shape == (0, 2)


# Matrices and covariances beside the rows


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            lambda m: dataclasses.replace(m, matrix=np.ones((3, 3), np.float32)),
            "matrix: expected shape [2, 2], got [3, 3]",
        ),
        (
            lambda m: dataclasses.replace(m, matrix=np.full((2, 2), np.nan, np.float32)),
            "matrix: holds nan at (0, 0); expected finite numbers",
        ),
        (
            lambda m: dataclasses.replace(m, matrix=None, solved=True),
            "matrix: expected the one that the solution was computed with, got none",
        ),
        (
            lambda m: with_rows(m, covariance=np.ones((1, 2, 2), np.float32)),
            "covariance: expected shape [2], [2, 2] or [2, 2, 2] as mean has, got [1, 2, 2]",
        ),
        (
            lambda m: with_rows(m, covariance=np.array([[0, 1], [np.inf, 1]], np.float32)),
            "covariance: row 1 (class 2) holds inf at position 0; expected finite numbers",
        ),
        (
            lambda m: with_rows(m, sketch=np.zeros(3, bool)),
            "sketch: expected shape [2] as mean has, got [3]",
        ),
    ],
    ids=["shape", "nan", "solution without matrix", "one too few", "infinite variance", "one mark too many"],
)
def test_a_bad_part_is_set_aside(untyped, wrong, reason):
    good = dataclasses.replace(rows(), matrix=np.eye(2, dtype=np.float32))
    collected = covfree.collect({"bad": wrong(good), "good": good}, num_classes=3)
    assert collected.rejected == {"bad": reason}
    np.testing.assert_array_equal(collected.message.matrix, np.eye(2))


FULL, SQUARE = np.ones((2, 2, 2), np.float32), np.ones((2, 2), np.float32)
UNLIKE = {
    "matrix missing": (
        lambda m: dataclasses.replace(m, matrix=SQUARE),
        lambda m: m,
        "matrix: expected an array of 2 dimensions as others send, got none",
    ),
    "matrix too many": (
        lambda m: m,
        lambda m: dataclasses.replace(m, matrix=SQUARE),
        "matrix: expected none as others send, got an array of 2 dimensions",
    ),
    "covariance missing": (
        lambda m: with_rows(m, covariance=FULL),
        lambda m: m,
        "covariance: expected an array of 3 dimensions as others send, got none",
    ),
    "covariance too many": (
        lambda m: m,
        lambda m: with_rows(m, covariance=FULL),
        "covariance: expected none as others send, got an array of 3 dimensions",
    ),
    "diagonal among full ones": (
        lambda m: with_rows(m, covariance=FULL),
        lambda m: with_rows(m, covariance=SQUARE),
        "covariance: expected an array of 3 dimensions as others send, got an array of 2 dimensions",
    ),
    "marks missing": (
        lambda m: with_rows(m, sketch=np.zeros(2, bool)),
        lambda m: m,
        "sketch: expected an array of 1 dimensions as others send, got none",
    ),
}


@pytest.mark.parametrize(("right", "wrong", "reason"), UNLIKE.values(), ids=UNLIKE)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "in a later round"])
def test_a_message_unlike_the_others_is_set_aside(right, wrong, reason, later):
    good, bad = right(rows()), {"bad": wrong(rows())}
    if later:
        first = covfree.collect({"a": good, "b": good}, num_classes=3)
        collected = covfree.collect(bad, num_classes=3, before=first)
    else:
        collected = covfree.collect({"a": good, **bad, "b": good}, num_classes=3)
    assert collected.rejected == {"bad": reason}
    assert collected.clients == ("a", "b")
    np.testing.assert_array_equal(collected.message.rows.count, [3, 5, 3, 5])


@pytest.mark.parametrize(("right", "wrong", "reason"), UNLIKE.values(), ids=UNLIKE)
def test_who_comes_first_does_not_decide_which_message_is_unlike(right, wrong, reason):
    good = right(rows())
    collected = covfree.collect({"bad": wrong(rows()), "a": good, "b": good}, num_classes=3)
    assert collected.rejected == {"bad": reason}


@pytest.mark.parametrize("solved", [False, True])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "in a later round"])
def test_means_among_solutions_and_solutions_among_means_are_set_aside(solved, later):
    """Both come with a matrix; only the round's own messages say which of the two they are."""
    good, bad = (dataclasses.replace(rows(), matrix=SQUARE, solved=s) for s in (solved, not solved))
    before = covfree.collect({"first": good}, num_classes=3) if later else None
    collected = covfree.collect({"bad": bad, "a": good, "b": good}, num_classes=3, before=before)
    reason = f"solved: expected {solved} as others send, got {not solved}"
    assert collected.rejected == {"bad": reason}
    assert collected.clients == (("first", "a", "b") if later else ("a", "b"))
    assert not collected.message.solved


def test_clients_without_rows_are_like_any_others():
    """They send no matrix and no covariance, which is no reason to set them, or those after them, aside."""
    none = rows(np.zeros((0, 2)), (), ())
    good = dataclasses.replace(with_rows(rows(), covariance=FULL), matrix=SQUARE)
    for sent in ({"none": none, "a": good}, {"a": good, "none": none}):
        collected = covfree.collect(sent, num_classes=3)
        assert collected.rejected == {}
        assert collected.clients == tuple(sent)
        np.testing.assert_array_equal(collected.message.matrix, SQUARE)
        assert collected.message.rows.covariance.shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("name", "part"), [("fed3r", "matrix"), ("fedcof-oracle", "covariance with each of")]
)
def test_a_message_of_another_method(name, part):
    with pytest.raises(ValueError, match=f"message: expected a {part} beside the rows"):
        covfree.solve_message(registry()[name].make(), rows(), num_classes=3)


def test_a_rule_that_looks_at_rows_needs_them():
    method = covfree.fedcof_oracle(shrinkage=covfree.ledoit_wolf())
    message = collect(messages("fedcof-oracle")).message
    with pytest.raises(ValueError, match="shrinkage: the rule looks at single rows"):
        covfree.solve_message(method, message, num_classes=CLASSES)


# Solutions


@pytest.mark.parametrize("gamma", [0.05, 1.0, 300.0])
def test_solutions_decode_to_class_sums_whatever_their_regularisation(gamma):
    features, labels, clients = ragged()
    collected = collect(deployed.send(covfree.afl(gamma)))
    assert not collected.message.solved
    received = collected.message.rows
    for index, client in enumerate(collected.clients):
        mine = (clients == client) & (labels >= 0)
        sums = oracle.gram(features[mine], labels[mine], CLASSES)[1]
        own = received.client == index
        decoded = received.mean[own] * received.count[own][:, None]
        # C W rounds W in float32, and C is at most of condition (‖F‖² + γ)/γ.
        assert_close(decoded, sums[received.label[own]], 10 * FLOAT32.tolerance)


# Rounds


def rounds_of(sent: dict, seed: int) -> list[dict]:
    """The messages in a random order, cut at random places."""
    rng = np.random.default_rng(seed)
    names = [list(sent)[i] for i in rng.permutation(len(sent))]
    cuts = sorted(rng.choice(np.arange(1, len(sent)), 1 + seed % 4, replace=False).tolist())
    return [{k: sent[k] for k in names[a:b]} for a, b in itertools.pairwise([0, *cuts, len(sent)])]


def over_rounds(rounds) -> covfree.Collected:
    collected = None
    for sent in rounds:
        collected = collect(sent, collected)
    return collected


@pytest.mark.parametrize("name", KINDS)
def test_any_order_and_any_split_into_rounds(name):
    sent = messages(name)
    at_once = collect(sent)
    for seed in range(8):
        assert_same(over_rounds(rounds_of(sent, seed)), at_once, sent)
    one_by_one = over_rounds({client: message} for client, message in reversed(sent.items()))
    assert_same(one_by_one, at_once, sent)
    # Rows in another order are added up in another order.
    assert_same_head(head_of(name, one_by_one), head_of(name, at_once))


def test_rows_are_in_the_order_of_the_clients():
    sent = messages("fedcof")
    received = collect(sent).message.rows
    for name in ("mean", "count", "label"):
        parts = [np.asarray(getattr(message.rows, name)) for message in sent.values()]
        np.testing.assert_array_equal(getattr(received, name), np.concatenate(parts))
    owners = [np.full(len(message.rows.count), i) for i, message in enumerate(sent.values())]
    np.testing.assert_array_equal(received.client, np.concatenate(owners))


@pytest.mark.parametrize("name", KINDS)
def test_a_client_counts_once(name):
    """Also if it sends something else the second time, or something that is not sound."""
    sent = messages(name)
    once = collect(sent)
    other = with_rows(sent[23], count=sent[23].rows.count + 7)
    for again in (sent, {13: sent[13]}, {23: other}, {23: spoil(sent[23], mean=np.nan)}, {}):
        twice = collect(again, once)
        assert_same(twice, once, sent)
        assert twice.rejected == {}
        if once.message.matrix is not None:
            np.testing.assert_array_equal(twice.message.matrix, once.message.matrix)


@pytest.mark.parametrize("name", KINDS)
def test_a_client_that_was_set_aside_may_send_again(name):
    sent = messages(name)
    first = collect({**sent, 23: spoil(sent[23], mean=np.nan)})
    assert set(first.rejected) == {23}
    assert 23 not in first.clients
    still = collect({23: spoil(sent[23], mean=np.inf)}, first)
    assert "holds inf" in still.rejected[23]
    assert_same(still, first, sent)
    second = collect({23: sent[23]}, still)
    assert second.rejected == {}
    assert_same(second, collect(sent), sent)


def test_a_round_in_which_nobody_sends_anything_sound_loses_nothing():
    sent = messages("fed3r")
    first = collect(sent)
    second = collect({"x": spoil(sent[23], mean=np.nan)}, first)
    assert set(second.rejected) == {"x"}
    assert_same(second, first, sent)


def test_dim_is_that_of_the_rounds_before():
    wide = rows(mean=((1, 2, 3), (4, 5, 6)))
    first = covfree.collect({"a": rows()}, num_classes=3)
    second = covfree.collect({"b": wide, "c": wide}, num_classes=3, before=first)
    assert set(second.rejected) == {"b", "c"}


def test_matrices_are_not_kept():
    """Whatever the number of clients, the server has one matrix; its arrays do not grow but for the rows."""
    sent, collected = messages("fed3r"), None
    for number, (client, message) in enumerate(sent.items(), 1):
        collected = collect({client: message}, collected)
        assert len(collected.clients) == number
        held = [leaf for leaf in jax.tree.leaves(collected.message) if np.ndim(leaf) == 2]
        assert [leaf.shape for leaf in held] == [(len(collected.message.rows.count), DIM), (DIM, DIM)]
