"""The default method on clients that differ: the same head whoever runs it, however clients are numbered."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from precision import assert_heads_close

import covfree
from covfree.engine.parts import TableParts, padded_rows
from covfree.estimators.automatic import numbered, projections, sample_numbers
from covfree.estimators.automatic.senders import _group_numbers

CLASSES, DIM, CLIENTS, EXAMPLES = 6, 8, 20, 600
# The strength of shrinkage is chosen from float32 sums, and follows their rounding.
TOLERANCE = 1e-3
METHOD = covfree.fedcof()


def examples(shift: float = 1.5):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)
    clients = (CLIENTS * rng.random(EXAMPLES) ** 1.5).astype(np.int32)
    features = rng.normal(size=(CLASSES, DIM))[labels] + rng.normal(size=(EXAMPLES, DIM))
    features += shift * rng.normal(size=(CLIENTS, DIM))[clients]
    return features.astype(np.float32), labels, clients


def head_of(rows):
    return covfree.solve_rows(METHOD, rows, num_classes=CLASSES)


@pytest.fixture(scope="module")
def rows():
    return covfree.summarise(METHOD, *examples())


@pytest.fixture(scope="module")
def expected(rows):
    return head_of(rows)


def changed(rows, expected) -> float:
    head = head_of(rows)
    return float(abs(head.weight - expected.weight).max() / abs(expected.weight).max())


@pytest.mark.slow
def test_clients_make_a_difference(rows, expected):
    """Or none of the others could fail."""
    assert changed(replace(rows, client=None), expected) > 30 * TOLERANCE


def test_order_and_numbers_do_not(rows, expected):
    rng = np.random.default_rng(1)
    order = rng.permutation(len(rows.label))
    assert_heads_close(head_of(jax.tree.map(lambda x: x[order], rows)), expected, TOLERANCE)
    numbers = np.append(rng.permutation(256)[:CLIENTS], -1)
    numbered = replace(rows, client=numbers[np.asarray(rows.client)].astype(np.int32))
    assert_heads_close(head_of(numbered), expected, TOLERANCE)


@pytest.mark.parametrize("source", ["table", "messages"])
def test_read_part_by_part(source, rows, expected, tmp_path):
    table = jax.tree.map(np.asarray, rows)
    if source == "messages":
        for client in range(CLIENTS):
            mine = np.flatnonzero(table.client == client)
            own = replace(jax.tree.map(lambda x, mine=mine: x[mine], table), client=None)
            covfree.save_message(covfree.Message(own, None), tmp_path / f"{client}.safetensors")
        table = covfree.Inbox(tmp_path)
    head = covfree.solve_rows(METHOD, covfree.Stream(table, part_rows=16), num_classes=CLASSES)
    assert_heads_close(head, expected, TOLERANCE)


@pytest.mark.slow
def test_on_several_devices(rows, expected):
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    sharded = covfree.shard_rows(rows, mesh)
    totals = covfree.accumulate(METHOD, sharded, num_classes=CLASSES, mesh=mesh)
    assert_heads_close(covfree.solve_totals(METHOD, *totals), expected, TOLERANCE)


def test_examples_with_numbers_of_any_size(expected):
    features, labels, clients = examples()
    large = clients.astype(np.int64) * 10**12 + 7
    largest = np.where(clients == CLIENTS - 1, 2**31 - 1, clients)
    for numbers in (clients, large, largest):
        head = covfree.fit(METHOD, features, labels, numbers, num_classes=CLASSES)
        assert_heads_close(head, expected, TOLERANCE)


def test_the_oracle_from_messages_and_from_examples():
    """Its clients' sums are made of examples here, of class means there."""
    method = covfree.fedcof_oracle()
    features, labels, _ = examples()
    # As many examples each, for which one function is compiled.
    clients = np.arange(EXAMPLES) % 6
    features += np.random.default_rng(2).normal(size=(6, DIM)).astype(np.float32)[clients]
    sent = {
        client: covfree.client_message(
            method, features[clients == client], labels[clients == client], num_classes=CLASSES
        )
        for client in range(6)
    }
    received = covfree.collect(sent, num_classes=CLASSES).message
    got = covfree.solve_message(method, received, num_classes=CLASSES)
    assert_heads_close(got, covfree.fit(method, features, labels, clients), TOLERANCE)


