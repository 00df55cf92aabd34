"""The server's door: bad messages are set aside and named, the others count, and rounds add up."""

import dataclasses
import itertools
import re

import deployed
import jax
import numpy as np
import oracle
import pytest
from deployed import KINDS, assert_same, collect, messages, ragged, rows, spoil, with_matrix, with_rows
from federations import CLASSES, DIM
from precision import FLOAT32, assert_close, assert_heads_close

import covfree
from covfree.methods import registry
from covfree.rounds import as_algorithm


def head_of(name: str, collected: covfree.Collected):
    return covfree.solve_message(deployed.make(name), collected.message, num_classes=CLASSES)


def assert_same_head(actual, expected) -> None:
    if isinstance(expected, covfree.LinearHead):
        assert_heads_close(actual, expected, FLOAT32.tolerance)
    else:
        probes = np.random.default_rng(0).normal(size=(20, DIM)).astype(np.float32)
        assert_close(actual(probes), expected(probes), FLOAT32.tolerance)


def reason(message, **options) -> str:
    """Why a message is set aside."""
    collected = covfree.collect({"a": message}, **options)
    assert collected.clients == ()
    return collected.rejected["a"]


# Values and structure of one message

# Beside those of tests/protocol/test_values.py.
BAD = {
    "wrong dim": (dict(mean=((1, 2, 9), (3, 4, 9))), "mean: expected shape [rows, 2], got [2, 3]"),
    "one mean, not a table": (dict(mean=(1, 2)), "mean: expected shape [rows, 2], got [2]"),
    "means that are words": (dict(mean=(("a", "b"), ("c", "d")), mean_dtype="U1"), "mean: expected floats"),
    "complex count": (dict(count_dtype=np.complex64), "count: expected numbers, got complex64"),
    "a count too many": (dict(count=(3, 5, 7)), "count: expected shape [2] as mean has, got [3]"),
}


@pytest.mark.parametrize(("wrong", "reason"), BAD.values(), ids=BAD)
def test_a_bad_message_is_set_aside_and_the_others_count(untyped, wrong, reason):
    good = rows()
    messages = {"first": good, "bad": rows(**wrong), "last": good}
    collected = covfree.collect(messages, num_classes=3, dim=2)
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


@pytest.mark.parametrize("part", ["mean", "count", "label", "rows"])
def test_what_lacks_a_part_is_set_aside(untyped, part):
    """Whether or not the server says what d is."""
    good = rows()
    bad = dataclasses.replace(good, rows=None) if part == "rows" else with_rows(good, **{part: None})
    for dim in (2, None):
        collected = covfree.collect({"bad": bad, "good": good}, num_classes=3, dim=dim)
        assert set(collected.rejected) == {"bad"}
        assert collected.rejected["bad"].startswith(f"{part}: expected ")


def test_counts_in_half_precision_are_counts():
    collected = covfree.collect({"a": rows(count_dtype=np.float16)}, num_classes=3)
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


def test_where_dims_differ_the_server_must_say_which_is_right():
    """A vote would let two strays set the one good message aside."""
    wide = rows(mean=((1, 2, 3), (4, 5, 6)))
    messages = {"wide": wide, "a": rows(), "b": rows()}
    for sent in (messages, dict(reversed(messages.items()))):
        with pytest.raises(ValueError, match=r"dim: expected .* messages differ in it: 2 \(2\), 3 \(1\)"):
            covfree.collect(sent, num_classes=3)
    assert set(covfree.collect(messages, num_classes=3, dim=2).rejected) == {"wide"}
    assert set(covfree.collect(messages, num_classes=3, dim=3).rejected) == {"a", "b"}


def test_a_message_without_rows_is_sound():
    """A client without examples takes part and adds nothing."""
    collected = covfree.collect({"none": rows(np.zeros((0, 2)), (), ()), "a": rows()}, num_classes=3)
    assert collected.rejected == {}
    np.testing.assert_array_equal(collected.message.rows.count, [3, 5])


