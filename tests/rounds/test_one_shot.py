"""Every training-free method is an algorithm: in one round of messages, and in rounds of sums."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree.core.keys import derive
from covfree.methods import registry
from covfree.rounds import ClientData, as_algorithm, run

KEY = jax.random.key(5)
CLASSES = 4


def federation():
    """Clients of several sizes, one of them empty; each class somewhere absent."""
    rng = np.random.default_rng(1)
    sizes = rng.permutation([16, 0, 8, 8, 16, 16, 8, 16])
    clients = np.repeat(np.arange(len(sizes)), sizes)
    labels = rng.integers(0, CLASSES, len(clients))
    labels[clients % 3 == 2] = labels[clients % 3 == 2] % 2
    features = rng.normal(size=(len(clients), 5)) + rng.normal(size=(CLASSES, 5))[labels]
    order = rng.permutation(len(clients))
    return features[order].astype(np.float32), labels[order], clients[order]


DATA = federation()


def made(name):
    entry = registry()[name]
    numbers = {"num_features": 12, "shrinkage": 1.0, "num_components": 1, "num_samples": 60}
    if name == "fedcof":
        # Automatic shrinkage looks at whose rows are whose; once is enough.
        return entry.make()
    return entry.make(**{key: value for key, value in numbers.items() if key in entry.accepts})


# A method for each kind of upload: class means, with directions, drawn, of mapped features, with variances;
# Gram matrices, solutions, covariances. That any method's messages give the head of `fit`, and that its sums
# add up, is told by tests/protocol/test_messages.py and the law `splitting`.
METHODS = (
    "fedncm",
    "fedcof",
    "fedcof-residuals",
    "fedcof-components",
    "fedcof-random",
    "naive-bayes",
    "fed3r",
    "afl",
    "fedcof-oracle",
    "fedpft",
)
# Whose server keeps all rows.
KEPT = ("fedpft",)
# Whose sums take one phase, two, two with directions, and two over whole clients; and sums of examples.
SUMMED = ("fedncm", "fedcof", "fedcof-residuals", "fedcof-components", "fed3r")


def deployed(method):
    """The head of a federation whose clients draw with the keys that the runner gives them."""
    features, labels, clients = DATA
    round_key = derive(jax.random.fold_in(derive(KEY, "rounds"), 0), "clients")
    messages = {}
    for who in np.unique(clients):
        mine = clients == who
        short = 16 - mine.sum()  # one shape for all clients
        messages[str(who)] = covfree.client_message(
            method,
            np.pad(features[mine], [(0, short), (0, 0)]),
            np.pad(labels[mine], (0, short), constant_values=-1),
            num_classes=CLASSES,
            key=jax.random.fold_in(round_key, who),
        )
    received = covfree.collect(messages, num_classes=CLASSES)
    assert not received.rejected
    sent = [covfree.message_bytes(message) for message in messages.values()]
    sent = covfree.SentBytes(*map(sum, zip(*sent, strict=True)))
    return covfree.solve_message(method, received.message, num_classes=CLASSES), sent


def expected(method):
    """Scores of the examples by the simulation or by clients that send messages, and the bytes sent."""
    if method.name in ("fedcof-components", "fedpft"):
        # Clients draw with keys of their own.
        head, sent = deployed(method)
    else:
        head = covfree.fit(method, *DATA, num_classes=CLASSES, key=KEY)
        sent = covfree.sent_bytes(method, DATA[1], DATA[2], dim=5)
    scores = np.asarray(head(DATA[0]), np.float64)
    return scores, {"rtol": 1e-3, "atol": 2e-4 * np.abs(scores).max()}, sent


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_methods_are_algorithms(name):
    method = made(name)
    scores, close, sent = expected(method)
    done = run(as_algorithm(method, num_classes=CLASSES), *DATA, key=KEY)
    np.testing.assert_allclose(done.result(DATA[0]), scores, **close)
    # A message's rows are counted with their counts and labels, and with whose they are.
    sketches = method.summary.name == "DirectedMeans"
    assert done.history[0]["bytes_up"] - sent.counts / 8 * (4 + sketches) == sent.total
    if name in KEPT:
        with pytest.raises(
            ValueError, match="method: expected one with totals of fixed size, got one that keeps"
        ):
            as_algorithm(method, num_classes=CLASSES, uploads="sums")
    elif name in SUMMED:
        algorithm = as_algorithm(method, num_classes=CLASSES, uploads="sums")
        done = run(algorithm, *DATA, key=KEY)
        if name == "fedcof":
            # Behind sums the automatic rule does not know the clients.
            rows = covfree.summarise(method, *DATA)
            head = covfree.solve_rows(method, replace(rows, client=None), num_classes=CLASSES)
            scores = np.asarray(head(DATA[0]), np.float64)
        np.testing.assert_allclose(done.result(DATA[0]), scores, **close)
        assert len(done.history) == len(method.rounds)


@pytest.mark.parametrize("name", ["fedcof", "fedcof-components"])
def test_sums_tell_nothing_of_single_clients(name):
    """A client's upload does not say which client it is, so the sum has no place of its own for it."""
    algorithm = as_algorithm(registry()[name].make(), num_classes=CLASSES, uploads="sums")
    features, labels = jnp.asarray(DATA[0][:16]), jnp.asarray(DATA[1][:16])
    uploads = []
    for number in (3, 5):
        state, memory = algorithm.init(algorithm.params, 8, KEY)
        for _ in range(2):
            sent = algorithm.broadcast(algorithm.params, state)
            data = ClientData.own(features, labels, number)
            upload, memory, _ = algorithm.client(algorithm.params, sent, data, memory, KEY)
            uploads.append(upload)
            state = algorithm.server(algorithm.params, state, upload)
    chex.assert_trees_all_equal(tuple(uploads[:2]), tuple(uploads[2:]))


