"""Prompts on a vision transformer: what they leave alone, and what trains them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.tree_util import Partial

import covfree.finetune as ft
from covfree.backbones import Preprocessing, Spec, backbone
from covfree.rounds import run
from covfree.testing import check_algorithm

KEY = jax.random.key(0)
LEVELS = Preprocessing(6, 6, "bilinear", (0.0,) * 3, (1.0,) * 3)
SIZE = {"patch": 3, "size": 6, "dim": 8, "depth": 2, "heads": 2}


def tiny(name, **size):
    return backbone(Spec(name, 8, LEVELS, 0, ("timm",), "these tests", "vit", SIZE | size, any_size=False))


TINY = tiny("tiny")
POOL, TOP = 5, 3
SCORES = jax.jit(lambda model, images: model(images))


@pytest.fixture(scope="module")
def params():
    # Norms and biases away from 1 and 0, so that nothing cancels.
    drawn = TINY.init(KEY)
    leaves, tree = jax.tree.flatten(drawn)
    keys = jax.random.split(KEY, len(leaves))
    return tree.unflatten(
        [x + 0.2 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 30)
    images = rng.normal(size=(30, 6, 6, 3)) + labels[:, None, None, None]
    return images.astype(np.float32), labels


def prompted(params, number=POOL, top=TOP):
    head = ft.random_head(8, 3, key=KEY)
    return ft.prompt_model(TINY, params, head, ft.random_prompts(TINY, number, key=KEY), top=top)


@jax.jit
def applied(params, images, prompts=None, kept=None):
    return TINY.apply(params, images, prompts=prompts, kept=kept)


@pytest.mark.slow
def test_no_prompts_are_no_prompts_and_padding_is_not_seen(params, data):
    images = jnp.asarray(data[0][:4])
    plain = applied(params, images)
    none = jnp.zeros((4, 0, 8))
    np.testing.assert_allclose(applied(params, images, none), plain, rtol=1e-5, atol=1e-6)
    prompts = jax.random.normal(KEY, (4, 5, 8))
    here = jnp.array([True, False, True, True, False])
    kept = jnp.broadcast_to(here, (4, 5))
    some = applied(params, images, prompts[:, here])
    assert np.abs(some - plain).max() > 0.05
    padded = applied(params, images, jnp.where(here[None, :, None], prompts, 1e4), kept)
    np.testing.assert_allclose(padded, some, rtol=1e-4, atol=1e-5)
    # All of them padding.
    np.testing.assert_allclose(applied(params, images, prompts, kept & False), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_features_against_a_transformer_in_numpy(params, data):
    """Written from the architecture, in float64: prompts come after the class token, without positions."""
    tree = jax.tree.map(lambda x: np.asarray(x, float), params)["params"]
    image, prompts = np.asarray(data[0][0], float), np.random.default_rng(1).normal(size=(2, 8))

    def dense(name, x):
        return x @ tree[name]["kernel"] + tree[name]["bias"]

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-6) * tree[name]["scale"]
            + tree[name]["bias"]
        )

    patches = [image[i : i + 3, j : j + 3].ravel() for i in (0, 3) for j in (0, 3)]
    kernel = tree["patch_embed.proj"]["kernel"].reshape(27, 8)
    tokens = np.array(patches) @ kernel + tree["patch_embed.proj"]["bias"]
    x = np.concatenate([tree["cls_token"][0], tokens]) + tree["pos_embed"][0]
    x = np.concatenate([x[:1], prompts, x[1:]])
    for block in ("blocks.0", "blocks.1"):
        query, key, value = np.split(dense(f"{block}.attn.qkv", norm(f"{block}.norm1", x)), 3, axis=1)
        out = []
        for h in (slice(0, 4), slice(4, 8)):
            weights = np.exp(query[:, h] @ key[:, h].T / 2)
            out.append(weights / weights.sum(1, keepdims=True) @ value[:, h])
        x = x + dense(f"{block}.attn.proj", np.concatenate(out, axis=1))
        hidden = dense(f"{block}.mlp.fc1", norm(f"{block}.norm2", x))
        x = x + dense(f"{block}.mlp.fc2", np.asarray(nn.gelu(hidden, approximate=False)))
    expected = norm("norm", x[0])
    got = applied(params, jnp.asarray(image[None], jnp.float32), jnp.asarray(prompts[None], jnp.float32))[0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_each_image_reads_the_prompts_nearest_to_its_feature(params, data):
    images = jnp.asarray(data[0][:6])
    model = prompted(params)
    query, prompts = np.asarray(applied(params, images)), np.asarray(model.trained["prompts"])
    cosine = query @ prompts.T / np.linalg.norm(query, axis=1)[:, None] / np.linalg.norm(prompts, axis=1)
    chosen = np.argsort(-cosine, axis=1)[:, :TOP]
    features = applied(params, images, jnp.asarray(prompts[chosen]))
    scores = SCORES(model, images)
    np.testing.assert_allclose(scores, model.trained["head"](features), rtol=1e-4, atol=1e-5)
    # What it reads does not depend on the others.
    others = jnp.concatenate([images[:1], jnp.asarray(data[0][10:15])])
    np.testing.assert_allclose(SCORES(model, others)[:1], scores[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_training_moves_prompts_and_head_alone(params, data):
    clients = np.arange(30) % 4
    options = {"key": KEY, "rounds": 8, "participation": 3}
    model = prompted(params)
    done = run(ft.fedavg(model, 0.1), *data, clients, **options)
    assert done.history[-1]["loss"] < done.history[0]["loss"] - 0.02
    for before, after in zip(jax.tree.leaves(model.frozen), jax.tree.leaves(done.result.frozen), strict=True):
        np.testing.assert_array_equal(after, before)
    for name in ("prompts", "head"):
        moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), done.result.trained[name], model.trained[name])
        assert max(jax.tree.leaves(moved)) > 1e-4, name
    # Prompts, weights and, not in the formula, biases and a number.
    sent = sum(record["bytes_up"] + record["bytes_down"] for record in done.history)
    formula = 2 * 4 * 3 * 8 * (3 * 8 + 8 * POOL)
    assert sent == formula + 2 * 8 * 3 * 4 * (3 + 1)


@pytest.mark.slow
def test_pfpt_trains_and_counts_the_prompts_that_are_sent(params, data):
    algorithm = ft.pfpt(prompted(params), Partial(optax.adam, 0.02), most=8, sweeps=5, epochs=2)
    done = run(algorithm, *data, np.arange(30) % 4, key=KEY, rounds=8, participation=3)
    assert done.history[-1]["loss"] < done.history[0]["loss"] - 0.1
    pools = [POOL, *(record["prompts"] for record in done.history)]
    assert all(1 <= pool <= 8 for pool in pools)
    for before, record in zip(pools, done.history, strict=False):
        head = 4 * (8 * 3 + 3)
        assert record["bytes_down"] == 3 * (4 * before * 8 + head + 4)
        assert record["bytes_up"] == 3 * (4 * before * 8 + head + 4 + 4 * 8)
    # Training goes on without the padding: so many are sent, and the room is that of the prompts.
    again = ft.pfpt(done.result)
    assert again.params.model.trained["prompts"].shape == (3 * pools[-1], 8)
    assert np.asarray(again.params.model.frozen["kept"]).sum() == pools[-1]
    assert ft.pfpt(done.result, most=pools[-1]).params.model.trained["prompts"].shape == (pools[-1], 8)
    assert ft.fedavg(done.result).params.model.trained["prompts"].shape == (pools[-1], 8)
    # What is left of the pool is zero, and changes no score.
    model = done.result
    size = pools[-1]
    assert not np.asarray(model.trained["prompts"][size:]).any()
    assert np.asarray(model.frozen["kept"]).sum() == size
    head, prompts = model.trained["head"], model.trained["prompts"][:size]
    plain = ft.prompt_model(TINY, params, head, prompts, top=TOP)
    np.testing.assert_allclose(*(SCORES(each, data[0][:6]) for each in (plain, model)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_pfpt_that_diverges_ends_with_what_it_had(params, data):
    # Of the form of the algorithm above, so that both share compiled functions.
    algorithm = ft.pfpt(prompted(params), Partial(optax.adam, 1e30), most=8, sweeps=5, epochs=2)
    with pytest.warns(RuntimeWarning, match="pfpt: round 0: the state is not finite"):
        done = run(algorithm, *data, np.arange(30) % 4, key=KEY, rounds=2, participation=3)
    assert done.history == []
    assert np.isfinite(done.result.trained["prompts"]).all()


@pytest.mark.slow
def test_pfpt_of_a_small_type(params, data):
    """One example a client, all of one class; the prompts keep their type."""
    small = ft.random_prompts(TINY, 2, key=KEY).astype("bfloat16")
    model = ft.prompt_model(TINY, params, ft.random_head(8, 3, key=KEY), small)
    done = run(ft.pfpt(model, 0.1, sweeps=2), data[0][:3], np.zeros(3, int), np.arange(3), key=KEY, rounds=1)
    assert done.result.trained["prompts"].dtype == "bfloat16"
    assert done.history[0]["prompts"] >= 1


@pytest.mark.slow
def test_pfpt_keeps_the_laws_of_algorithms(data):
    flat, head = tiny("flat", depth=1), ft.random_head(8, 3, key=KEY)
    model = ft.prompt_model(flat, flat.init(KEY), head, ft.random_prompts(flat, POOL, key=KEY), top=TOP)
    matched = {"copies": "two clients' prompts are matched, so that there may be more than one has"}
    check_algorithm(ft.pfpt(model, 0.05, most=8, sweeps=3), *data, exclude=matched)


def test_what_does_not_fit_is_refused(params, data, untyped):
    head, prompts = ft.random_head(8, 3, key=KEY), ft.random_prompts(TINY, 2, key=KEY)
    with pytest.raises(ValueError, match=r"backbone: expected a vision transformer.*got resnet18"):
        ft.random_prompts(backbone("resnet18"), 2, key=KEY)
    with pytest.raises(ValueError, match=r"head: expected a linear head of 8 features, got \[7, 3\]"):
        ft.prompt_model(TINY, params, ft.random_head(7, 3, key=KEY), prompts)
    with pytest.raises(
        ValueError, match=r"prompts: expected \[prompts, 8\], at least one prompt, got \[2, 7\]"
    ):
        ft.prompt_model(TINY, params, head, prompts[:, :7])
    with pytest.raises(ValueError, match=r"at least one prompt, got \[0, 8\]"):
        ft.prompt_model(TINY, params, head, prompts[:0])
    for dtype in (int, bool, complex):
        with pytest.raises(TypeError, match=rf"prompts: expected floats, got {np.dtype(dtype).kind}?"):
            ft.prompt_model(TINY, params, head, np.ones((2, 8), dtype))
    with pytest.raises(ValueError, match="prompts: expected finite numbers"):
        ft.prompt_model(TINY, params, head, prompts.at[0, 0].set(jnp.nan))
    with pytest.raises(ValueError, match=r'params: expected a dict with "params"'):
        ft.prompt_model(TINY, params["params"], head, prompts)
    with pytest.raises(ValueError, match="top: expected an integer of at least 1, got 0"):
        ft.prompt_model(TINY, params, head, prompts, top=0)
    with pytest.raises(TypeError, match=r"model: expected one with prompts, from .*prompt_model"):
        ft.pfpt(ft.linear_model(head))
    with pytest.raises(ValueError, match="most: expected at least 2, the prompts of the model, got 1"):
        ft.pfpt(ft.prompt_model(TINY, params, head, prompts), most=1)
    images = data[0][:2]
    with pytest.raises(ValueError, match=r"prompts: expected \[2, prompts, 8\], got \[1, 2, 8\]"):
        TINY.apply(params, images, prompts=prompts[None])
    with pytest.raises(ValueError, match=r"kept: expected \[2, 2\], got \[2, 3\]"):
        TINY.apply(params, images, prompts=jnp.stack([prompts] * 2), kept=jnp.ones((2, 3), bool))
    with pytest.raises(ValueError, match="prompts: expected None, as resnet18 is no vision transformer"):
        backbone("resnet18").apply({}, images, prompts=jnp.stack([prompts] * 2))
