"""Secure sums: bit for bit the plain sum of those who stayed, or nothing, whoever leaves or lies when."""

import hashlib
import hmac
from itertools import combinations, combinations_with_replacement
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from variants import slow

import covfree
from covfree import finetune, secure
from covfree.rounds import as_algorithm, run
from covfree.secure import FixedPoint, Refused, Session, shamir
from covfree.secure.client import pair_key
from covfree.secure.words import mask

rng = np.random.default_rng(0)
IDENTITIES = {number: Ed25519PrivateKey.generate() for number in range(6)}
UPLOADS = {number: rng.integers(0, 2**64, 4, np.uint64) for number in IDENTITIES}


def session(name="one", **other) -> Session:
    public = {number: key.public_key().public_bytes_raw() for number, key in IDENTITIES.items()}
    return Session(**({"name": name, "identities": public, "size": 4, "threshold": 3, "least": 3} | other))


def parties(of=None):
    """A server and six clients that have advertised."""
    of = of or session()
    server, clients = secure.Server(of), {n: secure.Client(of, n, key) for n, key in IDENTITIES.items()}
    for client in clients.values():
        server.take_advert(client.advertise())
    return server, clients


def shared(server, clients):
    for number, client in clients.items():
        server.take_shares(number, client.share(server.adverts_for(number)))
    return server, clients


def masked(server, clients, among=range(6)):
    for number in among:
        server.take_upload(clients[number].mask(server.shares_for(number), UPLOADS[number]))
    return server, clients


def stayed(leaves: dict[int, str]) -> list[int] | None:
    """Whose sum is known if clients leave before these steps; None for nobody's. t = 3 of 5 neighbours."""
    steps = (*secure.STEPS, "never")
    there = [[n for n in range(6) if steps.index(leaves[n]) > at] for at in range(5)]
    # From the second step on, each needs three others of those in the step before.
    return there[2] if len(there[4]) >= 4 else None


def opened(server, clients, among=None):
    """What clients open after all whose uploads came have agreed on them."""
    came = server.came()
    for number in came:
        server.take_agreed(clients[number].agree(came))
    return {number: clients[number].unmask(server.agreed) for number in among or came}


# A third of the 462 patterns, or all.
@pytest.mark.parametrize("every", [3, *slow(1)])
def test_every_pattern_of_leaving(every):
    point = FixedPoint(1e6, 6)
    uploads = {n: {"a": rng.normal(size=3) * 1e5, "n": np.array(n)} for n in range(6)}
    for steps in [*combinations_with_replacement((*secure.STEPS, "never"), 6)][::every]:
        leaves = dict(zip(rng.permutation(6).tolist(), steps, strict=True))
        came = stayed(leaves)
        gone = {n: step for n, step in leaves.items() if step != "never"}
        if came is None:
            with pytest.raises(Refused):
                secure.secure_sum(uploads, point, leaves=gone)
            continue
        total, found = secure.secure_sum(uploads, point, leaves=gone)
        assert found == came
        plain = point.decode(sum(point.encode(uploads[n]) for n in came), uploads[0])
        assert jax.tree.all(jax.tree.map(np.array_equal, total, plain))


def test_the_sum_is_modulo_2_to_the_64_and_the_graph_may_be_sparse():
    uploads = {n: rng.integers(0, 2**64, 5, np.uint64) for n in range(12)}
    keys = {n: Ed25519PrivateKey.generate() for n in uploads}
    public = {n: key.public_key().public_bytes_raw() for n, key in keys.items()}
    of = Session("sparse", public, size=5, threshold=3, least=6, neighbours=4, seed=7)
    pairs = {(a, b) for a in uploads for b in of.neighbours_of(a)}
    assert all(len(of.neighbours_of(n)) == 4 for n in uploads)
    assert pairs == {(b, a) for a, b in pairs}
    server, clients = secure.Server(of), {n: secure.Client(of, n, key) for n, key in keys.items()}
    for client in clients.values():
        server.take_advert(client.advertise())
    shared(server, clients)
    came = sorted(set(uploads) - {of.neighbours_of(0)[0]})
    for n in came:
        server.take_upload(clients[n].mask(server.shares_for(n), uploads[n]))
    assert server.came() == came
    for each in opened(server, clients).values():
        server.take_opened(each)
    np.testing.assert_array_equal(server.total(), sum(uploads[n] for n in came))


