"""A small federation as it is deployed: every client makes its own message."""

import dataclasses
from functools import cache

import federations
import jax
import numpy as np
from federations import CLASSES

import covfree
from covfree.methods import registry

# Clients are padded to one size, so that they share compiled functions.
SIZE = 24
# A method for each kind of message: rows alone, rows with variances, Gram matrices, solutions, covariances.
KINDS = ["fedncm", "naive-bayes", "fed3r", "afl", "fedcof-oracle"]
# What clients draw at random, from their own keys: a simulation has other draws of the same law.
DRAWN = ("fedcof-components", "fedpft")
# Fewer virtual features and fewer random ones than by default: as good for a comparison.
_FEWER = {
    "ccvr": {"num_samples": 300},
    "fedpft": {"num_samples": 300},
    "fishermix": {"num_samples": 300},
    "proto-hyper": {"num_samples": 300},
    "fedcof-random": {"num_features": 7},
    "fedran": {"num_features": 7, "num_directions": 2},
    "stsa-e": {"num_features": 7, "num_subsets": 1},
}
# These compile anew for each client: two of them show what there is to see.
_FEW_CLIENTS = dict.fromkeys(("fedpft", "ensemble"), (23, 83))


def make(name: str) -> covfree.Method:
    """The registry's method; where it shrinks by a number, as the automatic rule takes long to compile."""
    entry = registry()[name]
    number = {"shrinkage": 0.4} if "shrinkage" in entry.accepts else {}
    return entry.make(**_FEWER.get(name, {}), **number)


@cache
def ragged(name: str = "") -> federations.Federation:
    """Features in float32 (NaN where padding), labels, clients; ids with gaps."""
    features, labels, clients = federations.make(0)
    clients = np.where(clients >= 0, 10 * clients + 3, -1).astype(np.int32)
    if name in _FEW_CLIENTS:
        clients = np.where(np.isin(clients, _FEW_CLIENTS[name]), clients, -1).astype(np.int32)
    return federations.Federation(features.astype(np.float32), labels, clients)


def ids(name: str = "") -> list[int]:
    clients = ragged(name).clients
    return np.unique(clients[clients >= 0]).tolist()


def examples(client: int, label: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of one client, or of one of its classes, padded."""
    features, labels, clients = ragged()
    mine = (clients == client) & (label is None or labels == label)
    short = SIZE - mine.sum()
    return (
        np.pad(features[mine], [(0, short), (0, 0)], constant_values=np.nan),
        np.pad(labels[mine], (0, short), constant_values=-1),
    )


def send_one(method: covfree.Method, client: int, label: int | None = None) -> covfree.Message:
    """What one client sends, with a key of its own; of one class if that is named."""
    key = jax.random.fold_in(jax.random.key(3), client)
    return covfree.client_message(method, *examples(client, label), num_classes=CLASSES, key=key)


def send(method: covfree.Method) -> dict[int, covfree.Message]:
    """What every client sends."""
    return {client: send_one(method, client) for client in ids()}


@cache
def messages(name: str) -> dict[int, covfree.Message]:
    """What every client of the registry's method sends; not to be changed."""
    return {client: send_one(make(name), client) for client in ids(name)}


# Messages by hand, and what became of them


def rows(mean=((1, 2), (3, 4)), count=(3, 5), label=(0, 2), **dtypes) -> covfree.Message:
    """Sound by default: two classes of three, d = 2."""
    return covfree.Message(
        covfree.Rows(
            np.array(mean, dtypes.get("mean_dtype", np.float32)),
            np.array(count, dtypes.get("count_dtype", np.int32)),
            np.array(label, dtypes.get("label_dtype", np.int32)),
        )
    )


def with_rows(message: covfree.Message, **parts) -> covfree.Message:
    return dataclasses.replace(message, rows=dataclasses.replace(message.rows, **parts))


def with_matrix(message: covfree.Message, **parts) -> covfree.Message:
    """With F Fᵀ of examples that have these means, and spread about them by 1 in every direction."""
    mean, count = np.asarray(message.rows.mean, np.float64), np.asarray(message.rows.count)
    matrix = mean.T @ (count[:, None] * mean) + np.eye(mean.shape[1])
    return dataclasses.replace(message, matrix=matrix.astype(np.float32), **parts)


def spoil(message: covfree.Message, *, mean: float) -> covfree.Message:
    wrong = np.array(message.rows.mean)
    wrong[0, 1] = mean
    return with_rows(message, mean=wrong)


def collect(sent, before=None) -> covfree.Collected:
    return covfree.collect(sent, num_classes=CLASSES, before=before)


def table(collected: covfree.Collected) -> dict:
    """The rows of each client by its name, whatever order the clients came in."""
    received = collected.message.rows
    owner, unowned = np.asarray(received.client), dataclasses.replace(received, client=None)
    assert set(owner.tolist()) <= set(range(len(collected.clients)))
    return {
        name: [np.asarray(leaf)[owner == i].tolist() for leaf in jax.tree.leaves(unowned)]
        for i, name in enumerate(collected.clients)
    }


def assert_same(actual: covfree.Collected, expected: covfree.Collected, sent) -> None:
    """The same clients with the same rows, to the bit, and the same matrix but for rounding.

    A float32 sum of K terms is off by at most (K − 1)·eps·Σ|A_k|, in whatever order; a term that is taken out
    again is one term more in the sum that was rounded.
    """
    assert table(actual) == table(expected)
    matrix = expected.message.matrix
    assert (actual.message.matrix is None) == (matrix is None)
    if matrix is not None:
        parts = [np.abs(np.asarray(m.matrix, np.float64)) for m in sent.values() if m.matrix is not None]
        bound = 2 * len(parts) * np.finfo(np.float32).eps * sum(parts)
        assert (np.abs(np.asarray(actual.message.matrix, np.float64) - matrix) <= bound).all()
