"""The description of a federation: what it refuses, its identity, and what differs between two."""

import dataclasses
import json
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from machines import Machines, examples, finish

from covfree.deployment import (
    Client,
    Description,
    SecureSums,
    Server,
    Stopped,
    TooFew,
    differences,
    join,
    load_key,
    new_key,
    read_site,
    serve,
)


@pytest.fixture(scope="module")
def description(tmp_path_factory) -> Description:
    with Machines(tmp_path_factory.mktemp("keys")) as machines:
        return machines.description


def test_a_file_gives_the_description_and_its_identity(description, tmp_path):
    description.save(tmp_path / "federation.json")
    read = Description.load(tmp_path / "federation.json")
    assert read == description
    assert read.identity == description.identity
    # Another order of fields or sites is the same federation; another value is not.
    fields = json.loads((tmp_path / "federation.json").read_text())
    fields["sites"] = dict(reversed(fields["sites"].items()))
    (tmp_path / "b.json").write_text(json.dumps(dict(reversed(fields.items()))))
    assert Description.load(tmp_path / "b.json").identity == description.identity
    assert dataclasses.replace(description, seed=1).identity != description.identity
    for text, why in (
        ("", "Expecting value"),
        ("[]", ""),
        ("{}", "'version'"),
        ({**fields, "version": 2}, "version: expected 1, got 2"),
        ({**fields, "roundz": 3}, "unknown entry 'roundz'"),
        ({**fields, "sums": {"bound": 1, "bond": 2}}, "unknown entry 'bond'"),
        ({name: value for name, value in fields.items() if name != "dim"}, "no entry 'dim'"),
    ):
        (tmp_path / "c.json").write_text(text if isinstance(text, str) else json.dumps(text))
        changed = "it was changed, or is of another version of covfree: ask the server's side for its file"
        with pytest.raises(
            ValueError, match=rf"c.json: expected the description of a federation \(.*{why}.*\); {changed}"
        ):
            Description.load(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"algorithm": "fedcoff"}, "algorithm: expected one of fedncm, .* got 'fedcoff'"),
        ({"algorithm": "fedcof:gamma=1"}, "algorithm: fedcof takes .*, got gamma"),
        ({"algorithm": "fedadam"}, "rounds: expected a number for 'fedadam', got None"),
        ({"rounds": 3}, "rounds: expected None, as it takes 1 for 'fedcof', got 3"),
        ({"class_names": ("cat", "cat")}, "class_names: expected num_classes = 2 names that differ"),
        ({"class_names": ()}, "expected"),
        ({"dim": 0}, "dim: expected"),
        ({"fewest": 4}, "fewest: expected at most 3, the number of sites, got 4"),
        ({"deadline": 0}, "deadline: expected a number above 0 or None, got 0"),
        ({"deadline": float("nan")}, "deadline: expected a number above 0 or None, got nan"),
        ({"max_norm": float("inf")}, "max_norm: expected a number above 0 or None, got inf"),
        ({"seed": -1}, "seed: expected an integer from 0"),
        ({"sites": {"../a": "0" * 64}}, "sites: expected names of letters"),
        ({"sites": {"server": "0" * 64}}, "sites: expected names of letters.* got 'server'"),
        ({"sites": {"a": "0" * 63}}, "sites: expected public keys of 64 hexadecimal digits"),
        ({"sites": {"a": "0" * 64, "b": "0" * 64}}, "sites: expected another public key for each site"),
        ({"sites": {}}, "fewest: expected at most 0, the number of sites"),
        (
            {"sites": {"a": "0" * 64, "b": "1" * 64}, "sums": SecureSums(1e6), "algorithm": "fed3r"},
            "sums: sites: expected at least 3, as each of two learns the other's upload from the sum, got 2",
        ),
    ],
)
def test_what_no_federation_can_be(description, fields, text):
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(description, **fields)


def test_differences_are_named():
    agreed = {"dim": 4, "weights": "ab" * 32, "preprocessing": {"crop": 224, "mean": (1.0, 2.0)}}
    agreed["class_names"] = ["a", "b", "c", "d", "e"]
    assert differences(agreed, json.loads(json.dumps(agreed))) == []
    assert differences(agreed, {**agreed, "preprocessing": {"crop": 256}}) == [
        "preprocessing.crop: expected 224, got 256",
        "preprocessing.mean: expected [1.0, 2.0], got none",
    ]
    assert differences(agreed, {**agreed, "weights": "cd" * 32, "more": 1}) == [
        "weights: expected abababababab…, got cdcdcdcdcdcd…",
        "more: expected none, got 1",
    ]
    for names, text in [
        (["a", "c", "b", "e", "d"], "classes 1 and 2 are swapped class_names: classes 3 and 4 are swapped"),
        (["e", "a", "b", "c", "d"], "class 0 is 'e', expected 'a', class 1 is 'a', expected 'b', class 2 is "
         "'b', expected 'c' (5 classes are renumbered)"),
        (["a", "b", "c", "d", "f"], "expected 'e' among them, got none such"),
        (["a", "b", "c", "d", "e", "f"], "expected 5 names, got 6"),
        (None, "expected 5 names, got None"),
        ("abcde", "expected 5 names, got something else"),
    ]:  # fmt: skip
        assert " ".join(differences(agreed, {**agreed, "class_names": names})) == f"class_names: {text}"


