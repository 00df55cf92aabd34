"""Files of weights: read without running anything, refused by name where they are wrong."""

import io
import math
import os
import pickle
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from covfree.backbones import backbone, read_weights
from covfree.backbones.weights import packaged_weights, tensor_shapes

EXPECTED = Path(__file__).resolve().parent / "expected"
SMALL = ["small.pth", "small-legacy.pth"]


@pytest.mark.parametrize("name", SMALL)
def test_tensors_of_every_kind(name):
    tensors = read_weights(EXPECTED / name)
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = {
        "whole": base,
        "transposed": base.T,
        "row": base[1],
        "parameter": np.array([0.5, -2.0], np.float32),
        "half": np.array([1.5, 2.5], np.float16),
        "brain": np.array([1.0, -3.0], np.float32),
        "double": np.array([1e300]),
        "bn.num_batches_tracked": np.array(7),
        "empty": np.zeros((0, 2), np.float32),
    }
    assert list(tensors) == list(expected)
    for key, value in expected.items():
        if key == "brain":
            assert tensors[key].dtype.name == "bfloat16"
        else:
            assert tensors[key].dtype == value.dtype
        np.testing.assert_array_equal(tensors[key].astype(value.dtype), value)


@pytest.mark.parametrize("name", SMALL)
def test_a_file_cut_short_anywhere(tmp_path, name):
    whole = (EXPECTED / name).read_bytes()
    path = tmp_path / "cut.pth"
    for length in [*range(0, len(whole), 29), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"path: .*cut\.pth: .*expected"):
            read_weights(path)


@pytest.mark.parametrize("name", SMALL)
def test_damage_runs_nothing_and_is_an_error_or_other_numbers(tmp_path, name):
    whole = (EXPECTED / name).read_bytes()
    path = tmp_path / "damaged.pth"
    generator = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[generator.integers(len(whole))] = generator.integers(256)
        path.write_bytes(damaged)
        try:
            tensors = read_weights(path)
        except ValueError as error:
            assert "damaged.pth" in str(error)  # noqa: PT017
        else:
            assert all(isinstance(value, np.ndarray) for value in tensors.values())


class Malicious:
    """Unpickled, it would make a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def zipped(pickled):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_a_malicious_pickle_is_refused_by_name(tmp_path, form, protocol):
    trap = tmp_path / "trap"
    pickled = pickle.dumps({"layer.weight": Malicious(trap)}, protocol=protocol)
    pickle.loads(pickled)
    trap.rmdir()  # it does what it is here for

    path = tmp_path / "weights.pth"
    head = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    legacy = b"".join(pickle.dumps(value, 2) for value in head) + pickled
    path.write_bytes(zipped(pickled) if form == "zip" else legacy)
    with pytest.raises(
        ValueError,
        match=rf"weights\.pth: expected tensors alone, got {os.mkdir.__module__}\.mkdir; the file was",
    ):
        read_weights(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"ctorch.nn.modules.linear\nLinear\n)R.",
        b"ctorch\nload\n.",
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
        b"(S'x'\nios\nsystem\n.",
    ],
)
def test_other_names_are_refused(tmp_path, pickled):
    path = tmp_path / "weights.pth"
    path.write_bytes(zipped(pickled))
    with pytest.raises(ValueError, match=r"expected tensors alone, got .*; the file was not loaded"):
        read_weights(path)


def test_what_is_no_table_of_tensors(tmp_path):
    path = tmp_path / "weights.pt"
    for content, text in (([1], "got list"), ({"epoch": 3}, "got int under 'epoch'")):
        path.write_bytes(zipped(pickle.dumps(content)))
        with pytest.raises(ValueError, match=text):
            read_weights(path)


def test_views_outside_their_storage_are_refused(tmp_path):
    pickled = (
        b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n"
        b"((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQK\x02K\x03\x85K\x01\x85tRs."
    )
    path = tmp_path / "weights.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", bytes(16))
    with pytest.raises(ValueError, match=r"w: expected a view inside its storage"):
        read_weights(path)


def test_safetensors(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"a": np.ones((2, 3), np.float16)}, path)
    assert read_weights(path)["a"].dtype == np.float16
    whole = path.read_bytes()
    for length in (0, 5, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"weights\.safetensors: expected a safetensors file"):
            read_weights(path)


def test_files_of_other_kinds(tmp_path):
    with pytest.raises(ValueError, match=r"expected a \.safetensors, \.pth or \.pt file, got model\.onnx"):
        read_weights("model.onnx")
    text = tmp_path / "text.pth"
    text.write_bytes(b"epoch,loss\n")
    with pytest.raises(ValueError, match=r"got another format, which starts with b'epoch,lo'$"):
        read_weights(text)
    for name in ("no.pth", "no.safetensors"):
        with pytest.raises(FileNotFoundError, match=name):
            read_weights(tmp_path / name)


@pytest.fixture(scope="module")
def network():
    chosen = backbone("squeezenet1_1")
    return chosen, {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(chosen.shapes).items()}


def test_errors_name_the_tensors(network, tmp_path):
    chosen, tensors = network
    wrong = dict(tensors, surplus=np.zeros(3))
    del wrong["features.3.squeeze.bias"]
    wrong["features.0.weight"] = np.zeros((64, 3, 7, 7), np.float32)
    path = tmp_path / "weights.safetensors"
    save_file(wrong, path)
    with pytest.raises(
        ValueError,
        match=r"weights\.safetensors: squeezenet1_1: missing: features\.3\.squeeze\.bias; "
        r"not expected: surplus; features\.0\.weight has shape \[64, 3, 7, 7\], expected \[64, 3, 3, 3\]",
    ):
        chosen.load(path)
    with pytest.raises(ValueError, match=r"missing: .* and 42 more$"):
        chosen.from_tensors({})
    with pytest.raises(ValueError, match=r"expected finite numbers, got others in: features\.0\.bias$"):
        chosen.from_tensors(dict(tensors, **{"features.0.bias": np.full(64, np.nan, np.float32)}))


def test_the_classifier_is_left_aside(network):
    chosen, tensors = network
    shapes = {"weight": (10, 512, 1, 1), "bias": (10,)}
    classifier = {f"classifier.1.{leaf}": np.zeros(shape, np.float32) for leaf, shape in shapes.items()}
    params = chosen.from_tensors({**tensors, **classifier})
    assert "classifier.1" not in params["params"]


def test_counts_of_batches_are_ignored():
    chosen = backbone("resnet18")
    tensors = {name: np.zeros(shape, np.float16) for name, shape in tensor_shapes(chosen.shapes).items()}
    params = chosen.from_tensors({**tensors, "bn1.num_batches_tracked": np.array(3)})
    assert params["params"]["conv1"]["kernel"].dtype == np.float32


def test_the_weights_that_the_extra_brings():
    params = backbone("efficientnet_lite0").load()
    shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
    assert (3, 3, 3, 32) in shapes  # the stem, as JAX lays it out
    assert 3_300_000 < sum(map(math.prod, shapes)) < 3_500_000


def test_packages():
    with pytest.raises(
        ImportError, match=r"no-such-package is needed .*'\.\[pretrained\]' in covfree's clone"
    ):
        packaged_weights("no-such-package")
    with pytest.raises(ValueError, match=r"numpy: expected one \.pth file in the package, got 0"):
        packaged_weights("numpy")
    with pytest.raises(ValueError, match="no package ships weights of resnet18; expected a file"):
        backbone("resnet18").load()
