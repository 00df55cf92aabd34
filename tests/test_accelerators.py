"""Everything lowers for CUDA, ROCm and TPU, without calls to the host: what a CPU can tell about them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from tiny_networks import KIN

import covfree
from covfree import finetune
from covfree.backbones import BACKBONES, backbone
from covfree.finetune.registry import registry as algorithms
from covfree.methods import registry
from covfree.rounds import ClientData

pytestmark = pytest.mark.slow

PLATFORMS = ("cuda", "rocm", "tpu")
rng = np.random.default_rng(0)
LABELS, CLIENTS = rng.integers(0, 3, 60), rng.integers(0, 6, 60)
# Methods that factorise one class or client after another: docs/scale.md says which kinds.
QUADRATIC = {"qda", "qda-means", "fedcof-student", "fedcof-residuals-student"}
LOOPED = QUADRATIC | {"ccvr", "fishermix", "proto-hyper"} | {"fedcof-residuals", "fedran"}
FEATURES = jax.ShapeDtypeStruct((2, 60, 5), jnp.float32)


def lowered(function, *arguments):
    """The lowered text, in which nothing may call the host or a CPU's LAPACK."""
    text = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments).mlir_module()
    calls = set(re.findall(r"custom_call @([\w.]+)\(", text))
    assert not [name for name in calls if "callback" in name or "lapack" in name]
    return text


def scores_of(name):
    """A method's head for the examples that it scores."""
    method = registry()[name].make()

    def scores(features, key):
        return covfree.fit(method, features, LABELS, CLIENTS, num_classes=3, key=key)(features)

    return scores


@pytest.mark.parametrize("name", registry())
def test_a_method_of_several_federations_is_one_batched_factorisation(name):
    text = lowered(jax.vmap(scores_of(name), (0, None)), FEATURES, jax.random.key(0))
    factorised = re.findall(r"custom_call @cusolver_\w+\(.*?: \(tensor<([\dx]+)xf32>", text)
    # The matrix of counts, which lanes share, has no axis of lanes.
    assert {shape for shape in factorised if not shape.startswith("2x")} <= {"256x256"}
    assert factorised or name in ("fedncm", "naive-bayes", "fedpft", "ensemble")


def in_loops(module):
    """The shapes of matrices that a lowered program factorises one after another, in loops."""
    functions = {each.name.value: each for each in module.body if each.operation.name == "func.func"}
    found = set()

    def walk(operation, looped):
        for each in (each for region in operation.regions for block in region for each in block):
            kind = each.operation.name
            if kind == "func.call":
                walk(functions[each.attributes["callee"].value], looped)
            elif looped and "custom_call" in kind and "cusolver" in str(each.attributes["call_target_name"]):
                found.add(str(each.operands[0].type))
            walk(each.operation, looped or kind == "stablehlo.while")

    walk(functions["main"], False)
    return found


@pytest.mark.parametrize("name", registry())
def test_factorisations_are_in_loops_where_all_at_once_would_need_too_much_memory(name):
    traced = jax.jit(scores_of(name)).trace(jax.ShapeDtypeStruct((60, 5), jnp.float32), jax.random.key(0))
    looped = in_loops(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    assert bool(looped) == (name in LOOPED), looped


def test_rounds_of_every_algorithm():
    model = finetune.linear_model(covfree.LinearHead(jnp.zeros((5, 3)), jnp.zeros(3)))
    labels = jnp.asarray(LABELS.reshape(4, 15))
    for entry in algorithms().values():

        def one_round(features, algorithm, key):
            state, memory = algorithm.init(algorithm.params, 4, key)
            sent = algorithm.broadcast(algorithm.params, state)

            def client(features, labels, number):
                own = ClientData.own(features, labels, number)
                return algorithm.client(algorithm.params, sent, own, memory, key)[0]

            uploads = jax.vmap(client)(features, labels, jnp.arange(4))
            total = jax.tree.map(lambda upload: upload.sum(0), uploads)
            return algorithm.server(algorithm.params, state, total)

        algorithm = entry.make(model, entry.head.client, entry.head.server, epochs=1)
        features = jax.ShapeDtypeStruct((4, 15, 5), jnp.float32)
        assert "while" in lowered(one_round, features, algorithm, jax.random.key(0))


# Others have the same layers, in other numbers and widths.
@pytest.mark.parametrize("name", sorted(set(BACKBONES) - KIN))
def test_backbones(name):
    network = backbone(name)
    side = network.spec.input_size
    params = jax.eval_shape(network.init, jax.random.key(0))
    text = lowered(network.apply, params, jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32))
    # Each platform's own kernels, not the products that stand in for them on CPUs.
    assert "stablehlo.convolution" in text
