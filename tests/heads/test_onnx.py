"""Heads in ONNX, alone and behind a network, give covfree's scores; linear ones fit torch.nn.Linear."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages import programs
from safetensors.numpy import load_file

import covfree
from covfree import head_to_onnx
from covfree.cli.app import run

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
LABELS = RNG.choice([0, 1, 3], 90)
FEATURES = (RNG.normal(size=(90, 5)) + 2 * np.eye(4, 5)[LABELS]).astype(np.float32)
FIRST = covfree.fit(covfree.fedcof(0.1), FEATURES, LABELS, np.arange(90) % 9, num_classes=4)
MEAN = jnp.asarray(RNG.normal(size=(4, 5)), jnp.float32)
ROOT = jnp.asarray(np.tril(RNG.normal(size=(4, 5, 5)), -1) + 2 * np.eye(5), jnp.float32)
BIAS, PRESENT = jnp.asarray(RNG.normal(size=4), jnp.float32), jnp.array([1.0, 1.0, 0.0, 1.0])
GAUSSIAN = covfree.GaussianHead(MEAN, ROOT, BIAS, PRESENT)
LOWER, LABEL = (
    jnp.asarray(np.tril(RNG.normal(size=(5, 5)), -1) + np.eye(5), jnp.float32),
    jnp.array([0, 0, 1, 3]),
)
STUDENT = covfree.StudentHead(
    LOWER, MEAN[0], MEAN, 0.2 * MEAN, MEAN[:, 1], LABEL, abs(BIAS), 3 + abs(BIAS), BIAS, -BIAS, PRESENT
)
TERM = covfree.LinearHead(MEAN.T, BIAS)
HEADS = {
    "linear": FIRST,
    "gaussian": GAUSSIAN,
    "diagonal": covfree.GaussianHead(MEAN, jnp.abs(MEAN) + 0.5, BIAS),
    "student": STUDENT,
    "corrected": covfree.CorrectedHead(STUDENT, TERM, jnp.float32(0.7)),
}


def scores_of(path, given):
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: given})[0]


def test_every_kind_has_covfrees_scores(tmp_path, capsys):
    names = ["ant", "bee", "köttur", "dog"]
    for kind, head in HEADS.items():
        covfree.save_head(head, tmp_path / "head.npz", class_names=names)
        assert run(["export", "--head", f"{tmp_path}/head.npz", "--out", f"{tmp_path}/head.onnx"]) == 0
        assert "scores of onnxruntime and covfree differ by at most" in capsys.readouterr().err
        expected = np.asarray(jax.jit(head)(FEATURES))
        for count in (1, 90):
            found = scores_of(tmp_path / "head.onnx", FEATURES[:count])
            np.testing.assert_allclose(found, expected[:count], rtol=1e-4, atol=1e-4, err_msg=kind)
        (entry,) = onnx.load(tmp_path / "head.onnx").metadata_props
        assert entry.value == '["ant", "bee", "köttur", "dog"]'


def test_the_program_of_the_page_runs_an_exported_head(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    np.savez("photos.npz", features=FEATURES.astype(np.float64))
    (tmp_path / "head.onnx").write_bytes(head_to_onnx(FIRST).SerializeToString())
    found = {}
    exec(programs("docs/from-pytorch.md")[2], found)
    np.testing.assert_allclose(found["scores"], FIRST(FEATURES), rtol=1e-4, atol=1e-4)


def test_the_gaussian_graph_follows_its_formula():
    x = FEATURES[:4].astype(np.float64)
    white = [np.linalg.solve(np.float64(r), (x - np.float64(m)).T) for r, m in zip(ROOT, MEAN, strict=True)]
    expected = np.stack([b - 0.5 * (w**2).sum(0) for b, w in zip(BIAS, white, strict=True)], 1)
    expected[:, 2] = -np.inf
    found = scores_of(head_to_onnx(GAUSSIAN).SerializeToString(), FEATURES[:4])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_behind_a_network(tmp_path, capsys):
    h, kind = onnx.helper, onnx.TensorProto.FLOAT
    kernel = RNG.normal(size=(5, 3, 3, 3)).astype(np.float32)
    nodes = [
        h.make_node("Conv", ["pixels", "kernel"], ["maps"]),
        h.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
        h.make_node("Flatten", ["pooled"], ["features"]),
        h.make_node("Softmax", ["features"], ["shares"]),
    ]
    graph = h.make_graph(
        nodes,
        "network",
        [h.make_tensor_value_info("pixels", kind, ["batch", 3, 8, 8])],
        [h.make_tensor_value_info("shares", kind, ["batch", 5])],
        [onnx.numpy_helper.from_array(kernel, "kernel")],
    )
    onnx.save(
        h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), tmp_path / "net.onnx"
    )
    covfree.save_head(FIRST, tmp_path / "head.npz")
    command = ["export", "--head", f"{tmp_path}/head.npz", "--backbone", f"{tmp_path}/net.onnx"]
    assert run([*command, "--output", "pooled", "--out", f"{tmp_path}/both.onnx"]) == 0
    images = RNG.normal(size=(3, 3, 8, 8)).astype(np.float32)
    patches = np.lib.stride_tricks.sliding_window_view(images, (3, 3), (2, 3))
    features = np.einsum("nchwij,dcij->nhwd", patches, kernel).mean((1, 2))
    found = scores_of(tmp_path / "both.onnx", images)
    np.testing.assert_allclose(found, np.asarray(FIRST(features)), rtol=1e-4, atol=1e-4)
    fixed = onnx.load(tmp_path / "net.onnx")
    axes = fixed.graph.input[0].type.tensor_type.shape.dim
    # As optimum exports: all axes free.
    for axis, name in zip(axes, ("batch_size", "num_channels", "height", "width"), strict=True):
        axis.dim_param = name
    onnx.save(fixed, tmp_path / "net.onnx")
    assert run([*command, "--output", "pooled", "--out", f"{tmp_path}/free.onnx"]) == 0
    axes[1].dim_value = 4
    onnx.save(fixed, tmp_path / "net.onnx")
    assert run([*command, "--output", "pooled", "--out", f"{tmp_path}/no.onnx"]) == 2
    axes[0].dim_value = 1
    onnx.save(fixed, tmp_path / "net.onnx")
    assert run([*command, "--output", "pooled", "--out", f"{tmp_path}/no.onnx"]) == 2
    assert run([*command, "--output", "logits", "--out", f"{tmp_path}/no.onnx"]) == 2
    err = capsys.readouterr().err
    assert "--backbone: expected a free batch size" in err
    assert "--output: expected one of shares of net.onnx, got 'logits'" in err
    assert not (tmp_path / "no.onnx").exists()


def test_a_network_of_covfree(tmp_path):
    pytest.importorskip(
        "jax2onnx", reason="jax2onnx is not installed: covfree's networks are not exported here"
    )
    from tiny_networks import RESNET

    from covfree.backbones import backbone
    from covfree.heads.file import SavedHead
    from covfree.studies.export import export_onnx

    network = backbone(RESNET)
    params = network.init(jax.random.key(0))
    head = covfree.LinearHead(jnp.asarray(RNG.normal(size=(64, 4)), jnp.float32), BIAS)
    saved, file = SavedHead(head, None, 64, 4), tmp_path / "both.onnx"
    most, largest = export_onnx(saved, file, network=network, params=params)
    assert most < 1e-4 * max(largest, 1)
    images = RNG.normal(size=(5, 16, 16, 3)).astype(np.float32)
    expected = np.asarray(head(network.apply(params, images)))
    np.testing.assert_allclose(scores_of(tmp_path / "both.onnx", images), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("to", ["safetensors", "npz", "torch"])
def test_linear_heads_under_the_names_of_torch(to, tmp_path, capsys):
    if to == "torch":
        torch = pytest.importorskip(
            "torch", reason="PyTorch is not installed: its files are not written here"
        )
    path = tmp_path / f"own.{'pt' if to == 'torch' else to}"
    covfree.save_head(FIRST, tmp_path / "head.npz")
    command = ["export", "--head", f"{tmp_path}/head.npz", "--to", to, "--out", str(path)]
    assert run(command) == 0
    if to == "torch":
        linear = torch.nn.Linear(5, 4)
        linear.load_state_dict(torch.load(path))
        found = linear(torch.tensor(FEATURES)).detach().numpy()
    else:
        arrays = load_file(path) if to == "safetensors" else np.load(path)
        found = FEATURES @ arrays["weight"].T + arrays["bias"]
    np.testing.assert_allclose(found, np.asarray(FIRST(FEATURES)), rtol=1e-4, atol=1e-4)
    covfree.save_head(GAUSSIAN, tmp_path / "head.npz")
    assert run(command) == 2
    assert "--to: expected onnx, as GaussianHead is no torch.nn.Linear" in capsys.readouterr().err