def test_all_bad_is_nothing_collected_and_each_is_named():
    """A server may ask before any client has sent what is sound, and goes on from there."""
    bad, sent = spoil(rows(), mean=np.nan), {"c": with_matrix(rows()), "d": with_matrix(rows())}
    for first in (covfree.collect({}, num_classes=3), covfree.collect({"a": bad, "b": bad}, num_classes=3)):
        assert first.clients == ()
        assert first.message.rows.mean.shape == (0, 0)
        later = covfree.collect(sent, num_classes=3, before=first)
        for ours, theirs in zip(
            jax.tree.leaves(later.message),
            jax.tree.leaves(covfree.collect(sent, num_classes=3).message),
            strict=True,
        ):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        assert later.rejected == first.rejected
    assert first.rejected == dict.fromkeys("ab", reason(bad, num_classes=3))
    again = covfree.collect({}, num_classes=3, before=later)
    assert again.clients == ("c", "d")
    # d is known from elsewhere.
    known = covfree.collect({}, num_classes=3, dim=2)
    assert known.dim == 2
    with pytest.raises(ValueError, match="dim: expected 2, that of the messages before; got 5"):
        covfree.collect(sent, num_classes=3, dim=5, before=known)


@pytest.mark.parametrize("name", ["fedncm", "fedcof", "fed3r"])
def test_a_solve_on_nothing_says_so(name):
    empty = covfree.collect({}, num_classes=3).message
    none = covfree.collect({"none": rows(np.zeros((0, 2)), (), ())}, num_classes=3).message
    for message in (empty, none):
        with pytest.raises(ValueError, match="message: expected the rows of a client at least, got none"):
            covfree.solve_message(registry()[name].make(), message, num_classes=3)


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
            "matrix: expected the matrix from which the ridge solution was computed, got None",
        ),
    ],
    ids=["shape", "nan", "solution without matrix"],
)
def test_a_bad_part_is_set_aside(untyped, wrong, reason):
    good = with_matrix(rows())
    collected = covfree.collect({"bad": wrong(good), "good": good}, num_classes=3)
    assert collected.rejected == {"bad": reason}
    np.testing.assert_array_equal(collected.message.matrix, good.matrix)


FULL, SQUARE = np.ones((2, 2, 2), np.float32), np.ones((2, 2), np.float32)
UNLIKE = {
    "matrix missing": (
        with_matrix,
        lambda m: m,
        "matrix: expected an array of 2 dimensions as others send, got none",
    ),
    "matrix too many": (
        lambda m: m,
        with_matrix,
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
@pytest.mark.parametrize("when", ["first", "between", "in a later round"])
def test_a_message_unlike_the_others_is_set_aside(right, wrong, reason, when):
    """Who comes first does not decide which message that is."""
    good, bad = right(rows()), {"bad": wrong(rows())}
    others = {"a": good, "b": good}
    if when == "in a later round":
        before = covfree.collect(others, num_classes=3)
        collected = covfree.collect(bad, num_classes=3, before=before)
    else:
        sent = {**bad, **others} if when == "first" else {"a": good, **bad, "b": good}
        collected = covfree.collect(sent, num_classes=3)
    assert collected.rejected == {"bad": reason}
    assert collected.clients == ("a", "b")
    np.testing.assert_array_equal(collected.message.rows.count, [3, 5, 3, 5])


@pytest.mark.parametrize("solved", [False, True])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "in a later round"])
def test_means_among_solutions_and_solutions_among_means_are_set_aside(solved, later):
    """Both come with a matrix, and are means and a matrix once they are collected."""
    good, bad = (with_matrix(rows(), solved=s) for s in (solved, not solved))
    before = covfree.collect({"first": good}, num_classes=3) if later else None
    collected = covfree.collect({"bad": bad, "a": good, "b": good}, num_classes=3, before=before)
    reason = f"solved: expected {solved} as others send, got {not solved}"
    assert collected.rejected == {"bad": reason}
    assert collected.clients == (("first", "a", "b") if later else ("a", "b"))
    assert not collected.message.solved
    assert collected.solved == solved
    # Nor is it different where none of the later messages is of the right kind.
    alone = covfree.collect({"bad": bad, "worse": bad}, num_classes=3, before=collected)
    assert alone.rejected == {"bad": reason, "worse": reason}
    assert alone.clients == collected.clients


def test_clients_without_rows_are_like_any_others():
    """They send no matrix and no covariance, which is no reason to set them, or those after them, aside."""
    none = rows(np.zeros((0, 2)), (), ())
    good = with_matrix(with_rows(rows(), covariance=FULL))
    for sent in ({"none": none, "a": good}, {"a": good, "none": none}):
        collected = covfree.collect(sent, num_classes=3)
        assert collected.rejected == {}
        assert collected.clients == tuple(sent)
        np.testing.assert_array_equal(collected.message.matrix, good.matrix)
        assert collected.message.rows.covariance.shape == (2, 2, 2)


