"""Every law of `check_algorithm` can be broken, and says so; covfree's algorithms keep them all."""

import re
from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from variants import slow

import covfree
import covfree.finetune as ft
from covfree.rounds import Algorithm, as_algorithm
from covfree.testing import check_algorithm
from covfree.testing.algorithm import ALGORITHM_LAWS

HEAD = covfree.LinearHead(jnp.zeros((5, 3)), jnp.zeros(3))
MODEL = ft.linear_model(HEAD)
ADAPTED = ft.adapter_model(covfree.LinearHead(jnp.ones((5, 3)), jnp.zeros(3)), rank=2, key=jax.random.key(0))
OPTIONS = {"batch_size": 4}


@pytest.mark.parametrize(
    "algorithm",
    [
        # Which examples a client takes depends on its key; both optimisers have states. FedAdam and FedProx
        # are this one with other optimisers.
        ft.fedavg(MODEL, Partial(optax.sgd, 0.1, 0.9), optax.sgd(1.0, momentum=0.9), steps=3, batch_size=2),
        ft.scaffold(MODEL, **OPTIONS),
        ft.local_only(MODEL, **OPTIONS),
        as_algorithm(covfree.fedcof(1.0), num_classes=3, uploads="sums"),
        *slow(
            ft.fednova(MODEL, **OPTIONS),
            ft.oll(MODEL, **OPTIONS),
            ft.fedproto(ADAPTED, 3, 5, **OPTIONS),
            ft.fedcgs_personal(
                ADAPTED, ft.Prototypes(np.ones((3, 5), np.float32), np.ones(3, int)), **OPTIONS
            ),
            as_algorithm(covfree.fedcof(1.0), num_classes=3),
        ),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_covfrees_algorithms_keep_all_laws(algorithm):
    keyed = {"empty": "what a client remembers is the key of its first round"}
    check_algorithm(algorithm, exclude=keyed if algorithm.name == "fedcof, sums" else None)


def init(params, num_clients, key):
    return jnp.zeros(5), ()


def client(params, sent, data, memory, key):
    features, labels = data.all()
    return params * jnp.where((labels >= 0)[:, None], features, 0).sum(0), (), {}


SOUND = Algorithm(
    jnp.asarray(1.0),
    "sums of features",
    init,
    lambda params, state: state,
    client,
    lambda params, state, total: state + total,
    lambda params, state, memory: state,
    whole=True,
)
calls = 0


def drifting(params, num_clients, key):
    """Another state each time that it runs, though it is compiled once."""

    def counted():
        global calls
        calls += 1
        return np.full(5, calls, np.float32)

    return jax.pure_callback(counted, jax.ShapeDtypeStruct((5,), np.float32)), ()


def impure(params, sent, data, memory, key):
    """Another function each time that it is traced, as for another width."""
    global calls
    calls += 1
    upload, memory, metrics = client(params, sent, data, memory, key)
    return upload * calls, memory, metrics


def with_client(function):
    """The sound algorithm whose clients make something else of what they would upload."""

    def changed(params, sent, data, memory, key):
        upload, memory, metrics = client(params, sent, data, memory, key)
        return function(upload, data), memory, metrics

    return replace(SOUND, client=changed)


@jax.tree_util.register_dataclass
class Fresh(Algorithm):
    """What is copied has another function."""

    def __deepcopy__(self, memo):
        return replace(self, client=lambda *arguments: client(*arguments))


BROKEN = {
    "pytree": replace(SOUND, params=jnp.asarray(jnp.nan)),
    "empty": with_client(lambda upload, data: upload + 1),
    "padding": with_client(lambda upload, data: upload * data.index.shape[0]),
    "pure": replace(SOUND, init=drifting),
    "cutting": replace(SOUND, client=impure),
    "trace": Fresh(*(getattr(SOUND, part.name) for part in fields(SOUND))),
    "reference": replace(SOUND, server=lambda params, state, total: state - total),
    "absence": replace(SOUND, server=lambda params, state, total: state + total / jnp.abs(total).sum()),
}


def three_sums(features, labels, clients):
    return 3 * features.sum(0)


def test_the_sound_one_is_sound():
    check_algorithm(SOUND, reference=three_sums)


NEAREST = as_algorithm(covfree.fedncm(), num_classes=3)


def negative(params, state, memory):
    head = NEAREST.result(params, state, memory)
    return None if head is None else replace(head, weight=-head.weight)


def remembering(change):
    def answer(params, sent, data, memory, key):
        upload, _, metrics = client(params, sent, data, memory, key)
        return upload, change(memory, data), metrics

    return replace(SOUND, init=lambda *_: (jnp.zeros(5), jnp.zeros(())), client=answer)


# Servers that train wrongly are in tests/testing/test_planted.py.
@pytest.mark.parametrize(
    ("law", "algorithm"),
    [
        ("learns", replace(NEAREST, result=negative)),
        ("empty", remembering(lambda memory, data: memory + 1)),
        # Right from a memory of 0.
        ("empty", remembering(lambda memory, data: 0.9 * memory + (data.index >= 0).sum())),
    ],
)
def test_what_trains_or_remembers_wrongly_is_caught(law, algorithm):
    others = {other.__name__: "another test's" for other in ALGORITHM_LAWS if other.__name__ != law}
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law {law!r}")):
        check_algorithm(algorithm, exclude=others)


@pytest.mark.parametrize("law", list(BROKEN))
def test_what_breaks_a_law_is_caught(law):
    others = {other.__name__: "not the law in question" for other in ALGORITHM_LAWS if other.__name__ != law}
    with pytest.raises(AssertionError, match=re.escape(f"'sums of features' breaks the law {law!r}")):
        check_algorithm(BROKEN[law], exclude=others, reference=three_sums)


@pytest.mark.usefixtures("untyped")
def test_only_algorithms_are_checked():
    with pytest.raises(TypeError, match="got fedavg, which makes one: call it"):
        check_algorithm(covfree.finetune.fedavg)
