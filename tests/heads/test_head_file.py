"""Heads in files: every kind bit for bit, used by NumPy alone, and files that are something else."""

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import PRECISIONS

import covfree
import covfree.finetune as ft
from covfree.heads import EnsembleHead, MappedHead
from covfree.heads.file import SavedHead
from covfree.statistics.buckets import bucket_features
from covfree.statistics.deep_features import DeepFeatures
from covfree.statistics.feature_maps import Adapter, FourierFeatures

DIM, CLASSES, WIDE = 5, 3, 8
NAMES = ("cat", "köttur", "chat noir")
ORIGIN = {"dataset": "köt", "seed": 3}
X64 = PRECISIONS["float64"].context


def linear(dim=DIM, dtype=np.float32):
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(dim, CLASSES)), rng.normal(size=CLASSES)
    weight[:, 1], bias[1] = 0, 0
    present = np.array([1, 0, 1])
    return covfree.LinearHead(*(jnp.asarray(part, dtype) for part in (weight, bias, present)))


def gaussian(full):
    rng = np.random.default_rng(1)
    factor = np.tril(rng.normal(size=(CLASSES, DIM, DIM))) + 3 * np.eye(DIM)
    root = factor if full else np.exp(rng.normal(size=(CLASSES, DIM)))
    mean, bias = rng.normal(size=(CLASSES, DIM)), rng.normal(size=CLASSES)
    return covfree.GaussianHead(*(jnp.asarray(part, jnp.float32) for part in (mean, root, bias)))


def student():
    """Two parts of class 0 and one of class 2; class 1 is absent."""
    rng = np.random.default_rng(4)
    parts, label = 0.4 * rng.normal(size=(3, DIM)), np.array([0, 0, 2], np.int32)
    mean = rng.normal(size=(CLASSES, DIM))
    arrays = {
        "root": np.tril(rng.normal(size=(DIM, DIM))) + 3 * np.eye(DIM),
        **{"centre": rng.normal(size=DIM), "mean": mean, "parts": parts},
        "offset": (parts * mean[label]).sum(1),
        **{name: 0.5 + rng.random(CLASSES) for name in ("scale", "degrees", "log_prior", "bias")},
        "present": np.array([1, 0, 1]),
    }
    return covfree.StudentHead(
        **{name: jnp.asarray(part, jnp.float32) for name, part in arrays.items()}, label=jnp.asarray(label)
    )


def ensemble():
    """Client 0 has classes 0 and 2, client 1 class 2; class 1 is absent, and a column is padding."""
    rng = np.random.default_rng(6)
    weight, bias = rng.normal(size=(4, DIM)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    client, label = np.array([0, 0, 1, 4], np.int32), np.array([0, 2, 2, -1], np.int32)
    share = np.log(np.array([0.3, 0.3, 0.7, 1], np.float32))
    return EnsembleHead(*map(jnp.asarray, (weight, bias, client, label, share, np.float32([1, 0, 1]))))


def with_term(head):
    return covfree.CorrectedHead(head, replace(linear(), present=None), jnp.float32(0.3))


def adapter():
    rng = np.random.default_rng(2)
    return Adapter(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((DIM, 2), (2, DIM))))


def fourier(sigma=0.7, seed=5):
    return MappedHead(FourierFeatures(sigma, seed, WIDE, unit=True), linear(WIDE))


def buckets():
    thresholds = np.random.default_rng(3).normal(size=(DIM, 3)).astype(np.float32)
    return MappedHead(bucket_features(thresholds, 2, seed=4), linear(32))


def deep():
    layers = 0.5 * np.random.default_rng(5).normal(size=(2, 6, WIDE)).astype(np.float32)
    return MappedHead(DeepFeatures(tuple(jnp.asarray(layers)), 3, WIDE, 6), linear(WIDE))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tower:
    """A model of one's own."""

    layers: tuple
    scale: float
    name: str = field(default="tower", metadata={"static": True})

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(x @ layer["w"])
        return self.scale * x


HEADS = {
    "buckets": buckets(),
    "deep": deep(),
    "linear": linear(),
    "no-marks": replace(linear(), present=None),
    "half": linear(dtype=np.float16),
    "gaussian": gaussian(full=True),
    "diagonal": gaussian(full=False),
    "student": student(),
    "corrected": with_term(student()),
    "ensemble": ensemble(),
    "corrected-map": MappedHead(adapter(), with_term(gaussian(full=True))),
    "fourier": fourier(),
    "relu": MappedHead(covfree.relu_features(WIDE, seed=6), linear(WIDE)),
    "adapter": MappedHead(adapter(), linear()),
}