def test_a_client_opens_nothing_that_would_show_its_upload():
    server, clients = shared(*parties())
    masked(server, clients, range(5))
    came = server.came()
    for number, asked, why in (
        (4, [0, 1, 2, 3], "expected this client, 4"),
        (3, [2, 3], "at least 3 clients, got 2"),
        (2, [*came, 77], "clients of the session"),
        (5, came, "agree: expected once, in its order; the last step was share"),
    ):
        with pytest.raises(Refused, match=why):
            clients[number].agree(asked)
    server, clients = masked(*shared(*parties()), among=range(5))
    own = opened(server, clients, [0])[0]
    assert (set(own.seeds), set(own.keys)) == ({1, 2, 3, 4}, {5})
    # Nor does it say anything after an answer or a refusal.
    with pytest.raises(Refused, match="unmask: expected once"):
        clients[0].unmask(server.agreed)
    forged = server.agreed[0]._replace(sender=1)
    with pytest.raises(Refused, match="agreed: expected at least 4 clients that were told of the same"):
        clients[1].unmask([*server.agreed[:1], forged, forged, *server.agreed[2:4]])
    with pytest.raises(Refused, match="unmask: expected once"):
        clients[1].unmask(server.agreed)
    # Nor does it send its upload again, under the same masks.
    with pytest.raises(Refused, match="mask: expected once"):
        clients[1].mask([], UPLOADS[1] + np.uint64(1))


def test_an_error_or_the_last_step_ends_a_client_and_its_secrets():
    def secrets_of(client):
        return client._sealing.private_bytes_raw(), client._masking.private_bytes_raw()

    server, clients = parties()
    refusing, before = clients[0], secrets_of(clients[0])
    adverts = server.adverts_for(0)
    with pytest.raises(Refused, match="expected one of client"):
        refusing.share([*adverts, adverts[0]])
    with pytest.raises(Refused, match="after which the client has ended"):
        refusing.mask([], UPLOADS[0])
    server, clients = masked(*shared(*parties()))
    failing, last = clients[0], secrets_of(clients[0])
    with pytest.raises(TypeError):
        failing.agree(None)
    with pytest.raises(Refused, match="after which the client has ended"):
        failing.agree(server.came())
    for client in (refusing, failing):
        assert all(key.hex() not in client.saved().decode() for key in (*before, *last))
    assert secure.Client.restored(session(), 0, IDENTITIES[0], failing.saved())._seed == b""


def test_a_client_takes_shares_of_its_neighbours_in_this_session_alone():
    server, _ = shared(*parties())
    foreign, _ = shared(*parties(session("another")))
    for own in (
        foreign.shares_for(0),
        [*server.shares_for(0), server.shares_for(0)[0]],
        server.shares_for(1),
        [each._replace(box=each.box[:-1] + b"x") for each in server.shares_for(0)],
        server.shares_for(0)[:2],
    ):
        victim = parties()[1][0]
        victim.share(server.adverts_for(0))
        with pytest.raises(Refused):
            victim.mask(own, UPLOADS[0])


