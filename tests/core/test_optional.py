"""Without an optional dependency the error says what to install."""

import importlib
import sys

import jax.numpy as jnp
import pytest

import covfree
from covfree import backbones, finetune
from covfree.data import load_digits
from covfree.heads.lbfgs import minimise

MESSAGE = covfree.Message(covfree.Rows(jnp.ones((1, 2)), jnp.ones(1), jnp.zeros(1, int)))


@pytest.mark.parametrize(
    ("module", "call", "text"),
    [
        (
            "safetensors.numpy",
            lambda folder: covfree.save_message(MESSAGE, folder / "message.safetensors"),
            r"safetensors is needed for this: pip install '\.\[safetensors\]'",
        ),
        (
            "sklearn.datasets",
            lambda folder: load_digits(),
            r"sklearn is needed for this: pip install '\.\[cli\]'",
        ),
        (
            "optax",
            lambda folder: importlib.reload(finetune),
            r"optax is needed for this: pip install '\.\[finetune\]'",
        ),
        (
            "optax",
            lambda folder: minimise(jnp.sum, jnp.ones(1), 1),
            r"optax is needed for this: pip install '\.\[finetune\]'",
        ),
        (
            "flax",
            lambda folder: backbones.backbone("squeezenet1_1").module,
            r"flax is needed for this: pip install '\.\[backbones\]'",
        ),
    ],
    ids=["safetensors", "scikit-learn", "optax", "L-BFGS", "Flax"],
)
def test_the_error_names_the_extra(monkeypatch, tmp_path, module, call, text):
    # None in sys.modules is how Python marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=text):
        call(tmp_path)