def test_sums_are_of_fixed_size_whatever_a_client_has():
    algorithm = as_algorithm(covfree.fedcof(1.0), num_classes=CLASSES, uploads="sums")
    done = run(algorithm, *DATA, key=KEY)
    # Sums, counts, K_c and magnitudes; then a matrix of d².
    each = [record["bytes_up"] / record["clients"] for record in done.history]
    assert each == [4 * CLASSES * (5 + 3), 4 * (25 + 1)]


def test_rounds_before_the_last_phase_are_not_evaluated():
    algorithm = as_algorithm(covfree.fedcof(1.0), num_classes=CLASSES, uploads="sums")
    measured = run(algorithm, *DATA, key=KEY, evaluate=lambda head: {"norm": float(abs(head.weight).sum())})
    first, last = measured.history
    assert "norm" not in first
    assert last["norm"] > 0


def test_covariance_terms_under_secure_aggregation():
    """Σ_k of the clients' own terms is Σ_c (N_c − 1) Σ̂_c with the divisor K_c − 1 of the class's clients."""
    features, labels, clients = (np.asarray(x) for x in DATA)
    done = run(as_algorithm(covfree.fedcof(1.0), num_classes=CLASSES, uploads="sums"), *DATA, key=KEY)
    wanted, degrees = np.zeros((5, 5)), 0
    for c in range(CLASSES):
        own = features[labels == c].astype(np.float64)
        holders = np.unique(clients[labels == c])
        for k in holders:
            part = own[clients[labels == c] == k]
            gap = part.mean(0) - own.mean(0)
            wanted += (len(own) - 1) * len(part) * np.outer(gap, gap) / (len(holders) - 1)
        degrees += len(own) - 1
    np.testing.assert_allclose(done.state.state[1].scatter.dense(), wanted / degrees, rtol=2e-4, atol=1e-5)


def test_all_rounds_are_over_the_same_clients():
    algorithm = as_algorithm(covfree.fedcof(1.0), num_classes=CLASSES, uploads="sums")
    some = run(algorithm, *DATA, key=KEY, participation=0.5)
    assert some.history[0]["clients"] == some.history[1]["clients"] in (3, 4)
    with pytest.raises(ValueError, match="uploads of the same clients in each of the 2 rounds"):
        run(algorithm, *DATA, key=KEY, participation=np.array([[0, 1], [0, 2]]))
    with pytest.raises(ValueError, match="rounds: expected 2, as 'fedcof, sums' needs; got 3"):
        run(algorithm, *DATA, key=KEY, rounds=3)


def test_labels_past_the_head_are_named():
    with pytest.raises(ValueError, match=r"label 3; expected labels below num_classes = 3"):
        run(as_algorithm(covfree.fedncm(), num_classes=3), *DATA, key=KEY)


@pytest.mark.parametrize("uploads", ["messages", "sums"])
def test_a_saved_run_of_few_rounds_is_there_again(tmp_path, uploads):
    algorithm = as_algorithm(covfree.fedcof(1.0), num_classes=CLASSES, uploads=uploads)
    done, again = (run(algorithm, *DATA, key=KEY, checkpoint=tmp_path) for _ in range(2))
    assert again.history == done.history
    for x, y in zip(jax.tree.leaves(done.state), jax.tree.leaves(again.state), strict=True):
        np.testing.assert_array_equal(x, jnp.asarray(y))
