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
    mapped = covfree.fed3r().with_feature_map(covfree.relu_features(7))
    expected = 2 * size * DIM * 7 + covfree.client_flops(covfree.fed3r(), labels, clients, dim=7)
    assert covfree.client_flops(mapped, labels, clients, dim=DIM) == expected


def test_training_by_the_papers_formula_and_table(untyped):
    """Fed3R's Appendix E and Table 5, in millions of multiplications with an addition, half of ours."""
    million = 1e6
    for extractor, classes, head, both in (
        (332.9, 2028, 2.6, 335.5),
        (332.9, 1203, 1.5, 334.4),
        (332.9, 100, 0.1, 333.0),
    ):
        shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((1, 1280), (1280, classes))]
        own = covfree.call_flops(jax.numpy.matmul, *shapes)
        assert round(own / 2 / million, 1) == head
        costs = {"extractor": 2 * extractor * million, "head": own, "epochs": 5}
        whole, fixed, probe = (
            covfree.training_flops(119, **costs, train=train) / 2 / million
            for train in ("all", "backbone", "head")
        )
        assert whole == fixed == pytest.approx(3 * 5 * 119 * both, rel=2e-4)
        assert probe == pytest.approx(5 * 119 * (extractor + 3 * head), rel=4e-4)
    with pytest.raises(ValueError, match=r"examples: .*at least 0, got -1"):
        covfree.training_flops(-1, extractor=1.0, head=1.0)
    with pytest.raises(ValueError, match=r"train: expected one of .*got 'body'"):
        covfree.training_flops(1, extractor=1.0, head=1.0, train="body")


def test_operations_of_a_call_by_loops(untyped):
    """A strided, grouped convolution and a product, added up place by place, inside jit and a branch."""

    def network(x, kernel, weight, deep):
        images = jax.lax.conv_general_dilated(
            x, kernel, (2, 2), "VALID", feature_group_count=2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        features = images.mean((1, 2))
        return jax.lax.cond(
            deep, lambda f: jax.jit(jax.numpy.matmul)(f, weight), lambda f: f[:, :5], features
        )

    shapes = (3, 9, 9, 4), (3, 3, 2, 6), (6, 5)
    arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    places = 3 * sum(1 for i in range(0, 7, 2) for j in range(0, 7, 2))
    expected = 2 * (places * 6 * 3 * 3 * 2 + 3 * 6 * 5)
    assert covfree.call_flops(network, *arrays, jax.ShapeDtypeStruct((), bool)) == expected


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
