"""Networks of ONNX, PyTorch and plain functions give the features that they give by themselves."""

import dataclasses
import json

import numpy as np
import pytest
from backbones import seeded

from covfree.backbones import Preprocessing, from_function, from_onnx, from_torch
from covfree.backbones.preprocess import crop, normalise
from covfree.backbones.processor import preprocessing_of, read_processor
from covfree.cli.app import run
from covfree.data import encode_texts, extract_features, image_arrays, load_npz
from covfree.data.feature_file import read_feature_file
from covfree.data.texts import TextSet

SMALL = Preprocessing(20, 16, "bilinear", (124.0, 116.0, 104.0), (58.0, 57.0, 57.0))
PIXELS = np.stack([seeded.picture((24, 30)) // (1 + i) for i in range(5)])
IMAGES = image_arrays(PIXELS, np.arange(5) % 2)
INPUTS = np.stack([normalise(crop(image, SMALL), SMALL) for image in PIXELS])
PROCESSOR = {
    **{"do_resize": True, "size": {"shortest_edge": 20}, "resample": 2, "do_center_crop": True},
    **{"crop_size": {"height": 16, "width": 16}, "do_normalize": True},
    **{"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]},
}
RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(6, 3, 3, 3)).astype(np.float32)
CLASSIFIER = RNG.normal(size=(6, 4)).astype(np.float32)


def convolved(images):
    """The mean over the image of a convolution and a ReLU, in float64: images [n, 16, 16, 3]."""
    patches = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (3, 3), (1, 2))
    return np.maximum(np.einsum("nhwcij,dcij->nhwd", patches, KERNEL), 0).mean((1, 2))


def onnx_file(path, batch="n", opset=17, image=(3, 16, 16)):
    """A small network: convolution, ReLU, mean over the image, a classifier."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    h, tensor = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        h.make_node("Conv", ["pixels", "kernel"], ["maps"]),
        h.make_node("Relu", ["maps"], ["positive"]),
        h.make_node("GlobalAveragePool", ["positive"], ["pooled"]),
        h.make_node("Flatten", ["pooled"], ["flat"]),
        h.make_node("MatMul", ["flat", "classifier"], ["logits"]),
    ]
    graph = h.make_graph(
        nodes,
        "small",
        [h.make_tensor_value_info("pixels", tensor, [batch, *image])],
        [h.make_tensor_value_info("logits", tensor, [batch, 4])],
        [
            onnx.numpy_helper.from_array(KERNEL, "kernel"),
            onnx.numpy_helper.from_array(CLASSIFIER, "classifier"),
        ],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("batch", ["n", 2])
def test_onnx(tmp_path, batch):
    path = onnx_file(tmp_path / "small.onnx", batch)
    expected = convolved(INPUTS)
    logits = from_onnx(path, preprocessing=SMALL)
    np.testing.assert_allclose(logits(list(PIXELS)), expected @ CLASSIFIER, rtol=1e-4, atol=1e-4)
    # As optimum exports: all axes free.
    free = onnx_file(tmp_path / "free.onnx", "batch_size", image=("num_channels", "height", "width"))
    np.testing.assert_array_equal(from_onnx(free, preprocessing=SMALL)(list(PIXELS)), logits(list(PIXELS)))
    # A renamed file makes the same features.
    other = path.rename(tmp_path / "other.onnx")
    for output in ("flat", "pooled"):
        inner = from_onnx(other, output=output, preprocessing=SMALL)
        np.testing.assert_allclose(inner(list(PIXELS)), expected, rtol=1e-5, atol=1e-5)
    assert from_onnx(other, preprocessing=SMALL).fingerprint == logits.fingerprint
    flat = from_onnx(other, output="flat", preprocessing=SMALL)
    assert len({logits.fingerprint, inner.fingerprint, flat.fingerprint}) == 3
    done = extract_features(IMAGES, inner, out=tmp_path / "made.npz", batch_size=2)
    file = read_feature_file(done.path)
    np.testing.assert_allclose(file.features, expected, rtol=1e-5, atol=1e-5)
    assert file.key["weights"] == inner.weights
    assert file.key["preprocessing"]["crop"] == 16
    assert extract_features(IMAGES, inner, out=tmp_path / "made.npz").computed == 0
    with pytest.raises(ValueError, match="holds features of something else"):
        extract_features(IMAGES, logits, out=tmp_path / "made.npz")


def test_onnx_on_the_command_line(tmp_path, capsys):
    path = onnx_file(tmp_path / "small.onnx")
    np.savez(tmp_path / "images.npz", images=PIXELS, labels=np.array([0, 1, 0, 1, 0]))
    command = ["extract", "--images", f"{tmp_path}/images.npz", "--backbone", str(path), "--output", "flat"]
    command += ["--out", f"{tmp_path}/features.npz"]
    assert run(command) == 2
    assert "--preprocessing: expected one, as there is no preprocessor_config.json" in capsys.readouterr().err
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    assert run(command) == 0
    levels = read_processor(tmp_path / "preprocessor_config.json")
    expected = convolved(np.stack([normalise(crop(image, levels), levels) for image in PIXELS]))
    np.testing.assert_allclose(read_feature_file(tmp_path / "features.npz").features, expected, rtol=1e-5)
    assert load_npz(tmp_path / "features.npz").num_classes == 2
    typed = "resize=20:crop=16:interpolation=bilinear:mean=0.5,0.4,0.3:std=0.2,0.25,0.3"
    assert preprocessing_of(typed) == levels
    assert run([*command, "--preprocessing", typed]) == 0
    assert "nothing to compute" in capsys.readouterr().err
    assert run([*command, "--preprocessing", typed.replace("crop=16", "crop=18")]) == 2
    assert "preprocessing: expected crop 16" in capsys.readouterr().err


def test_studies_take_an_onnx_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "cache"))
    onnx_file(tmp_path / "small.onnx")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    np.savez(tmp_path / "images.npz", images=np.concatenate([PIXELS] * 3), labels=np.arange(15) % 5 % 2)
    given = ["--images", f"{tmp_path}/images.npz", "--backbone", f"{tmp_path}/small.onnx:flat"]
    assert run(["compare", *given, "--methods", "fedncm", "--clients", "2"]) == 0
    (file,) = (tmp_path / "cache").iterdir()
    assert read_feature_file(file).features.shape == (15, 6)
    assert read_feature_file(file).key["backbone"] == "onnx:flat"
    capsys.readouterr()
    assert run(["finetune", *given, "--rounds", "1", "--clients", "2"]) == 2
    assert "--backbone: expected a network of covfree" in capsys.readouterr().err
    assert run(["compare", *given, "--weights", "w.pth"]) == 2
    assert "--weights: expected none" in capsys.readouterr().err


def test_onnx_errors(tmp_path):
    path = onnx_file(tmp_path / "small.onnx")
    with pytest.raises(ValueError, match=r"^output: expected one of logits of small.onnx, got 'featurs'"):
        from_onnx(path, output="featurs", preprocessing=SMALL)
    with pytest.raises(ValueError, match=r"^onnx:maps: expected features \[1, d\] of one example"):
        from_onnx(path, output="maps", preprocessing=SMALL)
    free = onnx_file(tmp_path / "free.onnx", image=("channels", "height", "width"))
    with pytest.raises(ValueError, match=r"onnxruntime cannot run .*free\.onnx on images of side 2 "):
        from_onnx(free, preprocessing=dataclasses.replace(SMALL, resize=2, crop=2))
    (tmp_path / "bad.onnx").write_bytes(b"not a network")
    with pytest.raises(ValueError, match=r"bad\.onnx"):
        from_onnx(tmp_path / "bad.onnx", preprocessing=SMALL)
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        from_onnx(tmp_path / "none.onnx", preprocessing=SMALL)


def test_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: its modules are not tested here")
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Dropout())
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor(KERNEL))
    extractor = from_torch(module.train(), SMALL)
    assert not module.training
    np.testing.assert_allclose(extractor(list(PIXELS)), convolved(INPUTS), rtol=1e-5, atol=1e-5)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, images):
            return {"maps": images, "pooler_output": self.inner(images)}

    def transform(image):
        return torch.tensor(normalise(crop(np.asarray(image), SMALL), SMALL)).permute(2, 0, 1)

    with pytest.raises(ValueError, match=r"^output: expected one of maps, pooler_output of Named, got None"):
        from_torch(Named(), SMALL)
    with pytest.raises(ValueError, match=r"^transform_id: expected a text that identifies"):
        from_torch(Named(), transform, output="pooler_output")
    named = from_torch(Named(), transform, output="pooler_output", transform_id="small")
    assert named.name == "Named:pooler_output"
    done = extract_features(IMAGES, named, out=tmp_path / "made.npz", batch_size=3)
    np.testing.assert_allclose(read_feature_file(done.path).features, convolved(INPUTS), rtol=1e-5, atol=1e-5)
    before = extractor.fingerprint
    with torch.no_grad():
        module[0].weight[0, 0, 0, 0] += 1e-3
    assert from_torch(module, SMALL).fingerprint != before


def test_functions_of_images_and_texts(tmp_path):
    extractor = from_function(convolved, name="convolved", weights="1", preprocessing=SMALL)
    np.testing.assert_allclose(extractor(list(PIXELS)), convolved(INPUTS), rtol=1e-5, atol=1e-5)
    texts = TextSet("words", ("0", "1", "2"), np.array([0, 1, 0]), ("a", "b"), ("ab", "b", "aab"))
    counts = from_function(lambda some: [[each.count("a"), 1.0] for each in some], name="counts", weights="1")
    done = encode_texts(texts, counts, out=tmp_path / "texts.npz", batch_size=2)
    assert read_feature_file(done.path).features.tolist() == [[1, 1], [0, 1], [2, 1]]
    assert load_npz(done.path, test=done.path).extractor == counts.fingerprint
    with pytest.raises(ValueError, match=r"^network: expected an extractor of images"):
        extract_features(IMAGES, counts, out=tmp_path / "made.npz")
    with pytest.raises(ValueError, match=r"^encoder: expected one of texts"):
        encode_texts(texts, extractor, out=tmp_path / "made.npz")
    with pytest.raises(ValueError, match=r"^flat: expected features \[1, d\] of one example, got \[\]"):
        from_function(len, name="flat", weights="1")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"size": {"height": 16, "width": 16}, "do_center_crop": False},
            Preprocessing((16, 16), 16, "bilinear", *[(0.0,) * 3] * 2),
        ),
        ({"size": {"shortest_edge": 224}, "do_center_crop": False, "crop_pct": 0.875}, None),
        # A size of one number is that of both sides, of CLIP and its like that of the shorter one.
        ({"size": 16, "do_center_crop": False}, Preprocessing((16, 16), 16, "bilinear", *[(0.0,) * 3] * 2)),
        (
            {"size": 20, "image_processor_type": "DeiTImageProcessorFast"},
            Preprocessing((20, 20), 16, "bilinear", *[(0.0,) * 3] * 2),
        ),
        (
            {"size": 20, "feature_extractor_type": "CLIPFeatureExtractor"},
            Preprocessing(20, 16, "bilinear", *[(0.0,) * 3] * 2),
        ),
        # ConvNeXt squeezes large images.
        (
            {"size": 384, "do_center_crop": False, "image_processor_type": "ConvNextImageProcessor"},
            Preprocessing((384, 384), 384, "bilinear", *[(0.0,) * 3] * 2),
        ),
        ({"image_processor_type": "LevitImageProcessor"}, "image_processor_type: expected one of Beit"),
        ({"crop_pct": 0.9}, "crop_pct: expected none beside do_center_crop, got 0.9"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order: expected none"),
        ({"do_pad": True}, "do_pad: expected none"),
        ({"resample": 0}, "resample: expected 2"),
        ({"do_normalize": False}, "do_normalize: expected true"),
        ({"image_std": [0, 1, 1]}, "std: expected three finite numbers above 0"),
        ({"size": {"shortest_edge": 8}}, "size: expected integers of at least 16"),
    ],
)
def test_processors(tmp_path, changes, expected):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(PROCESSOR | changes))
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            read_processor(path)
        return
    found = read_processor(path)
    assert (found.resize, found.crop) == ((expected.resize, expected.crop) if expected else (256, 224))
    assert crop(PIXELS[0], found).shape == (found.crop, found.crop, 3)