def test_keys_are_those_of_the_session_s_clients():
    server, clients = parties()
    adverts = server.adverts_for(0)
    stranger = Ed25519PrivateKey.generate()
    with pytest.raises(ValueError, match="identity: expected the key of client 0"):
        secure.Client(session(), 0, stranger)
    for wrong in (
        adverts[0]._replace(masking=adverts[1].masking),
        adverts[0]._replace(sender=2),
        parties(session("another"))[0].adverts_for(0)[0],
    ):
        with pytest.raises(Refused, match="signature"):
            clients[0].share([wrong, *adverts[1:]])
        with pytest.raises(Refused, match=r"signature|another"):
            secure.Server(session()).take_advert(wrong)
        clients[0] = secure.Client(session(), 0, IDENTITIES[0])
        clients[0].advertise()
    # A key with which nobody can make a secret is signed well, but would stop all who use it.
    null = secure.Client(session(), 1, IDENTITIES[1])
    public = SimpleNamespace(public_bytes_raw=lambda: bytes(32))
    null._masking = SimpleNamespace(public_key=lambda: public)
    with pytest.raises(Refused, match="expected X25519 keys that give a shared secret"):
        secure.Server(session()).take_advert(null.advertise())
    with pytest.raises(Refused, match="got two"):
        clients[0].share([adverts[0], *adverts])
    with pytest.raises(Refused, match="at least 3 neighbours that advertised, got 2"):
        parties()[1][0].share(adverts[:2])


def test_a_client_that_lies_stops_the_sum_and_learns_nothing():
    server, clients = masked(*shared(*parties()), among=range(5))
    came = server.came()
    given = [*opened(server, clients).values()]
    lies = [own._replace(seeds={n: bytes(33) for n in own.seeds}) for own in given]
    for each in (lies[0], *given[1:]):
        server.take_opened(each)
    # Shares are more than t = 3, so one who lies is passed over; two are too many.
    np.testing.assert_array_equal(server.total(), sum(UPLOADS[n] for n in range(5)))
    other, clients = masked(*shared(*parties()), among=range(5))
    two = [*opened(other, clients).values()]
    for n in (0, 2):
        two[n] = two[n]._replace(seeds=lies[n].seeds)
    for each in two:
        other.take_opened(each)
    with pytest.raises(Refused, match=r"shares: those of client . do not give the secret"):
        other.total()
    with pytest.raises(Refused, match="got another"):
        server.take_opened(given[0])
    # Shares of other secrets fit together, but neither the commitment nor the public key.
    for kind, owner, why in (("seeds", 0, "client 0 do not give"), ("keys", 5, "client 5 do not give")):
        other, clients = masked(*shared(*parties()), among=range(5))
        forged = shamir.split(bytes(range(32)), 3, range(6))
        for n, own in opened(other, clients).items():
            shares = getattr(own, kind)
            if owner in shares:
                own = own._replace(**{kind: {**shares, owner: forged[n]}})
            other.take_opened(own)
        with pytest.raises(Refused, match=why):
            other.total()
    with pytest.raises(Refused, match="got another"):
        server.take_upload(secure.Masked(1, UPLOADS[1]))
    with pytest.raises(Refused, match="had shared, got 9"):
        server.take_upload(secure.Masked(9, UPLOADS[1]))
    with pytest.raises(Refused, match="had agreed, got 5"):
        server.take_opened(secure.Opened(5, {}, {}))
    other, clients = masked(*shared(*parties()), among=range(5))
    with pytest.raises(Refused, match="sent its upload, got 5"):
        other.take_agreed(secure.Agreed(5, bytes(64)))
    with pytest.raises(Refused, match="the signature of client 1 is wrong"):
        other.take_agreed(secure.Agreed(1, clients[0].agree(came).signature))


def test_a_server_that_lies_to_each_client_opens_no_part_of_the_sum():
    # Told of different uploads, clients would open the key of 5 too, whose upload came.
    _, clients = masked(*shared(*parties()))
    told = {n: [0, 1, 2, 3, 4] if n < 3 else [0, 1, 2, 3, 4, 5] for n in clients}
    agreed = [clients[n].agree(told[n]) for n in clients if n in told[n]]
    for n in clients:
        with pytest.raises(Refused, match="expected at least 4 clients that were told of the same"):
            clients[n].unmask(agreed)


