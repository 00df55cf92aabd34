"""FedAdam on a network between machines: the simulation's bits, from images and weights that agree."""

import dataclasses
import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from backbones import seeded
from machines import Machines, draw_keys, start
from pages import ROOT
from safetensors.numpy import save_file
from tiny_networks import RESNET

import covfree
import covfree.rounds
from covfree.backbones import BACKBONES, backbone
from covfree.backbones.weights import tensor_shapes
from covfree.cli.app import run
from covfree.deployment import Client, Description, Server, load_key, load_network, load_site, public_key
from covfree.deployment.site import extractor_of

SIZES = {"berlin": 6, "oslo": 12, "rome": 5}
NAMES = ("blue", "dark", "grey")


def draw_photos(folder) -> None:
    image = pytest.importorskip("PIL.Image")
    for number, (site, size) in enumerate(SIZES.items()):
        rng = np.random.default_rng(number)
        for i in range(size):
            path = folder / site / NAMES[i % 3] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray((rng.integers(0, 60, (16, 16, 3)) + 60 * (i % 3)).astype(np.uint8)).save(path)


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> str:
    """A small network stands in the table of backbones; its weights, photos and keys are in the folder."""
    monkeypatch.chdir(tmp_path)
    draw_photos(tmp_path / "photos")
    Path("classes.txt").write_text("\n".join(NAMES))
    draw_keys(*SIZES, "server")
    table = {**BACKBONES, RESNET.name: RESNET}
    for name, module in list(sys.modules.items()):
        if name.startswith("covfree") and getattr(module, "BACKBONES", None) is BACKBONES:
            monkeypatch.setattr(module, "BACKBONES", table)
    path = tmp_path / "tiny.safetensors"
    save_file(seeded.tensors(tensor_shapes(backbone(RESNET).shapes), RESNET.name), path)
    return str(path)


