"""Every law of `check_transform` can be broken, and says so; covfree's transforms keep them all."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree.statistics.transforms import Transform
from covfree.testing import check_transform
from covfree.testing.transform import TRANSFORM_LAWS


def clip(most, rows, key):
    """Sound: means of at most this norm; padding as it is."""
    used = (jnp.asarray(rows.count) > 0) & (jnp.asarray(rows.label) >= 0)
    mean = jnp.where(used[:, None], rows.mean, 1)
    norm = jnp.sqrt(jnp.square(mean).sum(1))
    return replace(rows, mean=mean * jnp.minimum(1, most / norm)[:, None])


calls = 0


def counting(strength, rows, key):
    global calls
    calls += 1
    return replace(rows, mean=rows.mean + calls)


def on_values(strength, rows, key):
    return rows if rows.count[0] > 3 else replace(rows, mean=2 * rows.mean)


def rooted(strength, rows, key):
    return replace(rows, mean=rows.mean + jnp.sqrt(strength))


class Places:
    """A transform without a structure of its own."""

    def __call__(self, rows, *, key):
        return rows


@jax.tree_util.register_dataclass
class Fresh(Transform):
    """What is copied is another function."""

    def __deepcopy__(self, memo):
        return Fresh(self.strength, lambda *arguments: self.apply(*arguments))


def shared_noise(strength, rows, key):
    noise = strength * jax.random.normal(key, (rows.mean.shape[1],))
    return replace(rows, mean=rows.mean + noise[None, :])


def gaussian(strength, rows, key):
    """Sound: noise on the means."""
    return replace(rows, mean=rows.mean + strength * jax.random.normal(key, rows.mean.shape))


def fixed_noise(strength, rows, key):
    return gaussian(strength, rows, jax.random.key(0))


def folded(strength, rows, key):
    return replace(rows, mean=rows.mean + strength * jnp.abs(jax.random.normal(key, rows.mean.shape)))


def clipped(rows):
    norm = np.linalg.norm(rows.mean, axis=1, keepdims=True)
    return replace(rows, mean=rows.mean * np.minimum(1, 2 / norm))


KNOWN = {"unbiased": {"unbiased_for": lambda rows: rows}, "reference": {"reference": clipped}}
BROKEN = {
    "pytree": Places(),
    "pure": Transform(1.0, counting),
    "rows": Transform(1.0, lambda s, rows, key: replace(rows, count=rows.count - 5)),
    "padding": Transform(1.0, lambda s, rows, key: replace(rows, count=rows.count + 1)),
    "splitting": Transform(1.0, lambda s, rows, key: replace(rows, mean=rows.mean / jnp.nanmax(rows.mean))),
    "independent": Transform(1.0, shared_noise),
    "order": Transform(1.0, fixed_noise),
    "unbiased": Transform(0.1, folded),
    "reference": Transform(2.1, clip),
    "jit": Transform(1.0, on_values),
    "trace": Fresh(1.0, clip),
    "gradients": Transform(0.0, rooted),
}


@pytest.mark.parametrize("law", BROKEN)
def test_what_breaks_a_law_is_caught(law):
    others = {one.__name__: "another test's" for one in TRANSFORM_LAWS if one.__name__ != law}
    says = next(one.__doc__ for one in TRANSFORM_LAWS if one.__name__ == law)
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law '{law}'. {says}")):
        check_transform(BROKEN[law], exclude=others, **KNOWN.get(law, {}))


def test_every_law_has_something_that_breaks_it():
    assert {law.__name__ for law in TRANSFORM_LAWS} == set(BROKEN)


@pytest.mark.parametrize(
    "transform",
    [Transform(2.0, clip), *(covfree.count_noise(kind, 0.5) for kind in ("uniform", "gaussian", "laplace"))],
    ids=lambda transform: getattr(transform.apply, "kind", "clip"),
)
def test_transforms_keep_the_laws(transform):
    check_transform(transform)


def test_what_is_known_of_a_transform_is_checked():
    check_transform(Transform(2.0, clip), reference=clipped)
    check_transform(Transform(0.5, gaussian), unbiased_for=lambda rows: rows)