def test_a_client_unknown_among_others(rows, expected):
    """A row of client −1 changes little; and the same wherever it is read."""
    table = jax.tree.map(np.asarray, rows)
    few = (table.client == 3) & (table.label == 0) & (table.count > 0)
    table = replace(table, client=np.where(few, -1, table.client))
    head = head_of(table)
    assert_heads_close(
        covfree.solve_rows(METHOD, covfree.Stream(table, part_rows=16), num_classes=CLASSES), head, TOLERANCE
    )
    away = changed(table, expected)
    assert 0 < away < 0.25 * changed(replace(rows, client=None), expected)


def many(clients, seed=0):
    """Clients with offsets as large as the spread within classes, of which the first has half."""
    rng = np.random.default_rng(seed)
    share = np.r_[0.5, np.full(9, 0.5 / 9)]
    means = rng.normal(size=(10, 16))

    def drawn(size, owner):
        labels = rng.choice(10, size, p=share)
        offset = rng.normal(size=(owner.max() + 1, 16))[owner]
        return (means[labels] + rng.normal(size=(size, 16)) + offset).astype(np.float32), labels

    owner = rng.integers(0, clients, 6000)
    return *drawn(6000, owner), owner, *drawn(3000, np.arange(3000))


@pytest.mark.slow
def test_no_cliff():
    """A client more than can be told apart costs nothing, nor do 300 more."""
    found = []
    for clients in (255, 256, 257, 600):
        features, labels, owner, *test = many(clients)
        rows = covfree.summarise(METHOD, features, labels, owner)
        head = covfree.solve_rows(METHOD, padded_rows(rows, 4096), num_classes=10)
        found.append(100 * float(covfree.evaluate(head, *test)))
    assert np.ptp(found[:3]) < 1.5
    assert found[3] > found[0] - 1.5


