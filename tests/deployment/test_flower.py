"""examples/flower with real processes of Flower, TLS and authentication of nodes, killed in between.

Skipped without flwr, which pins releases of what covfree needs too: an environment of its own has both.
"""

import os

import numpy as np
import pytest
from flower_nodes import INSTALLED, Flower
from machines import SIZES, Machines, assert_equal, examples, leaves, simulated

import covfree
import covfree.rounds
from covfree.deployment import Description, SecureSums, Server, load_key, load_network, load_site, new_key
from covfree.deployment.site import extractor_of

pytestmark = pytest.mark.skipif(not INSTALLED, reason="flwr is not installed")


@pytest.mark.parametrize(
    ("algorithm", "rounds", "killed", "sums"),
    [
        ("fedcof", None, False, None),
        ("fedcof-refined:rounds=3", None, True, None),
        ("fedadam", 3, False, None),
        ("fedcof:shrinkage=0.1", None, True, SecureSums(1e6, holders=3)),
    ],
)
def test_rounds_over_flower_give_the_simulation(algorithm, rounds, killed, sums, tmp_path):
    """To the bit, or as near as secure sums' fixed point is."""
    with Machines(tmp_path, algorithm, rounds=rounds, fewest=3, extractor={}, sums=sums) as machines:
        own = machines.description
    own.save(tmp_path / "federation.json")
    for site in SIZES:
        features, labels = examples(site)
        np.savez(tmp_path / f"{site}.npz", features=features, labels=labels)
    with Flower(tmp_path, {site: {"features": f"{tmp_path}/{site}.npz"} for site in SIZES}) as flower:
        flower.run("first")
        if killed:
            # A node is killed in the first round, and the SuperLink, with the server's app, in the second.
            flower.wait_for(tmp_path / "server" / "round-00000" / "server.message")
            flower.kill("rome")
            flower.supernode("rome")
            flower.wait_for(tmp_path / "server" / "round-00001" / "berlin.message")
            flower.kill("superlink")
            flower.kill("first")
            flower.superlink()
            flower.run("second")
        flower.wait_for(tmp_path / "head.npz")
    expected = simulated(own, SIZES).result
    head = covfree.load_head(tmp_path / "head.npz").head
    near = 0.0 if sums is None else 1e-4
    np.testing.assert_allclose(np.asarray(head.weight), np.asarray(expected.weight), near, near)
    with Server(own, tmp_path / "server", load_key(tmp_path / "server.key")) as server:
        turns = own.num_rounds * len(own.steps)
        assert [len(record["sites"]) for record in server.history] == [len(SIZES)] * turns


def test_a_network_trained_over_flower_is_the_simulation_s(tmp_path):
    """From images, with weights that the environment names: EFFICIENTNET_LITE0=FILE."""
    weights = os.environ.get("EFFICIENTNET_LITE0") or pytest.skip("EFFICIENTNET_LITE0 names no weights")
    image, names, sites = pytest.importorskip("PIL.Image"), ("blue", "dark", "grey"), ("berlin", "oslo")
    rng = np.random.default_rng(0)
    for site, i in [(site, i) for site in sites for i in range(6)]:
        path = tmp_path / "photos" / site / names[i % 3] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray((rng.integers(0, 60, (64, 64, 3)) + 60 * (i % 3)).astype(np.uint8)).save(path)
    keys = {name: new_key(tmp_path / f"{name}.key") for name in ("server", *sites)}
    own = Description(
        "fedadam", names, 1280, {site: keys[site] for site in sites}, keys["server"],
        extractor_of("efficientnet-lite0", weights), rounds=2, max_examples=6, train="all",
    )  # fmt: skip
    own.save(tmp_path / "federation.json")
    nodes = {site: {"images": f"{tmp_path}/photos/{site}", "weights": weights} for site in sites}
    with Flower(tmp_path, nodes, weights) as flower:
        flower.run("first")
        flower.wait_for(tmp_path / "head.npz")
    network = load_network(own, weights)
    parts = [load_site(own, site, tmp_path, **nodes[site])[0] for site in sites]
    features, labels = (np.concatenate([part[i] for part in parts]) for i in range(2))
    algorithm, clients = own.make_algorithm(network), np.repeat(np.arange(2), 6)
    expected = covfree.rounds.run(algorithm, features, labels, clients, key=own.key(), rounds=2).result
    trained = covfree.load_head(tmp_path / "head.npz", network=network).head
    assert_equal(trained, expected)
    moved = map(np.array_equal, leaves(trained.feature_map.params), leaves(network.params))
    assert sum(moved) < 200  # the rest is statistics, which stay