@pytest.mark.parametrize(("name", "part"), [("fed3r", "matrix"), ("fedcof-oracle", "covariance")])
def test_a_message_of_another_method(name, part):
    with pytest.raises(ValueError, match=f"message: expected a {part} beside the rows"):
        covfree.solve_message(registry()[name].make(), rows(), num_classes=3)


def test_a_rule_that_looks_at_rows_needs_them():
    method = covfree.fedcof_oracle(shrinkage=covfree.ledoit_wolf())
    message = collect(messages("fedcof-oracle")).message
    with pytest.raises(ValueError, match="shrinkage: expected a rule that needs only covariances"):
        covfree.solve_message(method, message, num_classes=CLASSES)


@pytest.mark.parametrize("wrapped", [lambda m: m, lambda m: covfree.select([m, covfree.fedcof_oracle()])])
def test_a_rule_that_needs_rows_is_refused_before_anything_is_sent(wrapped):
    method, features = wrapped(covfree.fedcof_oracle(shrinkage=covfree.ledoit_wolf())), np.eye(3, 2)
    with pytest.raises(ValueError, match=r"shrinkage: expected a rule that needs only covariances.* oas"):
        covfree.client_message(method, features.astype(np.float32), np.arange(3), num_classes=3)
    with pytest.raises(ValueError, match="shrinkage: expected a rule that needs only covariances"):
        as_algorithm(method, num_classes=3)
    # In sums, clients evaluate the rule on their own rows.
    assert as_algorithm(method, num_classes=3, uploads="sums").rounds == len(method.rounds)


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


# Counts that leave the integers of jax


LARGE = 2**31 - 1


def counts_and_means(message: covfree.Message) -> tuple[np.ndarray, np.ndarray]:
    """What the server's first phase makes of it."""
    (moments,) = covfree.accumulate(covfree.fedncm(), message.rows, num_classes=3)
    return np.asarray(moments.count, np.float64), np.asarray(moments.mean, np.float64)


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [(LARGE, 5, np.int32), (2**32 + 3, 5, np.int64), (10**9, 2 * 10**9, np.uint32), (100, 200, np.uint8)],
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "in a later round"])
def test_counts_add_up_however_large(first, second, dtype, later):
    sent = {
        "a": rows(mean=((1, 2), (3, 4)), count=(first, 7), count_dtype=dtype),
        "b": rows(mean=((5, 6), (7, 8)), count=(second, 9), count_dtype=dtype),
    }
    if later:
        before = covfree.collect({"a": sent["a"]}, num_classes=3)
        collected = covfree.collect({"b": sent["b"]}, num_classes=3, before=before)
    else:
        collected = covfree.collect(sent, num_classes=3)
    assert collected.rejected == {}
    count, mean = counts_and_means(collected.message)
    np.testing.assert_allclose(count, [first + second, 0, 16], rtol=1e-7)
    expected = (np.array([1, 2]) * first + np.array([5, 6]) * second) / (first + second)
    np.testing.assert_allclose(mean[0], expected, rtol=1e-6)
    exact = np.int32 if first + second + 16 < 2**31 else np.float64
    assert collected.message.rows.count.dtype == exact
    head = covfree.solve_message(covfree.fedcof(shrinkage=1.0), collected.message, num_classes=3)
    assert np.isfinite(head.weight).all()


def test_a_message_that_was_not_collected_is_not_cut_to_32_bits_either():
    method = covfree.fedcof(shrinkage=1.0)
    sent = rows(count=(2**32 + 3, 5), count_dtype=np.int64)
    wide = with_rows(sent, count=np.array([2.0**32, 5], np.float32))
    heads = [covfree.solve_message(method, message, num_classes=3) for message in (sent, wide)]
    np.testing.assert_array_equal(heads[0].bias, heads[1].bias)