def test_a_masked_upload_has_the_bits_of_coins():
    of = session(size=20_000)
    server, clients = shared(*parties(of))
    zeros = np.zeros(20_000, np.uint64)
    sent = clients[0].mask(server.shares_for(0), zeros).words
    bits = np.unpackbits(sent.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


@pytest.mark.parametrize("threshold", [1, 2, 3, 5])
def test_shares(threshold):
    secret = bytes(range(224, 256))
    shares = shamir.split(secret, threshold, [0, 3, 5, 8, 9])
    for some in combinations(shares, threshold):
        assert shamir.rebuild({n: shares[n] for n in some}) == secret
    # Fewer fit any other secret: there is a share of the next holder with which they rebuild it.
    few = list(shares)[: threshold - 1]
    places, wanted = [0, *(n + 1 for n in few)], [123, *(int.from_bytes(shares[n], "big") for n in few)]
    at, value = 8 + 1, 0
    for x, y in zip(places, wanted, strict=True):
        for other in places:
            if other != x:
                y = y * (at - other) * pow(x - other, -1, shamir.PRIME) % shamir.PRIME
        value += y
    if 8 not in few:
        forged = {**{n: shares[n] for n in few}, 8: (value % shamir.PRIME).to_bytes(33, "big")}
        assert shamir.rebuild(forged) == (123).to_bytes(32, "big")


def test_published_vectors():
    # RFC 8439, A.1, vector 1: ChaCha20's stream of zeros.
    stream = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert mask(bytes(32), 4).astype("<u8").tobytes().hex() == stream
    # RFC 7748, 6.1: Bob's private key and Alice's public one; then HKDF (RFC 5869) by HMAC alone.
    private = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
    public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    common = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    of, label = session(), session().label("mask", 1, 4)
    extracted = hmac.digest(bytes(32), bytes.fromhex(common), hashlib.sha256)
    bob = X25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    for pair in ((1, 4), (4, 1)):
        key = pair_key(of, "mask", bob, bytes.fromhex(public), *pair)
        assert key == hmac.digest(extracted, label + b"\x01", hashlib.sha256)


def test_the_largest_uploads_do_not_wrap():
    for clients in (1, 3, 1000):
        point = FixedPoint(1e5, clients)
        for sign in (-1, 1):
            word = point.encode(np.array([sign * 1e5]))
            total = word * np.uint64(clients)
            np.testing.assert_allclose(point.decode(total, np.zeros(1)), sign * 1e5 * clients, rtol=1e-12)
    numbers = rng.normal(size=50).astype(np.float32)
    point = FixedPoint(10.0, 8)
    again = point.decode(point.encode({"x": numbers, "n": np.arange(3)}), {"x": numbers, "n": np.arange(3)})
    np.testing.assert_allclose(again["x"], numbers, atol=2.0**-point.bits)
    assert again["n"].dtype == np.arange(3).dtype
    for wrong in (np.nan, np.inf, -10.1):
        with pytest.raises(
            ValueError,
            match="upload: expected numbers of at most 10, the bound on which all clients agreed, got",
        ):
            point.encode([1.0, wrong])
    wide = FixedPoint(2.0**53, 3)
    for array in (np.full(2, 2**30, np.int32), np.full(2, 200, np.uint8), np.full(2, 6e4, np.float16)):
        with pytest.raises(ValueError, match=f"total: expected sums within {array.dtype}, got"):
            secure.secure_sum({k: array for k in range(3)}, wide)
    for array, why in ((np.ones(2, bool), "got bool"), (np.full(2, 2**53 + 1), "below 2")):
        with pytest.raises((TypeError, ValueError), match=f"upload: expected integers .*{why}"):
            wide.encode(array)
    for count in range(3):  # Each of two clients would learn the other's upload.
        with pytest.raises(ValueError, match=f"uploads: expected at least 3, as each of two .*, got {count}"):
            secure.secure_sum({k: np.ones(2) for k in range(count)}, wide)
        with pytest.raises(ValueError, match=f"identities: expected at least 3, .*, got {count}"):
            session(identities=dict.fromkeys(range(count), bytes(32)))
    for last in (np.ones(3), np.ones(2, int)):
        with pytest.raises(ValueError, match="uploads: expected one structure, shapes and data types, got 2"):
            secure.secure_sum({0: np.ones(2), 1: np.ones(2), 2: last}, wide)
    for leaves in ({7: "mask"}, {0: "sleep"}):
        with pytest.raises(ValueError, match="leaves: expected clients' steps"):
            secure.secure_sum(dict.fromkeys(range(3), numbers), point, leaves=leaves)
    for bad in ({"bound": 0.0}, {"bound": np.inf}, {"bound": 2.0**60}, {"num_clients": 0}):
        with pytest.raises(ValueError, match=r"bound: |num_clients: "):
            FixedPoint(**({"bound": 1.0, "num_clients": 4} | bad))
    for bad in ({"bound": "x"}, {"bound": 10**400}, {"num_clients": 2.5}):
        with pytest.raises(TypeError, match=f"{next(iter(bad))}: expected"):
            FixedPoint(**({"bound": 1.0, "num_clients": 4} | bad))
    for bad in ({"threshold": 2}, {"threshold": 6}, {"least": 1}, {"neighbours": 3}, {"neighbours": 9}):
        with pytest.raises(ValueError, match=rf"{next(iter(bad))}: expected"):
            session(**bad)


LABELS, CLIENTS = rng.integers(0, 3, 80), rng.integers(0, 4, 80)
FEATURES = (rng.normal(size=(80, 5)) + 2 * np.eye(3, 5)[LABELS]).astype(np.float32)


# That Fed3R's sums are kept too: tests/deployment/test_sums.py.
@pytest.mark.slow
def test_algorithms_give_what_they_give_without_masks():
    model = finetune.linear_model(covfree.LinearHead(jnp.zeros((5, 3)), jnp.zeros(3)))
    for algorithm, rounds in (
        (as_algorithm(covfree.fedcof(0.1), num_classes=3, uploads="sums"), None),
        (as_algorithm(covfree.refined(covfree.fedcof(0.1), 2), num_classes=3, uploads="sums"), None),
        (as_algorithm(covfree.corrected(covfree.fedcof(0.1), 2), num_classes=3, uploads="sums"), None),
        (finetune.fedavg(model, 0.1, batch_size=8), 2),
    ):
        data = (algorithm, FEATURES, LABELS, CLIENTS)
        plain = run(*data, key=jax.random.key(0), rounds=rounds).result
        hidden = secure.run_securely(*data, 1e6, key=jax.random.key(0), rounds=rounds)
        for one, other in zip(jax.tree.leaves(hidden), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    # Padding takes no part, and labels are checked, as in memory.
    some = (as_algorithm(covfree.fedncm(), num_classes=3, uploads="sums"), FEATURES)
    padded = np.where(np.arange(80) % 3 == 0, -1, LABELS)
    hidden = secure.run_securely(*some, padded, CLIENTS, 1e6, key=jax.random.key(0))
    np.testing.assert_allclose(
        hidden.weight, run(*some, padded, CLIENTS, key=jax.random.key(0)).result.weight
    )
    for wrong in ((LABELS + 5, CLIENTS), (LABELS[:-1], CLIENTS), (LABELS, np.full(80, -1))):
        with pytest.raises(ValueError, match=r"labels|clients"):
            secure.run_securely(*some, *wrong, 1e6, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"clients: expected at least 3, .*, got 2"):
        secure.run_securely(*some, LABELS, CLIENTS % 2, 1e6, key=jax.random.key(0))
    with pytest.raises(TypeError, match="bound: expected a number, got None"):
        secure.run_securely(*some, LABELS, CLIENTS, None, key=jax.random.key(0))  # type: ignore
    rows = as_algorithm(covfree.fedcof(0.1), num_classes=3)
    with pytest.raises(ValueError, match="expected uploads that are sums"):
        secure.run_securely(rows, FEATURES, LABELS, CLIENTS, 1e6, key=jax.random.key(0))


@pytest.mark.slow
def test_classes_of_few_clients_are_left_out_of_sums():
    # Class 2 is client 0's and client 1's alone; class 1 is held by three, and class 3 by nobody.
    labels = np.where((LABELS == 2) & (CLIENTS > 1), 0, LABELS)
    labels = np.where((labels == 1) & (CLIENTS == 3), 0, labels)
    for method in (covfree.fedcof(0.1), covfree.fed3r()):
        sums = secure.common_classes(as_algorithm(method, num_classes=4, uploads="sums"), 3)
        hidden = secure.run_securely(sums, FEATURES, labels, CLIENTS, 1e6, key=jax.random.key(0))
        kept = np.where(labels == 2, -1, labels)
        plain = covfree.fit(method, FEATURES, kept, CLIENTS, num_classes=4)
        for one, other in zip(jax.tree.leaves(hidden), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        simulated = run(sums, FEATURES, labels, CLIENTS, key=jax.random.key(0)).result
        np.testing.assert_allclose(simulated.weight, plain.weight, rtol=1e-4, atol=1e-5)
        assert set(np.asarray(hidden(FEATURES)).argmax(-1).tolist()) <= {0, 1}
    many = secure.common_classes(as_algorithm(method, num_classes=4, uploads="sums"), 100)
    for learn in (lambda: secure.run_securely(many, FEATURES, labels, CLIENTS, 1e6, key=jax.random.key(0)),
                  lambda: run(many, FEATURES, labels, CLIENTS, key=jax.random.key(0))):  # fmt: skip
        with pytest.raises(
            ValueError, match="no class is held by 100 clients or more: nothing is left to learn"
        ):
            learn()
    with pytest.raises(ValueError, match="holders: expected at least 3 clients, got 2"):
        secure.common_classes(sums, 2)
    model = finetune.linear_model(covfree.LinearHead(jnp.zeros((5, 3)), jnp.zeros(3)))
    with pytest.raises(ValueError, match="algorithm: expected sums of a method's classes, got 'fedavg'"):
        secure.common_classes(finetune.fedavg(model), 3)


def test_means_of_groups_are_those_of_clients_that_hold_a_group_s_examples():
    clients = np.arange(80) % 6
    messages = {
        k: covfree.client_message(
            covfree.fedcof(), FEATURES[k == clients], LABELS[k == clients], num_classes=4
        )
        for k in range(6)
    }
    message = secure.group_means(messages, 3, 1e4, num_classes=4, key=jax.random.key(0))
    order = jax.random.permutation(jax.random.key(0), np.arange(6))
    group_of = np.argsort(np.asarray(order)) // 3
    expected = covfree.summarise(covfree.fedcof(), FEATURES, LABELS, group_of[clients])
    for rows in (message.rows, expected):
        assert set(zip(rows.client.tolist(), rows.label.tolist(), strict=True)) >= {(0, 0), (1, 2)}

    def key(rows):
        return np.lexsort((np.asarray(rows.label), np.asarray(rows.client)))

    used = np.asarray(expected.count) > 0
    found, wanted = message.rows, jax.tree.map(lambda leaf: np.asarray(leaf)[used], expected)
    for name in ("mean", "count", "label", "client"):
        one, other = (np.asarray(getattr(rows, name))[key(rows)] for rows in (found, wanted))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="size: expected at most 6 clients, got 7"):
        secure.group_means(messages, 7, 1e4, num_classes=4, key=jax.random.key(0))
    with pytest.raises(ValueError, match="size: expected an integer"):
        secure.group_means(messages, 2, 1e4, num_classes=4, key=jax.random.key(0))
    with pytest.raises(ValueError, match="messages: expected labels below num_classes=2, got 2"):
        secure.group_means(messages, 3, 1e4, num_classes=2, key=jax.random.key(0))
    gram = {0: covfree.client_message(covfree.fed3r(), FEATURES, LABELS, num_classes=4)}
    with pytest.raises(ValueError, match="expected class means and counts alone"):
        secure.group_means({**messages, **gram}, 3, 1e4, num_classes=4, key=jax.random.key(0))