def numpy_scores(file, x):
    """Scores by NumPy in float64, from the file alone, as docs/how-to.md says for linear heads."""
    x = x.astype(np.float64)
    kind = str(file["map"]) if "map" in file else None
    if kind == "fourier":
        x = x / np.linalg.norm(x, axis=1, keepdims=True) if file["map_unit"] else x
        x = np.cos(x @ file["map_directions"] / file["map_sigma"] + file["map_phases"])
    elif kind == "relu":
        x = np.maximum(x @ file["map_directions"], 0)
    elif kind == "adapter":
        x = x + np.maximum(x @ file["map_down"], 0) @ file["map_up"]
    elif kind == "buckets":
        group = int(file["map_group_size"])
        bits = (x[:, :, None] > file["map_thresholds"]).reshape(len(x), -1)[:, file["map_order"]]
        bits = np.pad(bits, [(0, 0), (0, -bits.shape[1] % group)]).reshape(len(x), -1, group)
        x = np.eye(2**group)[bits @ 2 ** np.arange(group)].reshape(len(x), -1)
    elif kind == "deep":
        x = x / np.linalg.norm(x, axis=1, keepdims=True) * np.sqrt(x.shape[1])
        x = np.tanh(x @ file["map_input"][:-1] + file["map_input"][-1])
        for random, layer in zip(file["map_random"].astype(np.float64), file["map_layers"], strict=True):
            inner = x @ random[:-1] + random[-1]
            x = x + 0.5 * inner * (1 + np.vectorize(math.erf)(inner / 2**0.5)) @ layer
    if kind in ("fourier", "relu"):
        x = x * np.sqrt(2 / file["map_num_features"])
    if file["kind"] == "linear":
        scores = x @ file["weight"].astype(np.float64) + file["bias"]
    elif file["kind"] == "ensemble":
        powers = np.zeros((len(x), len(file["present"])))
        for client in {*file["client"]} - {len(file["client"])}:
            own = file["client"] == client
            columns = np.exp(x @ file["weight"][own].T + file["bias"][own])
            columns *= np.exp(file["log_share"][own]) / columns.sum(1, keepdims=True)
            np.add.at(powers.T, file["label"][own], columns.T)
        scores = np.log(np.where(file["present"] > 0, powers, 1))
    elif file["kind"] == "student":
        white = np.linalg.solve(file["root"].astype(np.float64), (x - file["centre"]).T).T
        away = np.square(white[:, None] - file["mean"]).sum(2)
        np.subtract.at(away.T, file["label"], np.square(white @ file["parts"].T - file["offset"]).T)
        scores = file["log_prior"] + file["bias"] - file["degrees"] * np.log1p(file["scale"] * away)
    else:
        scores = np.empty((len(x), len(file["bias"])))
        for c, (mean, root) in enumerate(zip(file["mean"], file["root"], strict=True)):
            root = np.diag(root) if root.ndim == 1 else root
            scores[:, c] = file["bias"][c] - 0.5 * np.square(np.linalg.solve(root, (x - mean).T)).sum(0)
    if "linear_scale" in file:
        scores = file["linear_scale"] * scores + x @ file["linear_weight"] + file["linear_bias"]
    if "present" in file:
        scores[:, file["present"] == 0] = -np.inf
    return scores


def assert_loaded(path, head):
    """The file has the head bit for bit, and all that it was saved with."""
    loaded, *about = covfree.load_head(path)
    assert about == [NAMES, DIM, CLASSES, ORIGIN]
    assert jax.tree.structure(loaded) == jax.tree.structure(head)
    for ours, theirs in zip(jax.tree.leaves(loaded), jax.tree.leaves(head), strict=True):
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_bit_for_bit_and_with_numpy_alone(tmp_path, kind):
    head, path = HEADS[kind], tmp_path / "head.npz"
    covfree.save_head(head, path, class_names=NAMES, dim=DIM, origin=ORIGIN)
    assert_loaded(path, head)
    features = np.random.default_rng(3).normal(size=(4, DIM)).astype(np.float32)
    with np.load(path, allow_pickle=False) as file:
        np.testing.assert_allclose(head(features), numpy_scores(file, features), rtol=2e-3, atol=2e-3)
        assert file["class_names"].tolist() == list(NAMES)
        assert (str(file["format"]), int(file["version"])) == ("covfree.Head", 1)
    assert [file.name for file in tmp_path.iterdir()] == ["head.npz"]