@pytest.mark.parametrize("label", [2**32, -(2**32) + 1])
def test_labels_are_not_cut_to_32_bits(label):
    sent = rows(label=(0, label), label_dtype=np.int64)
    if label > 0:
        assert re.search(
            f"label: row 1 has label {label}; expected labels below", reason(sent, num_classes=3)
        )
    else:  # padding
        collected = covfree.collect({"a": sent}, num_classes=3)
        np.testing.assert_array_equal(counts_and_means(collected.message)[0], [3, 0, 0])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (rows(count=(1e30, 5), count_dtype=np.float32), "count: row 0 has count 1.* expected at most 2"),
        (spoil(rows(), mean=3e38), r"mean: row 0 \(class 0\) implies squared norms that sum to inf"),
        (
            rows(mean=((1e300, 0), (0, 0)), mean_dtype=np.float64),
            r"mean: row 0 .* holds 1e\+300 at position 0",
        ),
        (
            rows(mean=((1e30, 0), (0, 0)), mean_dtype=np.float64),
            "mean: row 0 .* that sum to inf; expected at most 7.9e.28",
        ),
        (with_rows(rows(), covariance=np.full(2, 1e38, np.float32)), "mean: row 0 .* that sum to 4e.38"),
    ],
)
def test_what_is_finite_and_huge_is_set_aside(message, text):
    assert re.match(text, reason(message, num_classes=3))


# What a server may bound


def test_the_weight_of_a_client_can_be_bounded():
    sent = {"a": rows(), "b": rows(count=(10**6, 5))}
    collected = covfree.collect(sent, num_classes=3, max_count=1000)
    assert collected.rejected == {"b": "count: counts sum to 1000005; expected at most max_count = 1000"}
    assert covfree.collect(sent, num_classes=3, max_count=1_000_005).rejected == {}


def test_the_norm_of_features_can_be_bounded():
    """By means, by covariances, and by the trace of a matrix; 5 is the norm of the larger mean."""
    sound, wide = rows(), with_rows(rows(), covariance=np.full((2, 2), 0.5, np.float32))
    stretched = with_matrix(rows())
    stretched = dataclasses.replace(stretched, matrix=stretched.matrix + 70 * np.eye(2, dtype=np.float32))
    for message, norm, text in (
        (
            sound,
            4.9,
            "mean: row 1 .* with a root-mean-square norm of 5 or more; expected at most max_norm = 4.9",
        ),
        (wide, 5.0, r"mean: row 1 \(class 2\) implies features with a root-mean-square norm of 5.07"),
        (stretched, 5.0, "matrix: has a trace of 282; expected at most 200, the number of examples times"),
    ):
        assert re.search(text, reason(message, num_classes=3, max_norm=norm))
    for message, norm in ((sound, 5.0), (wide, 5.1), (with_matrix(rows()), 5.0)):
        assert covfree.collect({"a": message}, num_classes=3, max_norm=norm).rejected == {}


def test_fractions_of_an_example_do_not_escape_the_bound_on_norms():
    """A row of 10⁻⁶ examples of norm 999 is worth one of norm 1, a hundred thousand such rows are not."""
    few = rows(mean=((999, 0), (0, 1)), count=(1e-6, 1), count_dtype=np.float32)
    assert re.search(
        r"mean: row 0 \(class 0\) implies features with a root-mean-square norm of 999 or more",
        reason(few, num_classes=3, max_norm=1.0),
    )


def test_directions_do_not_escape_the_bounds():
    features, labels = np.tile([[1.0], [-1.0]], (20, 2)).astype(np.float32), np.arange(40) // 20
    method, bounds = covfree.fedcof_residuals(1), {"max_count": 40, "max_norm": 2**0.5}
    honest = covfree.client_message(method, features, labels, num_classes=2)
    direction = np.asarray(honest.rows.sketch)
    assert covfree.collect({"a": honest}, num_classes=2, **bounds).rejected == {}
    for part, text in (
        (
            {"mean": np.where(direction[:, None], np.float32(1e8), 0)},
            "mean: residual directions have squares that sum to ",
        ),
        (
            {"count": np.where(direction, 10**6, 20)},
            "count: residual directions show 1000000 degrees of freedom; expected at",
        ),
        (
            {"label": np.zeros(3, np.int32)},
            "label: row 2 has label 0; expected -2, as it is a residual direction",
        ),
    ):
        assert re.search(text, reason(with_rows(honest, **part), num_classes=2, **bounds))


def test_directions_of_large_features_are_no_larger_sums_than_they_are():
    """A direction is a sum over all its examples, and not to be taken times their number."""
    direction = np.array([False, True])
    sent = rows(mean=((1, 1), (1e14, 0)), count=(3000, 2999), label=(0, -2))
    assert covfree.collect({"a": with_rows(sent, sketch=direction)}, num_classes=3).rejected == {}


def test_counts_that_are_weights_add_up_but_for_rounding():
    message = rows(count=(3.000001, 5), count_dtype=np.float32)
    assert covfree.collect({"a": message}, num_classes=3, max_count=8).rejected == {}
    assert re.search(
        "count: counts sum to 8",
        reason(rows(count=(3.001, 5), count_dtype=np.float32), num_classes=3, max_count=8),
    )


@pytest.mark.parametrize(
    ("bound", "error", "text"),
    [
        ({"max_norm": np.nan}, ValueError, "max_norm: expected a finite number of at least 0, got nan"),
        ({"max_count": np.nan}, ValueError, "max_count: expected a finite number of at least 0, got nan"),
        ({"max_norm": -50}, ValueError, "max_norm: expected a finite number of at least 0, got -50"),
        ({"num_examples": {"a": -1}}, ValueError, r"num_examples\['a'\]: expected a finite number"),
        ({"num_examples": {"b": 8}}, ValueError, "num_examples: expected clients that sent, .* 'a'; got 'b'"),
        ({"dim": 0}, ValueError, "dim: expected an integer of at least 1, got 0"),
        ({"max_count": "5"}, TypeError, "max_count: expected a number, got '5'"),
        ({"num_examples": 8}, TypeError, "num_examples: expected a number by client, got 8"),
        ({"before": rows()}, TypeError, "before: expected a Collected, got Message"),
    ],
)
def test_a_bound_that_bounds_nothing_is_an_error(untyped, bound, error, text):
    with pytest.raises(error, match=text):
        covfree.collect({"a": rows()}, num_classes=3, **bound)


def test_what_is_no_mapping_of_messages_is_an_error(untyped):
    with pytest.raises(TypeError, match=r"messages: expected a mapping from each .*name to .* got list"):
        covfree.collect([rows()], num_classes=3)


def test_dim_cannot_change_between_rounds():
    first = covfree.collect({"a": rows()}, num_classes=3)
    with pytest.raises(ValueError, match="dim: expected 2, that of the messages before; got 3"):
        covfree.collect({"b": rows()}, num_classes=3, dim=3, before=first)


# Who sends again


def test_who_sends_again_is_listed(untyped):
    first = covfree.collect({"a": rows(), "b": rows()}, num_classes=3)
    assert first.repeated == {}
    second = covfree.collect({"c": rows(), "b": rows(count=(1, 1))}, num_classes=3, before=first)
    sent = {"a": rows(), "b": rows(), "d": spoil(rows(), mean=np.nan)}
    third = covfree.collect(sent, num_classes=3, before=second)
    assert list(second.repeated) == ["b"]
    assert second.repeated["b"].startswith("sent another message; the first counts, as heads may have been")
    assert list(third.repeated) == ["b", "a"]
    same = "sent the same message again; a client counts once, so the first counts"
    # Equal to what was counted, whatever it sent in between; arrays of jax are no other numbers.
    assert third.repeated == {"a": same, "b": same}
    again = covfree.collect({"a": jax.tree.map(jax.numpy.asarray, rows())}, num_classes=3, before=first)
    assert again.repeated == {"a": same}
    junk = covfree.collect({"a": None}, num_classes=3, before=first)
    assert junk.repeated["a"].startswith("sent what was set aside (")
    assert third.clients == ("a", "b", "c")
    np.testing.assert_array_equal(third.message.rows.count, [3, 5] * 3)
    assert list(covfree.forget(third, "b").repeated) == ["a"]


def test_matrices_of_many_clients_add_up_without_rounding():
    """In float32 the small ones would be lost beside the large one."""
    large, small = (with_matrix(rows(mean=np.full((2, 2), value))) for value in (3000.0, 0.01))
    sent = {"large": large, **{k: small for k in range(500)}}
    total = covfree.collect(sent, num_classes=3, max_norm=None)
    exact = large.matrix.astype(np.float64) + 500 * small.matrix.astype(np.float64)
    np.testing.assert_allclose(total.message.matrix, exact, rtol=1e-12)
    left = covfree.forget(total, "large", message=large)
    np.testing.assert_allclose(left.message.matrix, 500 * small.matrix.astype(np.float64), rtol=1e-5)


