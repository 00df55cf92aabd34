"""Convolutions and maxima in the forms that are fast on a CPU, against XLA's own."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import export, lax
from precision import x64

from covfree.backbones.convolution import convolve, max_pool

pytestmark = pytest.mark.usefixtures("optimised")

LAYOUT = ("NHWC", "HWIO", "NHWC")


def by(function):
    def call(x, kernel, stride, padding, groups):
        settings = {"dimension_numbers": LAYOUT, "precision": "highest", "feature_group_count": groups}
        return function(x, kernel, (stride, stride), padding, **settings)

    return call


own, xlas = by(convolve), by(lax.conv_general_dilated)


def drawn(shape, seed, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


# Side of the image and of the kernel, stride, padding, channels in and out, groups.
CASES = {
    "one channel a group": (9, 3, 1, ((1, 1), (1, 1)), 6, 6, 6),
    "wide": (9, 5, 2, ((2, 2), (2, 2)), 6, 6, 6),
    "even side, padded as TensorFlow does": (10, 3, 2, "SAME", 6, 6, 6),
    "odd side": (9, 5, 2, "SAME", 6, 6, 6),
    "one by one": (9, 1, 1, ((0, 0), (0, 0)), 6, 8, 1),
    "one by one with steps": (9, 1, 2, ((0, 0), (0, 0)), 6, 8, 1),
    "one by one, padded": (9, 1, 1, ((1, 0), (0, 2)), 6, 8, 1),
    "one channel a group, cropped": (9, 3, 1, ((-1, 0), (0, -1)), 6, 6, 6),
    "dense": (9, 3, 1, ((1, 1), (1, 1)), 6, 8, 1),
    "dense with steps, of which the last reaches less than all": (9, 3, 2, ((0, 0), (0, 0)), 6, 8, 1),
    "dense, wide, padded as TensorFlow does": (10, 5, 2, "SAME", 6, 8, 1),
    "few channels": (9, 3, 1, ((1, 1), (1, 1)), 3, 8, 1),
    "few channels, wide, with steps, padded as TensorFlow does": (10, 5, 2, "SAME", 1, 4, 1),
    "few channels, cropped": (9, 3, 1, ((-1, 0), (0, -1)), 2, 4, 1),
    "two groups": (9, 3, 1, ((1, 1), (1, 1)), 6, 8, 2),
    "two of each channel": (9, 3, 1, ((1, 1), (1, 1)), 6, 12, 6),
}


@pytest.mark.parametrize(
    ("side", "size", "stride", "padding", "inner", "outer", "groups"), CASES.values(), ids=CASES
)
def test_convolution(side, size, stride, padding, inner, outer, groups):
    x, kernel = drawn((2, side, side + 1, inner), 0), drawn((size, size, inner // groups, outer), 1)

    def outcome(function):
        def loss(x, kernel):
            y = function(x, kernel, stride, padding, groups)
            return (y * jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum(), y

        (_, y), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(x, kernel)
        return y, *gradients

    for got, expected in zip(outcome(own), outcome(xlas), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_whatever_else_is_asked_for_is_xlas_own():
    """Other element types, groups of examples, layouts, numbers of sides; nothing is ignored."""
    x, kernel = drawn((2, 7, 7, 4), 0), drawn((3, 3, 4, 4), 1)
    for settings in ({"batch_group_count": 2}, {"rhs_dilation": (2, 1)}, {"lhs_dilation": (1, 2)}):
        settings = {"dimension_numbers": LAYOUT, **settings}
        np.testing.assert_array_equal(
            convolve(x, kernel, (1, 1), ((1, 0), (0, 2)), **settings),
            lax.conv_general_dilated(x, kernel, (1, 1), ((1, 0), (0, 2)), **settings),
        )
    half = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    assert convolve(*half, (1, 1), "SAME", preferred_element_type=jnp.float32).dtype == np.float32
    turned = x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)
    first = convolve(*turned, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
    expected = convolve(x, kernel, (1, 1), "SAME")
    np.testing.assert_allclose(first.transpose(0, 2, 3, 1), expected, rtol=1e-5, atol=1e-5)
    for sides in (1, 3):
        layer, plain = (
            nn.Conv(4, (3,) * sides, conv_general_dilated=f) for f in (convolve, lax.conv_general_dilated)
        )
        image = drawn((2, *(5,) * sides, 3), 0)
        params = plain.init(jax.random.key(0), image)
        np.testing.assert_array_equal(layer.apply(params, image), plain.apply(params, image))


def test_kernels_of_their_own_under_vmap():
    x, kernels = drawn((3, 2, 7, 7, 4), 0), drawn((3, 3, 3, 1, 4), 1)
    got = jax.jit(jax.vmap(lambda x, kernel: own(x, kernel, 1, "SAME", 4)))(x, kernels)
    for index in range(3):
        np.testing.assert_allclose(
            got[index], xlas(x[index], kernels[index], 1, "SAME", 4), rtol=1e-5, atol=1e-5
        )


def test_bfloat16_is_summed_in_float32():
    x, kernel = drawn((2, 9, 9, 4), 0, jnp.bfloat16), drawn((5, 5, 1, 4), 1, jnp.bfloat16)
    got = own(x, kernel, 1, "SAME", 4)
    exact = xlas(x.astype(np.float32), kernel.astype(np.float32), 1, "SAME", 4)
    assert got.dtype == jnp.bfloat16
    # One rounding to 8 bits, however many terms.
    np.testing.assert_allclose(got.astype(np.float32), exact, rtol=2**-8, atol=1e-6)


def test_accelerators_use_their_own_kernels_and_cpus_do_not():
    x, kernel = jnp.zeros((1, 8, 8, 4)), jnp.zeros((3, 3, 1, 4))
    run = jax.jit(lambda x, k: own(x, k, 1, "SAME", 4))
    assert "stablehlo.convolution" in export.export(run, platforms=["cuda"])(x, kernel).mlir_module()
    assert "convolution(" not in run.lower(x, kernel).compile().as_text()


WINDOWS = [
    ((3, 3), (2, 2), ((0, 0), (0, 1))),
    ((3, 3), (2, 2), ((1, 1), (1, 1))),
    ((2, 2), (2, 2)),
    ((3, 2), (3, 2), "SAME"),
    ((3, 2), (1, 3), "SAME"),
    ((2, 3),),
    ((7, 7), (7, 7), ((3, 3), (3, 3))),
    ((9, 8), (3, 3), "SAME"),
]


# With an even side strides of two and of three leave another rest.
@pytest.mark.parametrize(("side", "windows"), [(7, WINDOWS), (8, [*WINDOWS[:3], WINDOWS[-1]])])
def test_maxima(side, windows):
    x = drawn((2, side, side, 3), 0) - 5  # below 0, so that a pad of 0 would show

    @partial(jax.jit, static_argnums=0)
    def outcomes(function, x):
        def squares(x, window):
            y = function(x, *window)
            return (y**2).sum(), y

        return [jax.grad(partial(squares, window=window), has_aux=True)(x) for window in windows]

    for window, ours, theirs in zip(windows, outcomes(max_pool, x), outcomes(nn.max_pool, x), strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1], err_msg=str(window))
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6, err_msg=str(window))


@pytest.mark.parametrize("strides", [(2, 2), (1, 1)], ids=str)
def test_of_equal_maxima_the_first_gets_the_slope(strides):
    """As with XLA's own, whatever is equal to what; forwards as backwards, for batches of clients too."""
    with x64():
        x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (5, 2, 7, 6, 2)), jnp.float64)
        slopes = jnp.asarray(np.random.default_rng(1).normal(size=x.shape))

        @partial(jax.jit, static_argnums=0)
        def of(function, x, slopes):
            maxima = jax.vmap(lambda x: function(x, (2, 2), strides))
            y, back = jax.vjp(maxima, x)
            return y, back(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))[0]

        for got, expected in zip(of(max_pool, x, slopes), of(nn.max_pool, x, slopes), strict=True):
            assert got.dtype == np.float64
            np.testing.assert_allclose(got, expected, rtol=1e-14)

        @jax.jit
        def forwards_and_backwards(x, slope):
            y, back = jax.vjp(lambda x: max_pool(x, (2, 2), strides), x)
            moved = jax.jvp(lambda x: max_pool(x, (2, 2), strides), (x,), (slope,))[1]
            return (moved * y).sum(), (back(y)[0] * slope).sum()

        forwards, backwards = forwards_and_backwards(x[0], slopes[0])
        np.testing.assert_allclose(forwards, backwards, rtol=1e-12)


def test_in_a_loop_every_convolution_is_of_the_form_with_fast_code():
    """XLA puts convolutions into that form outside loops alone."""
    x, kernel = drawn((2, 9, 9, 4), 0), drawn((3, 3, 4, 4), 1)

    def trained(function):
        def step(_, carry):
            def loss(x, kernel):
                return jnp.square(function(x, kernel, 2, "SAME", 1)).sum()

            return jax.tree.map(jnp.subtract, carry, jax.grad(loss, (0, 1))(*carry))

        compiled = jax.jit(lambda *start: lax.fori_loop(0, 3, step, start)).lower(x, kernel).compile()
        return re.findall(r"convolution\(.*dim_labels=([^ ,]+)", compiled.as_text())

    assert trained(own) == ["b01f_01io->b01f"] * 3
    assert set(trained(xlas)) > {"b01f_01io->b01f"}  # once it is none, this can all go