@pytest.mark.slow
def test_commands_train_a_network_as_the_simulation_does_to_the_bit(tiny, tmp_path, capsys):
    Path("keys/server.pub").unlink()
    with_weights = ["--weights", tiny]
    new = ["federation", "new", "shared", "--sites", "keys", "--key", "server.key", "--algorithm", "fedadam"]
    new += ["--rounds", "2", "--train", "all", "--max-examples", "12", "--class-names", "classes.txt"]
    assert run([*new, "--backbone", RESNET.name, *with_weights]) == 0
    common = ["--poll", "0.05", *with_weights]
    join = ["federation", "join", "shared", *common]
    codes = dict[str, int]()

    assert run([*join, "--key", "rome.key", "--features", "x.npz", "--state", "r", "--out", "r.npz"]) == 2
    assert "features: expected images, as a network is trained" in capsys.readouterr().err
    serve = ("serve", "shared", "--key", "server.key", "--state", "server", "--out", "head.npz", *common)
    threads = [start(codes, "server", ["federation", *serve])]
    for name in SIZES:
        words = ("--key", f"{name}.key", "--images", f"photos/{name}", "--state", name)
        threads.append(start(codes, name, [*join, *words, "--out", f"{name}.npz"]))
    for thread in threads:
        thread.join()
    assert codes == dict.fromkeys(("server", *SIZES), 0), capsys.readouterr()

    own = Description.load("shared/federation.json")
    network = load_network(own, tiny)
    parts = [load_site(own, name, name, images=f"photos/{name}", weights=tiny)[0] for name in SIZES]
    assert parts[0].features.shape == (6, 16, 16, 3)
    simulated = covfree.rounds.run(
        own.make_algorithm(network),
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.repeat(np.arange(3), list(SIZES.values())),
        key=own.key(),
        rounds=2,
    ).result
    saved = covfree.load_head("head.npz", network=network)
    assert saved.class_names == NAMES
    assert (tmp_path / "oslo.npz").read_bytes() == (tmp_path / "head.npz").read_bytes()
    before, trained, expected = (
        jax.tree.leaves((head.feature_map.params, head.head.weight))
        for head in (dataclasses.replace(saved.head, feature_map=network), saved.head, simulated)
    )
    for a, b in zip(trained, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert sum(bool((a != b).any()) for a, b in zip(trained, before, strict=True)) > 5


def test_the_site_app_of_flower_answers_with_a_network(tiny, tmp_path, monkeypatch):
    """The app itself, called as Flower's process calls it; skipped without flwr."""
    app = pytest.importorskip("flwr.app")
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_run_id", "_node_id", "_task_id"):  # as a process of Flower has them
        monkeypatch.setattr(identity, name, 1)
    keys = {name: public_key(load_key(f"{name}.key")) for name in ("berlin", "server")}
    extractor = extractor_of(RESNET.name, tiny)
    own = Description(
        "fedadam", NAMES, RESNET.num_features, {"berlin": keys["berlin"]}, keys["server"], extractor,
        rounds=1, max_examples=6, train="all",
    )  # fmt: skip
    own.save(tmp_path / "federation.json")
    algorithm = own.make_algorithm(load_network(own, tiny))
    files = {"federation": "federation.json", "key": "berlin.key", "images": "photos/berlin", "state": "app"}
    config = {"site": "berlin", "weights": tiny} | {
        name: str(tmp_path / file) for name, file in files.items()
    }
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower"))
    from covfree_flower.client_app import answer

    key = load_key(tmp_path / "server.key")
    with Server(own, tmp_path / "server", key, algorithm=algorithm) as server:
        asked = server.open()
        content = app.RecordDict({"covfree": app.ConfigRecord({"message": asked})})
        message = app.Message(content, dst_node_id=1, message_type="query.round")
        context = app.Context(1, 1, config, app.RecordDict(), {})
        reply = answer(message, context).content["covfree"]["message"]
        site, same = load_site(
            own, "berlin", tmp_path / "own", images=tmp_path / "photos" / "berlin", weights=tiny
        )
        private = load_key(tmp_path / "berlin.key"), site.features, site.labels
        with Client(own, "berlin", tmp_path / "own", *private, algorithm=same) as client:
            assert client.answer(asked) == reply
        assert server.take(reply).reason is None
        server.close()
        assert server.finished


def test_a_site_whose_photos_changed_since(tiny, capsys):
    new = ["federation", "new", "shared", "--sites", "keys", "--key", "server.key", "--weights", tiny]
    assert run([*new, "--class-names", "classes.txt", "--backbone", RESNET.name]) == 0
    join = ["federation", "join", "shared", "--key", "oslo.key", "--state", "o", "--out", "o.npz"]
    join += ["--wait", "0", "--weights", tiny, "--images"]
    assert run([*join, "photos"]) == 2
    assert "class 'berlin' is none of class_names: blue, dark, grey" in capsys.readouterr().err
    assert not Path("o").exists()
    assert run([*join, "photos/oslo"]) == 3
    os.utime("photos/oslo/blue/0.png", (1, 1))
    capsys.readouterr()
    assert run([*join, "photos/oslo"]) == 2
    told = capsys.readouterr().err
    assert "here): names, sizes or modification times of images in oslo changed; remove it or write" in told
    assert told.rstrip().endswith("again, or give it as a file of features as it is")
    assert run([*join[:-1], "--features", "o/features.npz"]) == 3
    # The folder of another machine stays as it is.
    Path("o/features.npz").unlink()
    join[join.index("oslo.key")] = "berlin.key"
    assert run([*join, "photos/berlin"]) == 2
    assert "--state: expected one of its own for each machine" in capsys.readouterr().err
    assert not Path("o/features.npz").exists()


def test_what_no_network_can_be(tmp_path):
    with Machines(tmp_path) as machines:
        own = machines.description
        trained = dataclasses.replace(own, algorithm="fedadam", rounds=1, train="all")
        for changes, text in [
            ({"train": "all"}, "train: expected 'head' for 'fedcof', got 'all'"),
            ({"train": "tail"}, "train: expected one of"),
        ]:
            with pytest.raises(ValueError, match=text):
                dataclasses.replace(own, **changes)
        with pytest.raises(ValueError, match="train: expected 'head' without a network"):
            dataclasses.replace(trained, extractor={})
        with pytest.raises(ValueError, match="network: expected none, as heads are trained, got str"):
            own.make_algorithm("network")
        machines.description = trained
        with pytest.raises(ValueError, match="network: expected that of load_network, got NoneType"):
            machines.server()
        with pytest.raises(
            ValueError, match=r"features: expected uint8\[n, 224, 224, 3\], got float32\[64, 8\]"
        ):
            machines.client("berlin")