def test_messages_of_another_method_are_set_aside():
    """They have the same shapes: class means, those of random features, and columns of heads."""
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    labels = np.arange(12) % 3
    methods = {
        "means": covfree.fedncm(),
        "again": covfree.fedcof(),
        "one more": covfree.fedncm(),
        "mapped": covfree.stsa_e(num_features=4, num_subsets=1),
        "reseeded": covfree.stsa_e(num_features=4, num_subsets=1, seed=1),
        "columns": covfree.ensemble(),
    }
    key = jax.random.key(0)
    sent = {
        name: covfree.client_message(
            method, x[:, :3] if name == "columns" else x, labels, num_classes=3, key=key
        )
        for name, method in methods.items()
    }
    sent["by hand"] = dataclasses.replace(sent["means"], sends=None)
    received = covfree.collect(sent, num_classes=3)
    assert set(received.clients) == {"means", "again", "one more", "by hand"}
    assert received.rejected["columns"] == "sends: expected 'ClassMeans' as others send, got 'LocalHeads'"
    assert received.rejected["mapped"] != received.rejected["reseeded"]
    late = covfree.collect({"late": sent["mapped"]}, num_classes=3, before=received)
    assert "sends: expected 'ClassMeans'" in late.rejected["late"]
    covfree.solve_message(covfree.fedcof(), received.message, num_classes=3)
    with pytest.raises(
        ValueError, match="message: expected 'LocalHeads', as clients of 'ensemble' send, got 'Class"
    ):
        covfree.solve_message(covfree.ensemble(), received.message, num_classes=3)


def test_files_say_what_they_hold(tmp_path):
    x, labels = np.eye(4, 3, dtype=np.float32), np.arange(4) % 2
    for name in ("a", "b"):
        message = covfree.client_message(covfree.fedcof(), x, labels, num_classes=2)
        covfree.save_message(message, tmp_path / f"{name}.safetensors")
    assert covfree.load_message(tmp_path / "a.safetensors").sends == "ClassMeans"
    folder = covfree.Inbox(tmp_path)
    assert covfree.collect(folder, num_classes=2).message.sends == "ClassMeans"
    with pytest.raises(ValueError, match=r"expected 'ClassMeans in ReluFeatures of 3 .* of 'stsa-e' send"):
        covfree.solve_rows(covfree.stsa_e(num_features=3), covfree.Stream(folder), num_classes=2)


def test_a_map_that_was_rounded_otherwise_is_the_same():
    """As on another device. Seeds and single numbers are the users' own, and tell maps apart."""
    thresholds = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

    def sends(feature_map):
        return covfree.fed3r().with_feature_map(feature_map).sends

    own = sends(covfree.bucket_features(thresholds))
    for other in (np.nextafter(thresholds, np.float32(9)), thresholds + np.float32(1e-7)):
        assert sends(covfree.bucket_features(other)) == own
    assert sends(covfree.bucket_features(thresholds[:, :3])) != own
    assert len({sends(covfree.relu_features(64, seed=seed)) for seed in (1000, 1001)}) == 2
    assert len({sends(covfree.fourier_features(64, sigma=sigma)) for sigma in (10.0, 10.1)}) == 2
    # The same number, as Python has it and in float32.
    sigmas = 0.123455, jax.numpy.float32(0.123455)
    assert len({sends(covfree.fourier_features(64, sigma=sigma)) for sigma in sigmas}) == 1


def test_messages_of_mapped_features_are_solved_under_jit():
    x, labels = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2
    method = covfree.fed3r().with_feature_map(covfree.relu_features(5))
    message = covfree.client_message(method, x, labels, num_classes=2)
    expected = covfree.solve_message(method, message, num_classes=2)
    found = jax.jit(lambda own: covfree.solve_message(own, message, num_classes=2))(method)
    np.testing.assert_allclose(found.head.weight, expected.head.weight, atol=1e-5)


# What the server knows


def other_kinds() -> dict[str, covfree.Message]:
    return {
        "nonsense": dataclasses.replace(rows(), sends="nonsense"),
        "matrix": with_matrix(rows()),
        "solution": with_matrix(rows(), solved=True),
        "covariances": with_rows(rows(), covariance=SQUARE),
    }


@pytest.mark.parametrize("kind", other_kinds())
def test_the_server_s_method_decides_and_not_who_comes_first(kind):
    bad, good = other_kinds()[kind], dataclasses.replace(rows(), sends="ClassMeans")
    method = covfree.fedcof()
    first = covfree.collect({"bad": bad}, num_classes=3, method=method)
    received = covfree.collect(dict.fromkeys("abcde", good), num_classes=3, method=method, before=first)
    assert received.clients == tuple("abcde")
    assert list(received.rejected) == ["bad"]
    assert "as clients of 'fedcof' send, got" in received.rejected["bad"]
    # What was taken without the method is not mixed with what the method's clients send.
    loose = covfree.collect({"bad": bad}, num_classes=3)
    with pytest.raises(
        ValueError, match="before: expected the result of earlier rounds with the same method and classes; "
    ):
        covfree.collect({"a": good}, num_classes=3, method=method, before=loose)
    # Made by hand it says nothing, and passes.
    assert covfree.collect({"a": rows()}, num_classes=3, method=method).rejected == {}


