"""What every backbone promises: pure functions of parameters, in both modes and both data types."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from backbones import seeded
from precision import relative_error
from variants import slow

from covfree.backbones import BACKBONES, Backbone, backbone
from covfree.backbones.layers import Dropout
from covfree.backbones.weights import tensor_shapes

SIZE = 40
# Of the architectures whose published sizes take long to compile, with all that they are made of.
SMALL = {
    "resnet": replace(
        BACKBONES["resnet18"], name="resnet", settings={"blocks": (1, 1, 1, 1), "bottleneck": False}
    ),
    "lite": replace(
        BACKBONES["efficientnet_lite0"],
        name="lite",
        settings={"kind": "lite", "width": 0.25, "depth": 0.3},
    ),
    # All twelve layers are alike.
    "vit": replace(
        BACKBONES["vit_b_32"], name="vit", settings={**BACKBONES["vit_b_32"].settings, "depth": 2}
    ),
}


def drawn(chosen: Backbone, scale: float = 1.0):
    """Parameters by name; those of another client are scaled."""
    tensors = seeded.tensors(tensor_shapes(chosen.shapes), chosen.name)
    return chosen.from_tensors({name: np.float32(scale) * value for name, value in tensors.items()})


APPLIES = {}


def applied(chosen: Backbone):
    """Its compiled ``apply``: one for all tests."""
    key = (chosen.name, str(chosen.dtype))
    return APPLIES.setdefault(key, jax.jit(chosen.apply, static_argnames="train"))


@cache
def trained(chosen: Backbone):
    """Its compiled gradients in training mode and the features beside them."""

    def loss(params, images, key):
        features = chosen.apply(params, images, train=True, key=key)
        return jnp.square(features).mean(), features

    return jax.jit(jax.grad(loss, has_aux=True))


@pytest.fixture(scope="module", autouse=True)
def table():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covfree.backbones.extractor.BACKBONES", {**BACKBONES, **SMALL})
        yield


@pytest.fixture(scope="module")
def resnet():
    chosen = backbone("resnet")
    return chosen, drawn(chosen)


@pytest.fixture(scope="module")
def lite():
    chosen = backbone("lite")
    return chosen, drawn(chosen)


@pytest.fixture(scope="module")
def images():
    return jnp.asarray(seeded.images(SIZE))


def test_table():
    sizes = {"squeezenet1_1": 512, "resnet18": 512, "resnet50": 2048, "vit_b_16": 768, "vit_b_32": 768}
    inputs = {f"efficientnet_lite{i}": size for i, size in enumerate((224, 240, 260, 280, 300))}
    assert len(BACKBONES) == 12
    for name, spec in BACKBONES.items():
        assert backbone(name).num_features == spec.num_features == sizes.get(name, 1280)
        assert spec.input_size == inputs.get(name, 224)
        assert spec.preprocessing.resize == spec.input_size + 32


@pytest.mark.slow
def test_every_client_its_own_weights(resnet, images):
    chosen, params = resnet
    other = drawn(chosen, 0.9)
    clients = jax.tree.map(lambda *leaves: np.stack(leaves), params, other)
    batches = jnp.stack([images, images[::-1]])
    together = jax.jit(jax.vmap(chosen.apply))(clients, batches)
    apply = applied(chosen)
    alone = [apply(params, batches[0]), apply(other, batches[1])]
    assert relative_error(together, np.stack(alone)) < 1e-4
    assert relative_error(together[0, 0], together[1, 1]) > 1e-3  # the weights matter


@pytest.mark.parametrize("name", ["resnet", *slow("lite")])
def test_batch_independence(request, images, name):
    chosen, params = request.getfixturevalue(name)
    apply = applied(chosen)
    others = images.at[1].set(3 * images[1] + 1)
    before, after = apply(params, images), apply(params, others)
    np.testing.assert_array_equal(before[0], after[0])
    assert relative_error(after[1], before[1]) > 1e-3
    training = apply(params, images, train=True), apply(params, others, train=True)
    assert relative_error(training[1][0], training[0][0]) > 1e-3


@pytest.mark.parametrize("name", ["resnet", *slow("lite")])
def test_gradients(request, images, name):
    chosen, params = request.getfixturevalue(name)
    gradients = jax.device_get(trained(chosen)(params, images, jax.random.key(0))[0])
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(gradient).all(), path
    nonzero = [bool(np.any(x)) for x in jax.tree.leaves(gradients["params"])]
    # The classifier gives no features; a branch that was dropped has none either.
    assert np.mean(nonzero) > 0.8
    assert not any(np.any(x) for x in jax.tree.leaves(gradients["batch_stats"]))


@pytest.mark.slow
def test_dropout_needs_a_key_whatever_the_norms_do(lite, images):
    chosen, params = lite
    apply = applied(chosen)
    keys = jax.random.split(jax.random.key(1))
    inference = apply(params, images)
    frozen = np.asarray(apply(params, images, key=keys[0]))
    assert abs((frozen == 0).mean() - (inference == 0).mean() - 0.2 * (inference != 0).mean()) < 0.05
    first, second = (np.asarray(trained(chosen)(params, images, key)[1]) for key in keys)
    plain = np.asarray(apply(params, images, train=True))
    assert relative_error(first, second) > 0.1
    # A fifth of 2,560 features is dropped; 6 standard deviations are 0.047. Without a key, none is.
    assert abs((first == 0).mean() - (plain == 0).mean() - 0.2 * (plain != 0).mean()) < 0.05


@pytest.mark.parametrize("whole", [False, True])
def test_dropout_keeps_the_mean(whole):
    x = jnp.ones((4000, 2, 3))
    dropped = Dropout(0.3, whole=whole).apply({}, x, rngs={"dropout": jax.random.key(2)})
    kept = np.asarray(dropped) > 0
    np.testing.assert_allclose(dropped[kept], 1 / 0.7, rtol=1e-6)
    # 6 standard deviations of the share of 4,000 that is kept.
    assert abs(kept.mean() - 0.7) < 0.044
    assert (kept.all((1, 2)) | ~kept.any((1, 2))).all() == whole


def test_statistics_are_updated(lite, images):
    chosen, params = lite
    features, updated = jax.jit(chosen.apply_and_update)(params, images)
    before, after = params["batch_stats"]["bn1"], updated["batch_stats"]["bn1"]
    stem = jax.lax.conv_general_dilated(
        images,
        params["params"]["conv_stem"]["kernel"],
        (2, 2),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    stem = np.asarray(stem, np.float64).reshape(-1, 32)
    np.testing.assert_allclose(after["mean"], 0.99 * before["mean"] + 0.01 * stem.mean(0), atol=1e-5)
    np.testing.assert_allclose(after["var"], 0.99 * before["var"] + 0.01 * stem.var(0), atol=1e-5)
    assert features.shape == (2, 1280)


@pytest.mark.parametrize("name", ["lite", *slow("vit")])
def test_bfloat16_and_one_operation_at_a_time(name):
    exact, fast = (backbone(name, dtype=dtype) for dtype in (jnp.float32, jnp.bfloat16))
    params = drawn(exact)
    images = seeded.images(SIZE if exact.spec.any_size else exact.spec.input_size)
    features, wanted = jax.jit(fast.apply)(params, images), applied(exact)(params, images)
    assert features.dtype == jnp.bfloat16
    # Eight bits are 4e-3 a number.
    assert 1e-5 < relative_error(features, wanted) < 5e-2
    if name == "vit":
        one_by_one, same = exact.apply_and_update(params, images)
        assert same is params  # without batch norms there is nothing to update
        assert relative_error(wanted, one_by_one) < 1e-5


@pytest.mark.slow
def test_init(images):
    chosen = backbone("resnet")
    params = chosen.init(jax.random.key(0))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), chosen.shapes
    )
    features = applied(chosen)(params, images)
    assert np.isfinite(features).all()
    assert np.asarray(features).std() > 0


def test_errors(resnet, images, untyped):
    chosen, params = resnet
    with pytest.raises(ValueError, match=r"name: expected one of squeezenet1_1, .*, got 'resnet19'"):
        backbone("resnet19")
    with pytest.raises(ValueError, match=r"dtype: expected one of \('float32', 'bfloat16'\), got 'float16'"):
        backbone("resnet18", dtype="float16")
    with pytest.raises(
        ValueError, match=r"images: expected \[batch, height, width, 3\] for resnet, got \[40, 40, 3\]"
    ):
        chosen.apply(params, images[0])
    with pytest.raises(
        ValueError, match=r"images: expected \[batch, 224, 224, 3\] for vit_b_16, got \[2, 40, 40, 3\]"
    ):
        backbone("vit_b_16").apply({}, images)


def test_words_of_a_name_are_joined_by_either_dash():
    assert backbone("efficientnet-lite0") == backbone("efficientnet_lite0")
