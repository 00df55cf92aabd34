"""Without an optional dependency the error says what to install."""

import importlib
import sys

import jax.numpy as jnp
import pytest

import covfree
from covfree import backbones, finetune
from covfree.data import load_digits
from covfree.heads.lbfgs import minimise
from covfree.testing import check_estimator, check_transform

MESSAGE = covfree.Message(covfree.Rows(jnp.ones((1, 2)), jnp.ones(1), jnp.zeros(1, int)))


@pytest.mark.parametrize(
    ("module", "call", "text"),
    [
        (
            "safetensors.numpy",
            lambda folder: covfree.save_message(MESSAGE, folder / "message.safetensors"),
            r"safetensors is needed for this: pip install 'covfree\[safetensors\]'",
        ),
        (
            "sklearn.datasets",
            lambda folder: load_digits(),
            r"sklearn is needed for this: pip install 'covfree\[cli\]'",
        ),
        (
            "optax",
            lambda folder: importlib.reload(finetune),
            r"optax is needed for this: pip install 'covfree\[finetune\]'",
        ),
        (
            "optax",
            lambda folder: minimise(jnp.sum, jnp.ones(1), 1),
            r"optax is needed for this: pip install 'covfree\[finetune\]'",
        ),
        (
            "flax",
            lambda folder: backbones.backbone("squeezenet1_1").module,
            r"flax is needed for this: pip install 'covfree\[backbones\]'",
        ),
        (
            "chex",
            lambda folder: check_transform(covfree.count_noise("laplace", 1.0)),
            r"chex is needed for this: pip install 'covfree\[testing\]'",
        ),
        (
            "hypothesis",
            lambda folder: check_estimator(lambda rows, num_classes: jnp.eye(5)),
            r"hypothesis is needed for this: pip install 'covfree\[testing\]'",
        ),
    ],
    ids=["safetensors", "scikit-learn", "optax", "L-BFGS", "Flax", "chex", "hypothesis"],
)
def test_the_error_names_the_extra(monkeypatch, tmp_path, module, call, text):
    # None in sys.modules is how Python marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=text):
        call(tmp_path)
