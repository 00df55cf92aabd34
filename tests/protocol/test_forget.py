"""What was sent can be forgotten: a client, or one class of it, as if it had never been sent."""

import dataclasses
import re

import deployed
import jax
import numpy as np
import pytest
from deployed import KINDS, assert_same, collect, messages, spoil, with_rows
from federations import CLASSES, DIM
from precision import assert_close

import covfree
from covfree.methods.field.afl import distinct


def without(sent: dict, *clients) -> dict:
    return {client: message for client, message in sent.items() if client not in clients}


@pytest.mark.parametrize("name", KINDS)
def test_to_forget_a_client_is_never_to_have_heard_of_it(name):
    sent = messages(name)
    everybody, never = collect(sent), collect(without(sent, 23))
    left = covfree.forget(everybody, 23, message=sent[23])
    assert_same(left, never, sent)
    assert left.clients == never.clients
    # It may send again, and then counts again.
    assert_same(collect({23: sent[23]}, left), everybody, sent)
    # The others' rows are where they were, so that the same client can be forgotten after others.
    first = next(iter(sent))
    fewer = covfree.forget(left, first, message=sent[first])
    assert_same(fewer, collect(without(sent, 23, first)), sent)


@pytest.mark.parametrize("name", KINDS)
def test_everybody_can_be_forgotten(name):
    sent = messages(name)
    left = collect(sent)
    for client in sent:
        left = covfree.forget(left, client, message=sent[client])
    assert left.clients == ()
    assert left.message.rows.mean.shape == (0, DIM)
    # What is left of the matrix is rounding, which is not carried on.
    again = collect(sent, left)
    assert_same(again, collect(sent), sent)
    if again.message.matrix is not None:
        np.testing.assert_array_equal(again.message.matrix, collect(sent).message.matrix)


def test_the_head_of_solutions_knows_how_many_are_left():
    """Each client's γ is in the matrix: with K wrong by one the head would be another."""
    sent = deployed.send(covfree.afl(300.0))
    left = covfree.forget(collect(sent), 23, message=sent[23])
    assert distinct(left.message.rows.client) == len(sent) - 1
    method, expected = covfree.afl(300.0), collect(without(sent, 23))
    actual, wanted = (
        covfree.solve_message(method, collected.message, num_classes=CLASSES).weight
        for collected in (left, expected)
    )
    # C − Kγ I is known to eps·Kγ, about 1e-4, and its smallest eigenvalue is above 1.
    assert_close(actual, wanted, 1e-3)


@pytest.mark.parametrize("name", ["fedncm", "naive-bayes", "fedcof-oracle"])
def test_one_class_of_a_client_can_be_forgotten(name):
    """As if the client had sent the examples of its other classes alone."""
    sent, method, client = messages(name), deployed.make(name), 23
    held = sent[client].rows.label.tolist()
    assert len(held) > 2
    x, y = deployed.examples(client)
    rest = covfree.client_message(method, x, np.where(y == held[1], -1, y), num_classes=CLASSES)
    expected = collect({**sent, client: rest})
    left = covfree.forget(collect(sent), client, label=held[1])
    assert_same(left, expected, sent)
    # The client is still known: what it sends does not count a second time.
    assert client in left.clients
    assert_same(collect({client: sent[client]}, left), left, sent)


def test_a_class_that_the_client_lacks_cannot_be_forgotten():
    sent = messages("fedncm")
    held = sent[23].rows.label.tolist()
    lacked = next(c for c in range(CLASSES) if c not in held)
    for label in (lacked, 500, -1):
        text = f"label: expected a class that client 23 holds, one of {held}, got {label}"
        with pytest.raises(ValueError, match=re.escape(text)):
            covfree.forget(collect(sent), 23, label=label)


def test_directions_are_forgotten_with_their_client():
    sent = messages("fedcof-residuals")
    everybody = collect(sent)
    assert np.asarray(everybody.message.rows.sketch).any()
    assert_same(covfree.forget(everybody, 23), collect(without(sent, 23)), sent)
    with pytest.raises(
        ValueError, match="label: expected None, as the client sent sums over all its classes"
    ):
        covfree.forget(everybody, 23, label=int(sent[23].rows.label[0]))


@pytest.mark.parametrize("client", ["nobody", 24, None])
def test_to_forget_who_never_came(client):
    with pytest.raises(ValueError, match=r"client: expected one that was collected, got "):
        covfree.forget(collect(messages("fedncm")), client)


def test_who_was_set_aside_or_forgotten_cannot_be_forgotten():
    sent = messages("fedncm")
    collected = collect({**sent, 23: spoil(sent[23], mean=np.nan)})
    for client in (23, 13):
        left = covfree.forget(collected, 13)
        with pytest.raises(ValueError, match=f"client: expected one that was collected, got {client}"):
            covfree.forget(left, client)


@pytest.mark.parametrize("name", ["fed3r", "afl"])
def test_a_matrix_can_be_taken_out_only_if_it_is_known(name):
    everybody = collect(messages(name))
    for message in (None, messages("fedncm")[23]):
        with pytest.raises(
            ValueError, match="message: expected the client's message, to subtract its matrix from the sum"
        ):
            covfree.forget(everybody, 23, message=message)


@pytest.mark.parametrize("name", ["fed3r", "afl"])
def test_one_class_of_a_matrix_cannot_be_forgotten(name):
    """The server could not tell whether the matrix of the class is what it was."""
    sent = messages(name)
    with pytest.raises(
        ValueError, match="label: expected None, as the client sent sums over all its classes"
    ):
        covfree.forget(collect(sent), 23, label=int(sent[23].rows.label[0]), message=sent[23])


def test_to_forget_leaves_what_was_collected_as_it_was():
    sent = messages("fed3r")
    everybody = collect(sent)
    before = [np.array(leaf) for leaf in jax.tree.leaves(everybody.message)]
    covfree.forget(everybody, 23, message=sent[23])
    collect(sent, everybody)
    for leaf, expected in zip(jax.tree.leaves(everybody.message), before, strict=True):
        np.testing.assert_array_equal(leaf, expected)


def changed(message, **parts):
    return dataclasses.replace(message, **parts)


NOT_SENT = {
    "another client's": lambda sent: sent[13],
    "1.5 times the matrix": lambda sent: changed(sent[23], matrix=1.5 * sent[23].matrix),
    "minus the matrix": lambda sent: changed(sent[23], matrix=-sent[23].matrix),
    "a larger diagonal": lambda sent: changed(
        sent[23], matrix=sent[23].matrix + np.eye(DIM, dtype=np.float32)
    ),
    "another mean": lambda sent: with_rows(sent[23], mean=1.001 * sent[23].rows.mean),
    "of another kind": lambda sent: changed(sent[23], solved=not sent[23].solved),
    "other names of classes": lambda sent: changed(sent[23], class_names=tuple("abcdefg")),
}


@pytest.mark.parametrize("name", ["fed3r", "afl"])
@pytest.mark.parametrize("other", NOT_SENT.values(), ids=NOT_SENT)
def test_what_was_not_sent_cannot_be_taken_out(name, other):
    """The receipt tells it, of many clients and of an only one; nothing changes."""
    sent = messages(name)
    for everybody in (collect(sent), collect({23: sent[23]})):
        with pytest.raises(ValueError, match="message: expected the one that the client sent, whose digest"):
            covfree.forget(everybody, 23, message=other(sent))
    left = covfree.forget(collect({23: sent[23]}), 23, message=jax.tree.map(jax.numpy.asarray, sent[23]))
    assert not np.asarray(left.message.matrix).any()


@pytest.mark.parametrize(("first", "then"), [("afl", "fed3r"), ("fed3r", "afl")])
def test_the_kind_of_messages_is_known_after_forgetting_some(first, then):
    sent = messages(first)
    left = covfree.forget(collect(sent), 23, message=sent[23])
    mixed = collect({23: messages(then)[23]}, left)
    expected, got = left.solved, messages(then)[23].solved
    assert mixed.rejected == {23: f"solved: expected {expected} as others send, got {got}"}
    # Who has nothing of any kind may begin with either.
    for client in left.clients:
        left = covfree.forget(left, client, message=sent[client])
    again = collect(messages(then), left)
    assert again.rejected == {}
    assert again.solved == got
