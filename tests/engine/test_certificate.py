"""What is left after clients were forgotten equals retraining, up to a bound that is computed."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from deployed import collect, make, messages
from federations import CLASSES

import covfree
from covfree.core.row_types import double
from covfree.engine.batch import state_of_message
from covfree.methods import registry
from covfree.methods.rounds import option

# A method for each kind of rows that clients send, and every method whose clients send matrices.
ROWS = ["fedncm", "fedcof", "naive-bayes", "fedcof-spherical", "fedcof-oracle", "qda", "fedcof-residuals"]
MATRICES = {"fed3r": "fed3r", "fed3r-within": "fed3r", "fedcgs": "fed3r", "afl": "afl"}


def without(sent, *clients):
    return {client: message for client, message in sent.items() if client not in clients}


@pytest.mark.parametrize("name", ROWS)
def test_heads_of_rows_are_those_of_a_server_that_never_heard_of_the_forgotten(name):
    sent = messages(name)
    gone = list(sent)[1::2]
    left = collect(sent)
    for client in gone:
        left = covfree.forget(left, client)
    never = collect(without(sent, *gone))
    # Equal rows give equal heads, as `solve_message` is a function of them.
    for own, other in zip(*(jax.tree.leaves(x.message.rows) for x in (left, never)), strict=True):
        np.testing.assert_array_equal(own, other)
    assert covfree.certify(make(name), left, num_classes=CLASSES) == (0.0, 0.0)
    assert covfree.certify(make(name), never, num_classes=CLASSES) == (0.0, 0.0)


def test_counts_are_not_rounded_by_those_of_a_client_that_is_forgotten():
    method = covfree.fedcof(0.1)
    rng, sent = np.random.default_rng(0), {}
    for client, count in zip("abc", [2**31 + 5, 2**24 + 1, 2**24 + 3], strict=True):
        rows = covfree.Rows(rng.normal(size=(2, 3)), np.array([count, count + 2]), np.array([0, 1]))
        sent[client] = covfree.Message(rows)
    left = covfree.forget(covfree.collect(sent, num_classes=2), "a").message.rows
    never = covfree.collect(without(sent, "a"), num_classes=2)
    np.testing.assert_array_equal(left.count, [2**24 + 1, 2**24 + 3, 2**24 + 3, 2**24 + 5])
    assert left.count.dtype == never.message.rows.count.dtype
    with pytest.raises(
        ValueError, match="num_classes: expected at least 2, as the messages hold class 1, got 1"
    ):
        covfree.certify(method, never, num_classes=1)


def scaled(message, factor):
    """What a client with features so many times as large would send."""
    rows = dataclasses.replace(message.rows, mean=np.asarray(message.rows.mean) * np.float32(factor))
    return dataclasses.replace(message, rows=rows, matrix=np.asarray(message.matrix) * np.float32(factor**2))


def exact_sum(sent):
    """The sum of the matrices, rounded once."""
    parts = [np.asarray(message.matrix, np.float64) for message in sent.values()]
    return np.vectorize(lambda *terms: math.fsum(terms))(*parts)


def solved(method, message):
    """S⁻¹ times the class sums, in float64."""
    rows = dataclasses.replace(message.rows, mean=np.asarray(message.rows.mean, np.float64))
    with double():
        state = state_of_message(method, dataclasses.replace(message, rows=rows), CLASSES)
        system = np.asarray(method.system(method.params, *state).dense())
    sums = np.zeros((CLASSES, system.shape[0]))
    np.add.at(sums, rows.label, rows.mean * np.asarray(rows.count)[:, None])
    return np.linalg.solve(system, sums.T)


@pytest.mark.parametrize("name", MATRICES)
def test_the_bound_on_sums_and_solutions_holds_and_says_something(name):
    """The client that leaves is ten thousand times as large, so that its rounding is all there is."""
    sent, method = dict(messages(MATRICES[name])), make(name)
    if MATRICES[name] == "fed3r":
        sent[23] = scaled(sent[23], 1e4)
    rest = without(sent, 23)
    never = covfree.collect(rest, num_classes=CLASSES, max_norm=None)
    left = covfree.forget(covfree.collect(sent, num_classes=CLASSES, max_norm=None), 23, message=sent[23])
    for _ in range(3):  # It comes and goes.
        again = covfree.collect({23: sent[23]}, num_classes=CLASSES, max_norm=None, before=left)
        left = covfree.forget(again, 23, message=sent[23])
    if MATRICES[name] == "fed3r":
        exact = exact_sum(rest)
        found = np.linalg.norm(left.message.matrix - exact)
        assert found <= left.rounding
        assert left.rounding <= 1e3 * found, "the bound says nothing"
        assert never.rounding <= 1e-6 * left.rounding
    bound = covfree.certify(method, left, num_classes=CLASSES)
    assert bound.statistics == left.rounding
    actual, expected = (solved(method, own.message) for own in (left, never))
    moved = np.linalg.norm(actual - expected)
    own = covfree.certify(method, never, num_classes=CLASSES).solutions
    assert moved <= (bound.solutions + 2 * own) * np.linalg.norm(expected) + 1e-12 * np.linalg.norm(expected)
    assert bound.solutions < 1e-3
    assert own < 1e-12
    if MATRICES[name] == "fed3r":
        assert moved > 1e-12 * np.linalg.norm(expected), "nothing was at stake"


def test_forgetting_everybody_else_and_restarts(tmp_path):
    sent = messages("fed3r")
    left = collect(sent)
    for client in without(sent, 23):
        left = covfree.forget(left, client, message=sent[client])
    assert left.rounding > 0
    covfree.save_collected(left, tmp_path / "server.safetensors")
    assert covfree.load_collected(tmp_path / "server.safetensors").rounding == left.rounding
    nobody = covfree.forget(left, 23, message=sent[23])
    assert nobody.rounding == 0
    with pytest.raises(ValueError, match="collected: expected the message of a client"):
        covfree.certify(make("fed3r"), nobody, num_classes=CLASSES)
    with pytest.raises(ValueError, match="as clients of 'fedcof' send"):
        covfree.certify(make("fedcof"), left, num_classes=CLASSES)


def kind(method):
    """What decides how a client's message is kept and removed: its matrix, and the columns of its rows."""
    return method.summary.matrices or option(method.summary.make, "covariance")


def test_every_method_that_can_forget_sends_what_is_tested():
    methods = {name: entry.make() for name, entry in registry().items()}
    tested = {kind(methods[name]) for name in (*ROWS, *MATRICES)}
    assert not {name for name, own in methods.items() if own.one_shot and kind(own) not in tested}