@pytest.mark.parametrize("sizes", [{"a": 0, "b": 30}, {"a": 1}])
def test_a_site_may_have_no_example_and_be_alone(sizes, tmp_path):
    keys = {name: new_key(tmp_path / f"{name}.key") for name in (*sizes, "server")}
    own = Description("fedcof:shrinkage=1.0", ("cat", "dog"), 2, sites=keys, server=keys.pop("server"))
    with Server(own, tmp_path / "server", load_key(tmp_path / "server.key")) as server:
        made = {}
        for name, size in sizes.items():
            labels = np.arange(size) % 2
            features = np.eye(2, dtype=np.float32)[labels]
            key = load_key(tmp_path / f"{name}.key")
            made[name] = Client(own, name, tmp_path / name, key, features, labels)
        head = finish(server, made)
        for client in made.values():
            client.__exit__()
    assert np.isfinite(np.asarray(head.weight)).all()


def test_sites_that_are_not_as_the_description_says(description, tmp_path):
    with Machines(tmp_path / "machines") as machines:
        own, (features, labels) = machines.description, examples("oslo")
        key = machines.key("oslo")

        def site(*arguments, **options) -> None:
            Client(own, "oslo", tmp_path / "oslo", *arguments, **options)

        with pytest.raises(ValueError, match="site: expected one of berlin, oslo, rome, got 'paris'"):
            Client(own, "paris", tmp_path / "oslo", key, features, labels)
        with pytest.raises(ValueError, match="key: expected the private key of 'oslo'"):
            site(machines.key("rome"), features, labels)
        with pytest.raises(ValueError, match="site oslo: dim: expected 8, got 9; backbone: expected"):
            site(key, features, labels, uses={"dim": 9, "class_names": list(own.class_names)})
        with pytest.raises(ValueError, match=r"features: expected float32\[n, 8\], got float32\[64, 7\]"):
            site(key, features[:, :7], labels)
        with pytest.raises(ValueError, match="label"):
            site(key, features, labels + 3)
        with pytest.raises(ValueError, match=r"nan|finite"):
            site(key, np.where(features == features[3, 3], np.nan, features), labels)
        with pytest.raises(ValueError, match="labels: expected at most 64 examples, got 128"):
            site(key, np.tile(features, (2, 1)), np.tile(labels, 2))
        machines.client("oslo")
        with pytest.raises(ValueError, match="folder: expected one that no other process uses"):
            Client(own, "oslo", tmp_path / "machines" / "oslo", key, features, labels)
        with pytest.raises(ValueError, match="key: expected the private key of the description's server"):
            Server(own, tmp_path / "server", key)


def test_a_file_of_features_says_what_made_it(description, tmp_path):
    features, labels = examples("oslo")
    key = json.dumps({"images": "of this site", **description.extractor})
    names = np.array(description.class_names)
    is_test = np.arange(64) >= 60
    np.savez(
        tmp_path / "a.npz", features=features, labels=labels, key=key, class_names=names, is_test=is_test
    )
    site = read_site(tmp_path / "a.npz", description)
    assert differences(description.agreed, site.uses) == []
    assert site.features.shape == (60, 8)
    np.savez(tmp_path / "b.npz", features=features, labels=labels)
    assert len(differences(description.agreed, read_site(tmp_path / "b.npz", description).uses)) == 4
    # Without an extractor, a federation takes features from anywhere.
    anywhere = dataclasses.replace(description, extractor={})
    for name in ("a", "b"):
        assert differences(anywhere.agreed, read_site(tmp_path / f"{name}.npz", anywhere).uses) == []
    np.savez(tmp_path / "c.npz", labels=labels)
    with pytest.raises(ValueError, match=r"c.npz: expected features \[n, d\] and labels \[n\]"):
        read_site(tmp_path / "c.npz", description)


def test_a_folder_whose_rounds_close_late_and_hold_strangers_files(tmp_path):
    with Machines(tmp_path / "machines", "fedcof:shrinkage=0.1", deadline=0.3, fewest=2) as machines:
        machines.now = time.time
        folder, said = machines.shared(tmp_path / "shared"), list[str]()
        with pytest.raises(TooFew, match="got 0; missing: berlin, oslo, rome"):
            serve(machines.server(), folder, lambda head: b"head", poll=0.05, say=said.append)
        folder.stop.unlink()
        with pytest.raises(TooFew, match="expected a broadcast within"):
            join(machines.client("rome"), folder, poll=0.05, wait=0.1, say=said.append)
        assert any("expired" in text for text in said)
        # Bad neighbours: a link, a folder, a stranger's bytes, and a newer broadcast that nobody signed.
        (folder.answers(0) / "folder.message").mkdir(parents=True)
        (folder.answers(0) / "link.message").symlink_to(folder.path / "federation.json")
        (folder.answers(0) / "stranger.message").write_bytes(b"hello")
        (folder.answers(0) / "ignored.txt").write_bytes(b"hello")
        with (folder.answers(0) / "large.message").open("wb") as file:  # takes no place on the disk
            file.truncate(2**29)
        folder.ask(7).write_bytes(b"no broadcast")
        folder.end.write_bytes(b"no end")
        results = {}

        def site(name: str) -> None:
            while name not in results:
                # The server tells that it stopped, and is started again.
                with suppress(Stopped):
                    client = machines.client(name)
                    results[name] = join(client, folder, poll=0.02, wait=60, say=said.append)

        threads = [threading.Thread(target=site, args=(name,)) for name in ("berlin", "oslo")]
        for thread in threads:
            thread.start()
        for _ in range(100):
            try:
                serve(machines.server(), folder, lambda head: b"head", poll=0.05, say=said.append)
                break
            except TooFew:
                continue
        for thread in threads:
            thread.join()
        assert results == dict.fromkeys(("berlin", "oslo"), (b"head", None))
        for text in (
            "expected a regular file, got a symbolic link",
            "a folder",
            "expected one of a federation",
            "bytes, got 536870912",
        ):
            assert any(text in line for line in said), (text, said)