def test_a_mask_of_a_linear_term_that_says_nothing_more_is_left_out(tmp_path):
    head = covfree.CorrectedHead(student(), linear(), jnp.float32(0.3))
    covfree.save_head(head, tmp_path / "head.npz")
    features = np.random.default_rng(3).normal(size=(4, DIM)).astype(np.float32)
    np.testing.assert_array_equal(covfree.load_head(tmp_path / "head.npz").head(features), head(features))


@pytest.mark.parametrize("kind", ["linear", "gaussian", "fourier"])
def test_safetensors(tmp_path, kind):
    """The ending decides: a real safetensors file, of the same arrays; class names are in its metadata."""
    safetensors = pytest.importorskip("safetensors.numpy")
    head, path = HEADS[kind], tmp_path / "head.safetensors"
    covfree.save_head(head, path, class_names=NAMES, dim=DIM, origin=ORIGIN)
    assert_loaded(path, head)
    name = "mean" if kind == "gaussian" else "weight"
    expected = getattr(head.head if kind == "fourier" else head, name)
    np.testing.assert_array_equal(safetensors.load(path.read_bytes())[name], expected)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=f"{path}: expected a safetensors file of arrays"):
        covfree.load_head(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        covfree.load_head(tmp_path / "other.safetensors")


def test_float64_stays_and_bfloat16_becomes_float32(tmp_path):
    path = str(tmp_path / "head.npz")
    with X64():
        covfree.save_head(linear(dtype=np.float64), path)
        saved = covfree.load_head(path)
        assert (saved.head.weight.dtype, saved.class_names) == (np.float64, None)
    head = linear(dtype=jnp.bfloat16)
    covfree.save_head(head, path)
    np.testing.assert_array_equal(covfree.load_head(path).head.weight, head.weight.astype(np.float32))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("head", "options", "kind", "text"),
    [
        (jnp.negative, {}, TypeError, "head: expected a LinearHead, GaussianHead or StudentHead"),
        (lambda x: x, {}, TypeError, "or a callable pytree of arrays, got function; .*register_dataclass"),
        ({"weight": jnp.ones(3)}, {}, TypeError, "a callable pytree of arrays, got dict"),
        (SavedHead(linear(), None, 5, 3), {}, TypeError, "got SavedHead; pass its .head"),
        (MappedHead(jnp.negative, linear()), {}, TypeError, "head: expected a map of fourier_features"),
        (Tower(({"w": jnp.full(3, jnp.nan)},), 2.0), {}, ValueError, "head: leaf_layers/0/w: .*nan"),
        (Tower(({"w": "a"},), 2.0), {}, TypeError, "head: expected leaves .*leaf_layers/0/w: str"),
        (HEADS["relu"], {}, ValueError, "dim: expected the size of the features .*random map, got None"),
        (HEADS["linear"], {"dim": 4}, ValueError, "dim: expected 5, as the head has it, got 4"),
        (HEADS["adapter"], {"dim": 4}, ValueError, "dim: expected 5, as the head has it, got 4"),
        (
            covfree.CorrectedHead(gaussian(full=True), linear(), jnp.float32(0.3)),
            {},
            ValueError,
            "head: expected a linear term for all classes of the classifier, got one that lacks some",
        ),
        (
            MappedHead(covfree.relu_features(DIM), deep()),
            {"dim": DIM},
            ValueError,
            "head: expected one map of features at most, got a map before another",
        ),
        (HEADS["linear"], {"class_names": ["a"]}, ValueError, r"class_names: expected 3 names.*\[1\]"),
        (replace(linear(), bias=jnp.ones(2)), {}, ValueError, r"head: expected a linear head .*bias.*\[2\]"),
        (replace(linear(), bias=jnp.full(3, jnp.nan)), {}, ValueError, r"head: bias: .* nan at \(0,\)"),
        (
            covfree.LinearHead(np.full((5, 3), 1e300), np.zeros(3)),
            {},
            ValueError,
            r"head: weight: expected finite numbers, got 1e\+300 at \(0, 0\)",
        ),
        (
            MappedHead(replace(adapter(), up=jnp.full((2, DIM), jnp.nan)), linear()),
            {},
            ValueError,
            "head: map_up: .*nan",
        ),
        (MappedHead(adapter(), linear(4)), {}, ValueError, r"head: expected floats map_down \[4, rank\]"),
        (replace(HEADS["relu"], head=linear()), {"dim": 4}, ValueError, "head: map_num_features: .*got 8"),
        (fourier(sigma=jnp.nan), {"dim": 4}, ValueError, "head: map_sigma: expected finite"),
        (fourier(sigma=-1), {"dim": 4}, ValueError, "head: map_sigma: expected a number above 0, got -1"),
        (HEADS["relu"], {"dim": 0}, ValueError, "dim: expected an integer of at least 1, got 0"),
        (HEADS["relu"], {"dim": 4.0}, TypeError, "dim: expected an integer of at least 1, got 4.0"),
        (linear(0), {}, ValueError, r"head: expected a linear head .*weight.*\[0, 3\]"),
    ],
)
def test_what_cannot_be_saved(tmp_path, head, options, kind, text):
    with pytest.raises(kind, match=text):
        covfree.save_head(head, tmp_path / "head.npz", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_maps_cannot_be_saved(untyped, tmp_path):
    for kind, name in (("fourier", "sigma"), ("relu", "seed")):
        several = replace(HEADS[kind].feature_map, **{name: jnp.ones(2)})
        head = replace(HEADS[kind], feature_map=several)
        with pytest.raises(ValueError, match=rf"head: map_{name}: expected one number, got float32\[2\]"):
            covfree.save_head(head, tmp_path / "head.npz", dim=DIM)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_model_of_ones_own(tmp_path, suffix, untyped):
    """Its leaves are in the file; a model of the same structure takes them."""
    rng = np.random.default_rng(0)
    layers = tuple({"w": jnp.asarray(rng.normal(size=(3, 3)), dtype)} for dtype in ("float32", "bfloat16"))
    model, path = Tower(layers, 2.0), tmp_path / f"model{suffix}"
    covfree.save_head(model, path, class_names=["a", "b", "c"], dim=3, origin=ORIGIN)
    saved = covfree.load_head(path, network=jax.tree.map(jnp.zeros_like, model))
    assert saved[1:] == (("a", "b", "c"), 3, 3, ORIGIN)
    jax.tree.map(np.testing.assert_array_equal, saved.head, model)
    assert saved.head.layers[1]["w"].dtype == jnp.bfloat16
    x = rng.normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_array_equal(saved.head(x), model(x))
    with pytest.raises(
        ValueError, match=r"network: expected the model whose leaves the file holds.*got None"
    ):
        covfree.load_head(path)
    with pytest.raises(ValueError, match=r"leaf_layers/1/w: None in the network, \[3, 3\] in the file"):
        covfree.load_head(path, network=Tower(layers[:1], 2.0))
    trained = ft.linear_model(linear())
    covfree.save_head(trained, path)
    saved = covfree.load_head(path, network=trained)
    assert saved[1:] == (None, None, None, None)
    np.testing.assert_array_equal(saved.head(np.ones((2, DIM))), trained(np.ones((2, DIM))))


# What is changed in a good file, and what the error says beside the file's name. None takes an array out.
DAMAGED = {
    "other": ("linear", {"format": None}, "expected a head written by save_head, got arrays .*'weight'"),
    "later": ("linear", {"version": np.array(2)}, "expected a head of version 1, got version 2"),
    "kind": (
        "linear",
        {"kind": np.array("tree")},
        "kind: expected one of linear, gaussian, student, ensemble, own, got 'tree'",
    ),
    "no-bias": ("linear", {"bias": None}, "expected a linear head of floats weight .*got .*weight"),
    "extra": ("linear", {"slope": np.ones(1)}, "expected a linear head .*slope"),
    "sizes": ("linear", {"bias": np.ones(2)}, r"expected a linear head .*'bias': 'float64\[2\]'"),
    "marks": ("linear", {"present": np.ones(2)}, r"expected a linear head .*'present': 'float64\[2\]'"),
    "vector": ("linear", {"weight": np.ones(3)}, r"expected a linear head .*'weight': 'float64\[3\]'"),
    "integers": ("linear", {"bias": np.ones(3, int)}, r"expected a linear head .*'bias': 'int64\[3\]'"),
    "nan": ("linear", {"bias": np.full(3, np.nan)}, "bias: expected finite numbers"),
    "names": ("linear", {"class_names": np.array(["a"])}, "class_names: expected 3 names"),
    "numbers": ("linear", {"class_names": np.ones(3)}, "class_names: expected 3 names"),
    "root": ("gaussian", {"root": np.ones((3, 5, 4))}, "expected a gaussian head of floats mean"),
    "map": ("relu", {"map": np.array("cubic")}, "map: expected one of fourier, .*, network, got 'cubic'"),
    "map-part": ("fourier", {"map_sigma": None}, "expected arrays map_sigma of the map"),
    "map-size": ("fourier", {"map_num_features": np.array(9)}, "map_num_features: expected 8.*got 9"),
    "draws": (
        "fourier",
        {"map_directions": np.ones((DIM, WIDE))},
        "map_directions: expected the numbers that seed 5",
    ),
    "no-draws": ("fourier", {"map_directions": None}, r"map_directions: expected \[dim, …\].* got \[0\]"),
    "adapter": ("adapter", {"map_up": np.ones((2, 4))}, r"expected floats map_down \[5, rank\]"),
    "adapter-nan": ("adapter", {"map_up": np.full((2, 5), np.nan)}, "map_up: expected finite .* nan"),
    "seed": ("relu", {"map_seed": np.array("a")}, r"map_seed: expected one number, got <U1\[\]"),
    "sigma": ("fourier", {"map_sigma": np.ones(2)}, r"map_sigma: expected one number, got float64\[2\]"),
    "no-dim": ("relu", {"map_directions": np.ones((0, WIDE))}, r"map_directions: expected \[dim, …\]"),
    "group": (
        "buckets",
        {"map_group_size": np.array(0)},
        r"expected map_thresholds \[dim, buckets\] in groups of 1",
    ),
    "order": ("buckets", {"map_order": np.arange(15)}, "map_order: expected the numbers that seed 4"),
    "thresholds": ("buckets", {"map_thresholds": np.ones((4, 3))}, "map_num_features: expected 32.* got 24"),
    "layers": (
        "deep",
        {"map_layers": np.ones((2, 5, 8))},
        r"expected map_layers \[layers, 6, 8\], got float64",
    ),
    "words": ("fourier", {"map_phases": np.full(WIDE, "a")}, "map_phases: expected the numbers that seed 5"),
    "large": ("linear", {"weight": np.full((5, 3), 1e300)}, r"weight: expected finite .* 1e\+300"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_is_wrong_is_named(tmp_path, case):
    kind, changes, text = DAMAGED[case]
    path = tmp_path / "my head.npz"
    covfree.save_head(HEADS[kind], path, class_names=NAMES, dim=DIM)
    with np.load(path) as file:
        arrays = {**file, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=rf"my head\.npz: {text}"):
        covfree.load_head(path)


def test_files_of_other_kinds(tmp_path):
    path = tmp_path / "head.npz"
    with pytest.raises(FileNotFoundError, match=r"head\.npz: no such file"):
        covfree.load_head(path)
    covfree.save_head(HEADS["linear"], path)
    whole = path.read_bytes()
    altered = whole.replace("Head".encode("utf-32-le"), "Heap".encode("utf-32-le"))
    for content in (b"", b"no zip", whole[: len(whole) // 2], altered):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"head\.npz: expected an \.npz file"):
            covfree.load_head(path)
    np.savez(path, format=np.array({"a": 1}, object))
    with pytest.raises(ValueError, match=r"head\.npz: expected an \.npz file of plain arrays .*allow_pickle"):
        covfree.load_head(path)


def test_an_interrupted_save_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "head.npz"
    covfree.save_head(HEADS["linear"], path)
    before = path.read_bytes()

    def full(*arguments, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        covfree.save_head(HEADS["gaussian"], path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["head.npz"]


def test_the_name_tells_the_form(tmp_path, untyped):
    for name in ("head.pt", "head"):
        with pytest.raises(
            ValueError, match=r"path: expected a file that ends in \.npz or \.safetensors, got"
        ):
            covfree.save_head(HEADS["linear"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []
