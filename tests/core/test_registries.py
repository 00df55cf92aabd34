"""Registries: what they hold is read-only, and an unknown name is an error that lists the known ones."""

import copy
import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import covfree
from covfree import finetune, methods
from covfree.core.registries import Entry, Registry


@pytest.mark.parametrize("registry", [methods.registry(), finetune.registry()], ids=["methods", "finetune"])
def test_an_unknown_name_is_an_error_that_lists_the_known(registry):
    with pytest.raises(KeyError) as error:
        registry["x"]
    assert error.value.args == (f"name: expected one of {', '.join(registry)}, got 'x'",)
    assert "x" not in registry
    assert registry.get("x") is None
    assert len(registry) == len(list(registry)) > 0
    assert all(registry[name].title for name in registry)


def test_a_registry_does_not_change(untyped):
    made = {"a": Entry("A", dict, "")}
    registry = Registry(made)
    made["b"] = Entry("B", dict, "")
    assert list(registry.items()) == [("a", Entry("A", dict, ""))]
    with pytest.raises(TypeError, match="does not support item assignment"):
        registry["b"] = made["b"]


def made():
    """All that is known by name, with its defaults, and every shrinkage rule in a method."""
    head = covfree.LinearHead(np.zeros((5, 3), np.float32), np.zeros(3, np.float32))
    model = finetune.linear_model(head)
    found: dict[Any, Any] = {("method", name): entry.make() for name, entry in methods.registry().items()}
    for name, entry in finetune.registry().items():
        found["finetune", name] = entry.make(model, *entry.head)
    for name, function in vars(covfree.estimators).items():
        if inspect.isfunction(function) and function.__annotations__.get("return") == "Shrinkage":
            number = [0.1] * sum(
                p.default is p.empty for p in inspect.signature(function).parameters.values()
            )
            found["shrinkage", name] = covfree.fedcof(shrinkage=function(*number))
    return found


def test_what_is_registered_can_be_pickled_copied_and_spawned(untyped):
    """Each copy has an equal structure, of an equal hash: compiled functions are those of the original."""
    found = made()
    assert len({kind for kind, _ in found}) == 3
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        spawned = pool.submit(copy.copy, found).result()
    for name, one in found.items():
        leaves, structure = jax.tree.flatten(one)
        for way, other in (
            ("pickled", pickle.loads(pickle.dumps(one))),
            ("copied", copy.deepcopy(one)),
            ("spawned", spawned[name]),
        ):
            same = jax.tree.structure(other)
            assert (same, hash(same)) == (structure, hash(structure)), (name, way)
            jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(other), leaves)
            if name[0] != "finetune":  # whose leaves are arrays
                assert other == one, (name, way)


def numbers():
    """What makes each entry, and the arguments that are numbers or seeds, by which a method may be swept."""
    head = covfree.LinearHead(np.zeros((5, 3), np.float32), np.zeros(3, np.float32))
    makers = {name: entry.make for name, entry in methods.registry().items()}
    for name, entry in finetune.registry().items():
        makers[name] = partial(entry.make, finetune.linear_model(head), *entry.head)
    makers["fourier_features"] = partial(covfree.fourier_features, 3)
    makers["ledoit_wolf"] = covfree.ledoit_wolf
    for name, make in makers.items():
        for parameter in inspect.signature(make).parameters.values():
            if isinstance(parameter.default, float) or parameter.name in ("shrinkage", "seed"):
                yield pytest.param(make, parameter.name, id=f"{name}-{parameter.name}")


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(("make", "name"), list(numbers()))
def test_a_batch_of_numbers_is_refused_in_words_that_name_vmap(make, name):
    batch = np.array([1, 2]) if name == "seed" else jax.numpy.array([0.1, 1.0])
    with pytest.raises(TypeError, match=rf"^{name}: expected an? \w+, got an array of shape \[2\]; .*vmap"):
        make(**{name: batch})
