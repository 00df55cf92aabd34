"""Operations: loops over the leading terms, and XLA's own count."""

import deployed
import jax
import numpy as np
import pytest
from deployed import ragged
from federations import DIM

import covfree
from covfree.methods import registry


def flops_by_loops(name: str, labels, clients, dim: int) -> float:
    """Leading terms, added up client by client and example by example."""
    total = 0.0
    for client in {int(k) for k in clients if k >= 0}:
        mine = [int(y) for k, y in zip(clients, labels, strict=True) if k == client and y >= 0]
        for _ in mine:
            total += dim  # into a class sum
            if name not in ("fedncm", "fedcof"):
                total += 2 * dim * dim  # an outer product, into a matrix
        if name == "afl" and mine:
            total += dim**3 / 3 + 2 * dim * dim * len(set(mine))  # Cholesky, two triangular solves a class
    return total


@pytest.mark.parametrize("name", ["fedncm", "fedcof", "fed3r", "fedcgs", "afl", "fedcof-oracle", "ccvr"])
def test_flops_equal_what_loops_add_up(name):
    method, (_, labels, clients) = registry()[name].make(), ragged()
    for dim in (6, 30):  # multiples of 3, so that d³/3 is whole
        expected = flops_by_loops(name, labels, clients, dim)
        assert covfree.client_flops(method, labels, clients, dim=dim) == expected


@pytest.mark.parametrize("name", registry())
def test_flops_are_linear_in_the_examples_and_zero_without(name):
    method = deployed.make(name)
    labels, clients = np.arange(60, dtype=np.int32) % 3, np.zeros(60, np.int32)

    def flops(repeats: int) -> int:
        return covfree.client_flops(method, np.tile(labels, repeats), np.tile(clients, repeats), dim=12)

    matrices = ("fedcof-residuals", "fedcof-residuals-student", "fedran")
    if name not in matrices:  # where few examples of many features cost their square
        assert flops(3) - flops(2) == flops(2) - flops(1) > 0
    if name not in ("afl", *matrices):  # where a client's own matrix costs the same anyway
        assert flops(2) == 2 * flops(1) > 0
    padded = np.append(labels, np.full(9, -1, np.int32)), np.append(clients, clients[:9])
    assert covfree.client_flops(method, *padded, dim=12) == flops(1)
    nobody = np.full(5, -1, np.int32)
    assert covfree.client_flops(method, nobody, nobody, dim=12) == 0
    assert covfree.client_flops(method, nobody[:0], nobody[:0], dim=12) == 0


def test_flops_of_a_map_of_features():
    _, labels, clients = ragged()
    size = int(((labels >= 0) & (clients >= 0)).sum())
    mapped = covfree.fed3r(feature_map=covfree.relu_features(7))
    expected = 2 * size * DIM * 7 + covfree.client_flops(covfree.fed3r(), labels, clients, dim=7)
    assert covfree.client_flops(mapped, labels, clients, dim=DIM) == expected


def counted(function, size: int, dim: int) -> float:
    """Floating-point operations by XLA's own count of the compiled function."""
    x, y = jax.ShapeDtypeStruct((size, dim), np.float32), jax.ShapeDtypeStruct((size,), np.int32)
    compiled = jax.jit(lambda x, y: function(x, y, 4)).lower(x, y).compile()
    return compiled.cost_analysis()["flops"]


@pytest.mark.parametrize(("dim", "share"), [(64, 1), (256, 3 / 4), (512, 5 / 8)])
def test_flops_of_the_gram_matrix_by_xla_s_count(untyped, dim, share):
    """A symmetric product is done in blocks, of which some are copied: that is not taken off what is stated.

    Beside the product are the class sums, about 12 operations a number (below), of which one is stated:
    6/d of the product.
    """
    size = 2048
    labels = np.arange(size, dtype=np.int32) % 4
    stated = covfree.client_flops(covfree.fed3r(), labels, np.zeros(size, np.int32), dim=dim)
    ratio = counted(covfree.gram, size, dim) / stated
    assert share <= ratio <= share + 8 / dim + 0.01


def test_flops_of_class_means_by_xla_s_count(untyped):
    """An addition a number is stated.

    XLA counts about 12: masks and weights, and both ways in which long sums may be refined, of which short
    ones take neither.
    """
    size, dim = 2048, 64
    labels = np.arange(size, dtype=np.int32) % 4
    stated = covfree.client_flops(covfree.fedncm(), labels, np.zeros(size, np.int32), dim=dim)
    once, twice = (counted(covfree.class_means, n, dim) for n in (size, 2 * size))
    assert 1 <= once / stated < 16
    assert twice / once == pytest.approx(2, rel=0.05)
