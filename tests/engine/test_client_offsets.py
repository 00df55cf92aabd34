"""The default method on clients that differ: the same head whoever runs it, however clients are numbered."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from precision import assert_heads_close

import covfree
from covfree.engine.stream import solve_stream

pytestmark = pytest.mark.usefixtures("cheap_compilation")

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
        table = covfree.MessageFolder(tmp_path)
    head = solve_stream(METHOD, table, num_classes=CLASSES, part_rows=16)
    assert_heads_close(head, expected, TOLERANCE)


def test_on_several_devices(rows, expected):
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    sharded = covfree.shard_rows(rows, mesh)
    totals = covfree.accumulate_sharded(METHOD, sharded, num_classes=CLASSES, mesh=mesh)
    assert_heads_close(covfree.solve_totals(METHOD, *totals), expected, TOLERANCE)


def test_examples_with_numbers_of_any_size(expected):
    features, labels, clients = examples()
    large = clients.astype(np.int64) * 10**12 + 7
    for numbers in (clients, large):
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


@pytest.mark.parametrize("numbers", ["too large", "beyond int32", "unknown"])
def test_clients_that_cannot_be_told_apart(numbers, rows):
    """One number too many, and rows are taken as independent; also where they are read part by part."""
    client = np.asarray(rows.client).astype(np.int64)
    some = (client == 3) & (np.asarray(rows.count) > 0)
    client[some] = {"too large": 256, "beyond int32": 2**40, "unknown": -1}[numbers]
    table = replace(jax.tree.map(np.asarray, rows), client=client)
    independent = head_of(replace(rows, client=None))
    head = solve_stream(METHOD, table, num_classes=CLASSES, part_rows=16)
    assert_heads_close(head, independent, TOLERANCE)
    if numbers != "beyond int32":
        assert_heads_close(head_of(replace(table, client=client.astype(np.int32))), independent, TOLERANCE)