@pytest.mark.parametrize("name", [name for name in registry() if registry()[name].make().message_rounds])
def test_what_clients_of_a_method_send_is_of_its_kind(name):
    method = deployed.make(name)
    received = covfree.collect(messages(name), num_classes=CLASSES, method=method)
    assert received.rejected == {}


def test_a_method_without_messages_is_refused(untyped):
    with pytest.raises(ValueError, match="method: expected one whose clients send a single message each"):
        covfree.collect({}, num_classes=3, method=covfree.deepafl())
    with pytest.raises(TypeError, match="method: expected"):
        covfree.collect({}, num_classes=3, method="fedcof")


NAMES = ("cat", "dog", "cow")


def named(*names) -> covfree.Message:
    return dataclasses.replace(rows(), class_names=names or None)


def test_names_of_classes_are_those_of_the_server():
    sent = {"few": named("dog"), "first": named("cat"), "swapped": named("dog", "cat", "cow")}
    sent |= {"a": named(*NAMES), "silent": named(), "many": named(*NAMES, "emu")}
    received = covfree.collect(sent, num_classes=3, class_names=NAMES)
    # Who names the first classes alone numbers them alike.
    assert received.clients == ("first", "a", "silent")
    assert received.rejected == {
        "swapped": "class_names: expected 'cat' for class 0, got 'dog', 'dog' for class 1, got 'cat'",
        "few": "class_names: expected 'cat' for class 0, got 'dog'",
        "many": "class_names: expected 3 names, got 4",
    }
    assert received.message.class_names == NAMES
    by_method = covfree.collect(sent, num_classes=3, class_names=NAMES, method=covfree.fedncm())
    assert by_method.rejected == received.rejected
    # Who sends too few names does not decide for those who come later; nor do others' names before.
    alone = covfree.collect({"few": named("cat"), "silent": named()}, num_classes=3)
    assert list(alone.rejected) == ["few"]
    swapped = covfree.collect({"swapped": sent["swapped"]}, num_classes=3)
    with pytest.raises(ValueError, match=r"to begin with .* of before; .* 'cat' for class 0, got 'dog'"):
        covfree.collect({"a": sent["a"]}, num_classes=3, class_names=NAMES, before=swapped)
    with pytest.raises(TypeError, match=r"^extractor: expected the text of a fingerprint, got 3"):
        covfree.collect(sent, num_classes=3, extractor=3)  # pyright: ignore[reportArgumentType]


def test_names_of_classes_are_those_of_most_or_of_before():
    sent = {"swapped": named("dog", "cat", "cow"), "a": named(*NAMES), "b": named(*NAMES), "silent": named()}
    received = covfree.collect(sent, num_classes=3)
    assert list(received.rejected) == ["swapped"]
    later = covfree.collect(
        {"c": named("cow", "dog", "cat"), "d": named(*NAMES)}, num_classes=3, before=received
    )
    assert (
        later.rejected["c"]
        == "class_names: expected 'cat' for class 0, got 'cow', 'cow' for class 2, got 'cat'"
    )
    assert later.clients == ("a", "b", "silent", "d")


def test_messages_carry_the_names_of_their_classes(tmp_path, untyped):
    x, labels = np.eye(4, 3, dtype=np.float32), np.arange(4) % 2
    message = covfree.client_message(covfree.fedcof(), x, labels, num_classes=3, class_names=list(NAMES))
    covfree.save_message(message, tmp_path / "a.safetensors")
    assert covfree.load_message(tmp_path / "a.safetensors").class_names == NAMES
    received = covfree.collect(covfree.Inbox(tmp_path), num_classes=3, class_names=("cat", "cow", "dog"))
    assert list(received.rejected) == ["a"]
    none = covfree.client_message(covfree.fedcof(), x[:0], labels[:0], num_classes=3, class_names=NAMES)
    assert none.class_names == NAMES
    for names, error in (
        ("abc", TypeError),
        ((1, 2, 3), TypeError),
        (("a", "b"), ValueError),
        ("a", TypeError),
    ):
        with pytest.raises(error, match="class_names: expected"):
            covfree.client_message(covfree.fedcof(), x, labels, num_classes=3, class_names=names)
    with pytest.raises(
        ValueError, match=r"class_names: expected num_classes = 3 names that differ, got 3, 2 of"
    ):
        covfree.collect({}, num_classes=3, class_names=("cat", "cat", "dog"))