@pytest.mark.slow
def test_senders_are_numbered_alike_everywhere():
    """300 clients, 100 of them empty: examples, rows, messages, parts of rows and shards give one head."""
    features, labels, owner, *_ = many(200)
    numbers = np.sort(np.random.default_rng(1).permutation(300)[:200])[owner]
    expected = covfree.fit(METHOD, features, labels, numbers)
    rows = jax.tree.map(np.asarray, covfree.summarise(METHOD, features, labels, numbers))
    independent = covfree.solve_rows(METHOD, replace(rows, client=None), num_classes=10)
    assert abs(independent.weight - expected.weight).max() > 0.1 * abs(expected.weight).max()
    kept = rows.count > 0
    sent = {}
    for client in range(300):
        mine = kept & (rows.client == client)
        own = replace(jax.tree.map(lambda x, mine=mine: x[mine], rows), client=None)
        sent[client] = covfree.Message(own, None)
    received = covfree.collect(sent, num_classes=10, dim=16).message
    padded = replace(received, rows=padded_rows(received.rows, len(rows.label)))
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    totals = covfree.accumulate(METHOD, covfree.shard_rows(rows, mesh), num_classes=10, mesh=mesh)
    far = replace(rows, client=np.where(kept, rows.client + 1000, -1))
    heads = {
        "messages": covfree.solve_message(METHOD, padded, num_classes=10),
        "numbered from 1000": covfree.solve_rows(METHOD, far, num_classes=10),
        "parts": covfree.solve_rows(METHOD, covfree.Stream(far, part_rows=700), num_classes=10),
        "shards": covfree.solve_totals(METHOD, *totals),
    }
    for head in heads.values():
        assert_heads_close(head, expected, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("alike", [False, True])
def test_more_senders_than_are_looked_at(alike, tmp_path):
    """The same sample in any order, in rows, parts, files and shards; also of clients with equal counts."""
    rng = np.random.default_rng(3)
    features, labels, owner, *_ = many(300)
    if alike:
        features, labels, owner = features[:300], labels[:300] % 2, np.arange(300)
    rows = covfree.summarise(METHOD, features, labels, owner)
    table = jax.tree.map(lambda x: np.asarray(x)[np.asarray(rows.count) > 0], rows)
    expected = covfree.solve_rows(METHOD, rows, num_classes=10)
    sample = sample_of(numbered(rows), rows)
    size = table.client.max() + 1
    assert len(sample) == 256
    for order in (np.arange(size)[::-1], *(rng.permutation(size) for _ in range(3))):
        other = replace(rows, client=order[np.asarray(rows.client)].astype(np.int32))
        assert sample_of(numbered(other), other) == sample
        head = covfree.solve_rows(METHOD, other, num_classes=10)
        assert_heads_close(head, expected, 1e-4)
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    totals = covfree.accumulate(METHOD, covfree.shard_rows(other, mesh), num_classes=10, mesh=mesh)
    assert_heads_close(covfree.solve_totals(METHOD, *totals), expected, 1e-4)
    far = replace(table, client=order[table.client].astype(np.int64) * 10**12)
    parts = TableParts(far, 200, 10, whole_clients=False)
    numbers = np.concatenate([parts.read(index, check=True).client for index in range(len(parts.places) - 1)])
    assert sample_of(replace(table, client=numbers[: len(table.label)]), table) == sample
    assert_heads_close(
        covfree.solve_rows(METHOD, covfree.Stream(far, part_rows=200), num_classes=10), expected, 1e-4
    )
    for name, client in zip(rng.permutation(size), range(size), strict=True):
        own = jax.tree.map(lambda x, kept=table.client == client: x[kept], table)
        covfree.save_message(covfree.Message(replace(own, client=None)), tmp_path / f"{name}.safetensors")
    stream = covfree.Stream(covfree.Inbox(tmp_path), part_rows=200)
    assert_heads_close(covfree.solve_rows(METHOD, stream, num_classes=10), expected, 1e-4)


def sample_of(rows, mean_of):
    """The clients of the sample, by what they send."""
    number, mean = np.asarray(rows.client), np.asarray(mean_of.mean)
    kept = (number >= 0) & (number < 256)
    return {mean[np.flatnonzero(number == client)[0]].tobytes() for client in np.unique(number[kept])}


@pytest.mark.slow
def test_the_order_of_a_clients_examples_changes_no_sample():
    """600 clients of equal counts, far from zero: rounding of the means moves nobody in or out."""
    rng = np.random.default_rng(0)
    owner, labels = np.repeat(np.arange(600), 6), np.tile(np.arange(6) % 2, 600)
    offset = rng.normal(size=(600, 20))[owner]
    features = (30 + rng.normal(size=(3600, 20)) + offset + 3 * labels[:, None]).astype(np.float32)
    expected = None
    for seed in range(3):
        order = rng.permutation(3600) if seed else np.arange(3600)
        rows = covfree.summarise(METHOD, features[order], labels[order], owner[order], key=None)
        number = np.asarray(numbered(rows).client)
        table = replace(jax.tree.map(np.asarray, rows), client=np.asarray(rows.client).astype(np.int64))
        parts = TableParts(table, 700, 2, whole_clients=False).read(0, check=False).client
        np.testing.assert_array_equal((number < 256)[:700], (parts < 256)[: len(number)])
        sample = set(np.asarray(rows.client)[(number >= 0) & (number < 256)])
        expected = expected or sample
        assert sample == expected
        assert len(sample) == 256


@pytest.mark.parametrize("dim", [1, 5, 40])
def test_clients_of_equal_counts_are_sampled_fairly(dim):
    """Three groups of equal counts have their shares, and each a sample of its own mean and spread."""
    rng = np.random.default_rng(dim)
    group = rng.integers(0, 3, 9000)
    projected = rng.normal(size=(9000, dim)) + 100 * group[:, None]
    projected = projections(projected, np.ones(9000), np)
    keys = np.array([5, 70, 900], np.uint32)[group]
    numbers = sample_numbers(keys, projected, 9000, np)
    drawn = numbers < 256
    assert sorted(numbers[drawn]) == list(range(256))
    on_device = jax.jit(partial(sample_numbers, xp=jnp))(keys, projected, 9000)
    assert ((np.asarray(on_device) < 256) != drawn).sum() <= 2
    for one in range(3):
        mine = group == one
        assert abs((drawn & mine).sum() - 256 * mine.mean()) <= 1
        values = projected[mine, 0] - projected[mine, 0].mean()
        found, size = values[drawn[mine]] / values.std(), (drawn & mine).sum()
        assert abs(found.mean()) < 4 / size**0.5
        assert abs(found.std() - 1) < 4 / (2 * size) ** 0.5


@pytest.mark.parametrize("senders", [1, 255, 256, 257, 1000])
def test_numbers_are_fair(senders):
    """Each sender has one; those below 256 are spread over all of them."""
    rank = np.arange(senders)
    numbers = _group_numbers(rank, rank, rank + 1, senders, np)
    on_device = jax.numpy.asarray(rank)
    same = _group_numbers(on_device, on_device, on_device + 1, senders, jax.numpy)
    np.testing.assert_array_equal(same, numbers)
    assert len(set(numbers.tolist())) == senders
    sample = np.flatnonzero(numbers < 256)
    assert len(sample) == min(senders, 256)
    np.testing.assert_array_equal(numbers[sample], np.arange(len(sample)))
    if senders <= 256:
        np.testing.assert_array_equal(numbers, rank)
    else:
        assert np.diff(sample).max() < 2 * senders / 256 + 1
        # In step with nothing.
        assert 0.4 < (sample % 2).mean() < 0.6
