"""Noise inside the masks between machines: the sum of all sites' shares of it, drawn once for each answer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machines import CLASSES, DIM, MORE, Machines, assert_equal, examples, finish, padded

import covfree
from covfree import finetune
from covfree.deployment import PrivateSums, SecureSums
from covfree.deployment.envelope import unseal
from covfree.deployment.steps import Steps
from covfree.rounds import run

PROMISE = PrivateSums(300.0, 1e-5, clip=6.0)


def make(folder, algorithm="fedcof", promise=PROMISE, **fields):
    own = {"sums": SecureSums(), "private": promise, "fewest": 4, **fields}
    return Machines(folder, algorithm, MORE, **own)


@pytest.mark.parametrize(("algorithm", "rounds"), [("fedncm", 1), ("fedcof", 2)])
def test_the_head_is_of_sums_with_the_noise_of_those_that_came(algorithm, rounds, tmp_path):
    promise = dataclasses.replace(PROMISE, projection=6 if rounds == 2 else None)
    with make(tmp_path, algorithm, promise) as machines:
        server, clients = machines.server(), machines.clients()
        made = machines.description.noised
        assert machines.description.num_rounds == rounds
        assert made.promise.epsilon <= 300
        assert (made.promise.noise, made.promise.honest) == ("distributed", 4)
        # One leaves before its first upload: the noise is that of the others.
        for turn in range(5):
            asked = server.open()
            for site, client in clients.items():
                if turn < 2 or site != "wien":
                    assert server.take(client.answer(asked)).reason is None
            server.close()
        clients.pop("wien")
        # Killed between the rounds, the server goes on with integers of 64 bits.
        server = machines.server()
        head = finish(server, clients)
        state, grid = server._state, made.grids[0]["sums"]
        assert state.noises.tolist() == [4] * rounds
        mapped = made.method.mapped
        plain = sum(
            grid.upload(np.asarray(mapped(x), np.float64), y, CLASSES).values
            for x, y in map(examples, clients)
        )
        noise = (state.first - plain).ravel()
        assert abs(noise.std() / (2 * 2.0**grid.log_deviation) - 1) < 5 / np.sqrt(2 * noise.size)
        # Behind a projection, too, it is a linear head on the features as they are, which a file can hold.
        assert head.weight.shape == (DIM, CLASSES)
        features, labels = (np.concatenate(part) for part in zip(*map(examples, MORE), strict=True))
        assert (np.asarray(head(features)).argmax(-1) == labels).mean() > 0.7


def test_a_site_draws_its_noise_once(tmp_path):
    with make(tmp_path) as machines:
        server, clients = machines.server(), machines.clients()
        for _ in range(2):
            asked = server.open()
            for client in clients.values():
                server.take(client.answer(asked))
            server.close()
        asked = server.open()
        first = clients["rome"].answer(asked)
        assert machines.client("rome").answer(asked) == first
        assert set(unseal(first, machines.description.sites).arrays) == {"words"}


def test_training_is_private_for_sites_inside_the_masks(tmp_path):
    promise = PrivateSums(1e6, 1e-5, clip=9.0, unit="client")
    with make(tmp_path, "fedavg", promise, rounds=2) as machines:
        own = machines.description
        assert own.promise.epsilon <= 1e6
        assert (own.promise.noise, own.promise.honest, len(own.promise.releases)) == ("distributed", 4, 2)
        head = finish(machines.server(), machines.clients())
        features, labels = (np.concatenate(part) for part in zip(*map(examples, MORE), strict=True))
        owners = np.repeat(np.arange(len(MORE)), list(MORE.values()))
        # Sites weigh the same, as their weight is a part of what is clipped.
        start = covfree.LinearHead(jnp.zeros((DIM, CLASSES)), jnp.zeros(CLASSES))
        plain = finetune.fedavg(finetune.linear_model(start), 0.1, weighting="uniform")
        simulated = run(plain, features, labels, owners, key=own.key(), rounds=2).result
        # The noise, the system's own, has a standard deviation of 0.004.
        np.testing.assert_allclose(head.weight, simulated.weight, atol=0.03)
        np.testing.assert_allclose(head.bias, simulated.bias, atol=0.03)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"sums": None}, "private: expected sums beside it"),
        ({"algorithm": "fedadam", "rounds": 2, "promise": PrivateSums(9.0, 1e-5, clip=1.0, unit="client")},
         "clip: expected above 1, as an upload includes the site's weight, 1; got 1.0"),
        ({"sums": SecureSums(neighbours=2)}, "neighbours: expected None with private"),
        ({"sums": SecureSums(holders=3)}, "holders: expected None with private, whose noise hides each site"),
        ({"algorithm": "fedadam", "rounds": 2}, "private: expected unit=client"),
        ({"promise": PrivateSums(1.0, 1e-5, clip=6.0, honest=5)}, "honest: expected at most fewest = "),
        ({"fewest": 1}, "fewest: expected at least 2 with private"),
        ({"promise": PrivateSums(9.0, 1e-5, clip=6.0, projection=99)}, "projection: expected at most the"),
        ({"judge_sites": True}, "judge_sites: expected an algorithm whose sites send class means"),
        ({"algorithm": "qda-means"}, "method: expected one whose head"),
    ],
)  # fmt: skip
def test_what_promises_nothing_is_an_error(fields, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        make(tmp_path, **fields)


def test_no_error_tells_whether_a_private_site_has_examples(tmp_path):
    """A broadcast whose training overflows is an error elsewhere; here the site answers, and forgets it."""
    with Machines(tmp_path, "scaffold", rounds=2, extractor={}) as machines:
        own = machines.description
        given = own.make_algorithm(), len(own.sites), own.key(), own.example, own.max_examples
        steps = Steps(*given)
        state, memory = steps.start()
        sent = jax.tree.map(lambda x: (x * 0 + 3e38).astype(x.dtype), steps.broadcast(state))
        with pytest.raises(ValueError, match="memory: expected finite numbers"):
            steps.upload(0, 0, sent, memory, *padded("rome"))
        _, after = Steps(*given, private=True).upload(0, 0, sent, memory, *padded("rome"))
        assert_equal(after, memory)