@pytest.mark.parametrize("method", [covfree.fedcof(shrinkage=0.1), covfree.fed3r(1.0)])
def test_classes_that_come_after_the_first_round_give_the_head_of_all_at_once(method, untyped):
    rng, names = np.random.default_rng(0), list("abcde")
    labels, owner = rng.integers(0, 5, 300).astype(np.int32), rng.integers(0, 6, 300)
    x = (rng.normal(size=(300, 4)) + 3 * np.eye(5, 4)[labels]).astype(np.float32)

    def sent(mask, classes):
        own = {k: mask & (owner == k) for k in range(6)}
        settings = {"num_classes": classes, "class_names": names[:classes]}
        return {
            (k, classes): covfree.client_message(method, x[i], labels[i], **settings) for k, i in own.items()
        }

    early = sent(labels < 3, 3)
    # One comes late, and does not know of the later classes.
    late = {(5, 3): early.pop((5, 3))}
    first = covfree.collect(early, num_classes=3, class_names=names[:3], method=method)
    later = {"class_names": names, "method": method, "before": first}
    received = covfree.collect(late | sent(labels >= 3, 5), num_classes=5, **later)
    assert (len(received.clients), received.message.class_names) == (12, tuple(names))
    head = covfree.solve_message(method, received.message, num_classes=5)
    expected = covfree.fit(method, x, labels, np.where(labels < 3, owner, owner + 6))
    np.testing.assert_allclose(head.weight, expected.weight, atol=1e-4)
    for classes, given, text in (
        (
            5,
            {"class_names": list("dabce")},
            "class_names: expected to begin with the class names of before; .* 'd' for class 0",
        ),
        (5, {"class_names": None}, "class_names: expected names of all 5 classes, as before names only 3"),
        (2, {"class_names": None}, "num_classes: expected at least 3, as the messages before hold class 2"),
    ):
        with pytest.raises(ValueError, match=text):
            covfree.collect({}, num_classes=classes, **later | given)


def test_another_extractor_than_the_server_s_or_that_of_most_is_set_aside(tmp_path, untyped):
    x, labels = np.eye(4, 3, dtype=np.float32), np.arange(4) % 2

    def sent(extractor):
        return covfree.client_message(covfree.fedcof(), x, labels, num_classes=3, extractor=extractor)

    covfree.save_message(sent("b7"), tmp_path / "odd.safetensors")
    assert covfree.load_message(tmp_path / "odd.safetensors").extractor == "b7"
    arrived = {
        "odd": covfree.Inbox(tmp_path)["odd"],
        "silent": sent(None),
        "a": sent("vit"),
        "b": sent("vit"),
    }
    known = covfree.collect(arrived, num_classes=3, extractor="vit", method=covfree.fedcof())
    most = covfree.collect(arrived, num_classes=3)
    for received in (known, most):
        assert received.clients == ("silent", "a", "b")
        assert received.rejected["odd"].startswith(
            "extractor: expected the one with the fingerprint 'vit', got 'b7'"
        )
        assert received.message.extractor == "vit"
    later = covfree.collect({"odd": arrived["odd"]}, num_classes=3, before=most)
    assert list(later.rejected) == ["odd"]
    with pytest.raises(ValueError, match=r"before: expected .* extractor: expected .* 'b7', got 'vit'"):
        covfree.collect({}, num_classes=3, extractor="b7", before=most)
    with pytest.raises(TypeError, match="extractor: expected the text"):
        sent(7)


def test_traced_messages_are_an_error_and_not_set_aside(untyped):
    method, features = covfree.fedcof(), np.eye(2, dtype=np.float32)

    @jax.jit
    def mean(features):
        sent = covfree.client_message(method, features, np.arange(2), num_classes=2)
        return covfree.collect({"a": sent}, num_classes=2).message.rows.mean

    with pytest.raises(TypeError, match="messages: expected arrays with values, got traced ones"):
        mean(features)
