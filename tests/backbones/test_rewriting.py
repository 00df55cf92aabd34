"""A network of Flax's own convolutions and maxima is trained with the forms that are fast on a CPU."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from covfree.backbones.rewriting import with_fast_forms


class Plain(nn.Module):
    """What users write: norms, dropout, several forms of convolutions and pools, parts that are compiled."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(6, (3, 3))(x)
        x = nn.max_pool(nn.relu(nn.BatchNorm(use_running_average=False)(x)), (2, 2), (2, 2))
        x = jax.jit(nn.max_pool, static_argnums=(1, 2, 3))(
            nn.Conv(8, (3, 3), strides=2)(x), (3, 3), (1, 1), "SAME"
        )
        x = nn.Conv(8, (3, 3), feature_group_count=8)(x) + nn.Conv(8, (2, 2), kernel_dilation=2)(x)
        x = nn.Dropout(0.5, deterministic=False)(nn.avg_pool(x, (2, 2)))
        # One side, and windows of other sides.
        x = nn.max_pool(nn.Conv(4, (3,))(x.reshape(len(x), -1, 8)), (2,))
        return nn.remat(nn.Dense)(3)(x.reshape(len(x), -1))


def test_a_network_of_others():
    network, x = Plain(), jnp.asarray(np.random.default_rng(0).normal(size=(4, 13, 12, 1)), jnp.float32)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = jax.jit(network.init)(keys, x)

    def loss(params, statistics, x, key):
        y, new = network.apply(
            {"params": params, "batch_stats": statistics}, x, rngs={"dropout": key}, mutable=["batch_stats"]
        )
        return jnp.square(y).sum(), new["batch_stats"]

    given = variables["params"], variables["batch_stats"], x, keys["dropout"]
    (ours, ours_new), mine = jax.jit(jax.value_and_grad(with_fast_forms(loss), has_aux=True))(*given)
    (theirs, theirs_new), their = jax.jit(jax.value_and_grad(loss, has_aux=True))(*given)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert jax.tree.structure((mine, ours_new)) == jax.tree.structure((their, theirs_new))
    for got, expected in zip(
        jax.tree.leaves((mine, ours_new)), jax.tree.leaves((their, theirs_new)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_training_in_a_loop_has_fast_code():
    """Also around what encloses arrays of the loop, and where clients run at once."""
    kernel, x = jnp.ones((3, 3, 4, 4)), jnp.ones((2, 2, 8, 8, 4))

    def step(fast):
        def trained(x):
            def one(_, kernel):
                def loss(kernel):
                    y = lax.conv_general_dilated(
                        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                    )
                    return jnp.square(nn.max_pool(y, (2, 2), (2, 2))).sum()

                return kernel - 1e-3 * jax.grad(with_fast_forms(loss) if fast else loss)(kernel)

            return lax.fori_loop(0, 3, one, kernel)

        return trained

    def forms(fast):
        text = jax.jit(step(fast)).lower(x[0]).compile().as_text()
        return set(re.findall(r"convolution\(.*dim_labels=([^ ,]+)", text)), "select-and-scatter" in text

    assert forms(True) == ({"b01f_01io->b01f"}, False)
    assert forms(False) != ({"b01f_01io->b01f"}, False)  # once it is the same, the rewriting can go
    several = jax.jit(jax.vmap(step(True)))(x)
    np.testing.assert_allclose(several, jax.jit(jax.vmap(step(False)))(x), rtol=1e-4)
