"""The named algorithms, and that another learning rate compiles nothing anew."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covfree.backbones import BACKBONES, Backbone, Preprocessing
from covfree.core.types import LinearHead
from covfree.finetune import linear_model, network_model, registry


@pytest.mark.parametrize("name", registry())
def test_rates_are_leaves(name):
    """Algorithms that differ in rates alone are one to the compiler, and start from other numbers."""
    entry = registry()[name]
    model = linear_model(LinearHead(jnp.ones((3, 2)), jnp.zeros(2)))
    first, second = (
        entry.make(model, client, server, epochs=2, batch_size=4)
        for client, server in ((0.1, 1.0), (0.2, 0.5))
    )
    assert first.name == name
    assert jax.tree.structure(first) == jax.tree.structure(second)
    leaves, others = jax.tree.leaves(first), jax.tree.leaves(second)
    changed = [
        (float(a), float(b)) for a, b in zip(leaves, others, strict=True) if np.ndim(a) == 0 and a != b
    ]
    assert sorted(changed) == [(0.1, 0.2), (1.0, 0.5)]
    for rates in (entry.head, entry.network):
        assert 0 < rates.client <= 0.1
        assert 0 < rates.server <= 1


def test_what_an_algorithm_accepts_it_takes():
    model = linear_model(LinearHead(jnp.ones((3, 2)), jnp.zeros(2)))
    for entry in registry().values():
        entry.make(model, 0.1, 1.0, **dict.fromkeys(entry.accepts, 0.5))
        if "mu" not in entry.accepts and entry.title != "FedNova":
            with pytest.raises(TypeError):
                entry.make(model, 0.1, 1.0, mu=0.5)


class Pixels(Backbone):
    """A backbone whose features are the pixels of the corner."""

    def apply(self, params, images, **options):
        return jnp.asarray(images)[:, 0, 0, :]


def test_grey_levels_are_normalised():
    shown = Preprocessing(8, 8, "bilinear", (10.0, 20.0, 30.0), (2.0, 4.0, 5.0))
    images = np.full((2, 4, 4, 3), 50, np.uint8)
    head = LinearHead(jnp.eye(3), jnp.zeros(3))
    for preprocessing, expected in ((shown, [20.0, 7.5, 4.0]), (None, [50.0] * 3)):
        network = Pixels(replace(BACKBONES["squeezenet1_1"], num_features=3), "float32")
        model = network_model(network, {"params": {}}, head, preprocessing=preprocessing)
        np.testing.assert_allclose(model(images), [expected] * 2)
