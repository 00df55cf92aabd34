"""DP-FedAvg: uploads are bounded, sums are noisy, and the promise is of all rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree import finetune, secure
from covfree.finetune.per_example import PerExample
from covfree.privacy import private_rounds, private_training, private_updates
from covfree.rounds import Algorithm, ClientData, as_algorithm, run
from covfree.secure import secure_sum

RNG = np.random.default_rng(0)
LABELS, OWNERS = RNG.integers(0, 3, 1200), np.arange(1200) % 60
FEATURES = (RNG.normal(size=(1200, 4)) + 3 * np.eye(3, 4)[LABELS]).astype(np.float32)
HEAD = covfree.LinearHead(jnp.zeros((4, 3)), jnp.zeros(3))


def fedavg():
    return finetune.fedavg(finetune.linear_model(HEAD), client=0.3, weighting="uniform", batch_size=8)


def make(epsilon=8.0, clip=2.0, rounds=5):
    return private_rounds(fedavg(), epsilon=epsilon, delta=1e-5, clip=clip, rounds=rounds)


def accuracy(algorithm, rounds=None):
    head = run(algorithm, FEATURES, LABELS, OWNERS, key=jax.random.key(0), rounds=rounds).result
    return float((np.asarray(head(FEATURES)).argmax(-1) == LABELS).mean())


def norm(tree):
    return float(jnp.sqrt(sum(jnp.square(each).sum() for each in jax.tree.leaves(tree))))


@pytest.mark.parametrize(("scale", "most"), [(1e4, 2.0), (1e-3, 1.01), (1e30, 2.0)])
def test_no_upload_is_longer_than_the_clip(scale, most):
    algorithm, _ = make()
    state, memory = algorithm.init(algorithm.params, 1, jax.random.key(0))
    data = ClientData.own(jnp.asarray(scale * FEATURES[:8]), jnp.asarray(LABELS[:8]))
    sent = algorithm.broadcast(algorithm.params, state)
    upload, _, _ = algorithm.client(algorithm.params, sent, data, memory, jax.random.key(1))
    assert np.isfinite(norm(upload))
    assert norm(upload) <= most * (1 + 1e-6)


@pytest.mark.slow
def test_norms_are_bounded_where_squares_underflow_or_numbers_are_short():
    def sent(upload, clip):
        algorithm = Algorithm(
            (),
            "mean",
            init=lambda p, k, key: ((), ()),
            broadcast=lambda p, s: (),
            client=lambda p, sent, data, memory, key: (upload, (), {}),
            server=lambda p, s, total: s,
            result=lambda p, s, memory: s,
        )
        made, _ = private_rounds(algorithm, epsilon=1.0, delta=1e-6, clip=clip, rounds=1)
        found = made.client(made.params, (), None, (), jax.random.key(0))[0]
        return {name: np.asarray(each, np.float64) for name, each in found.items()}

    def gradient(upload, clip):
        step, one = PerExample(clip, 0.0), jax.tree.map(lambda x: x[None], upload)
        found = step(lambda x, key: (jnp.zeros(()), x), one, jnp.ones(1), jax.random.key(0))[1]
        return {name: np.asarray(each, np.float64) for name, each in found.items()}

    def length(tree):
        return np.sqrt(sum((each**2).sum() for each in tree.values()))

    small = {"a": jnp.full(10_000, 1e-19).at[0].set(2e-19), "b": jnp.full((2, 3), -1e-19)}
    for upload, clip, least in (
        (small, 2.1e-19, 0.999),
        ({"a": jnp.full(4, 3e38)}, 1.0, 0.999),
        *(({"a": jnp.full(1000, 0.3, jnp.bfloat16)}, clip, 0.99) for clip in (0.5, 1.1, 1.7, 2.0)),
        *(({"a": jnp.full(1000, 1e-5, jnp.float16)}, clip, 0.5) for clip in (1e-5, 1e-4, 3e-4)),
    ):
        assert least < length(sent(upload, clip)) / clip <= 1
        if upload["a"].dtype == jnp.float32:
            assert least < length(gradient(upload, clip)) / clip <= 1
    for kept in (small, {"a": jnp.full(9, 0.3, jnp.bfloat16), "b": jnp.zeros(0)}):
        with jax.numpy_dtype_promotion("strict"):
            both = sent(kept, 1.0), gradient(kept, 1.0)
        for found in both:
            jax.tree.map(np.testing.assert_array_equal, found, jax.tree.map(np.float64, kept))


def test_noise_has_the_deviation_that_the_promise_needs():
    algorithm, promise = make(epsilon=1.0, rounds=4)
    deviation = float(algorithm.params.deviation)
    # √4 rounds of the exact Gaussian mechanism at ε = 1, δ = 10⁻⁵, whose multiplier is 3.73.
    assert deviation == pytest.approx(2.0 * 2 * 3.73, rel=0.01)
    assert promise.epsilon == pytest.approx(1.0, rel=1e-6)
    assert promise.unit == "client"
    assert len(promise.releases) == 4
    state, _ = algorithm.init(algorithm.params, 60, jax.random.key(0))
    zero = finetune.averaging.FedAvgUpload(
        jax.tree.map(jnp.zeros_like, state.own.trained), (), jnp.float32(2000.0)
    )
    changes = []
    for number in range(300):
        moved = algorithm.server(algorithm.params, state._replace(round=jnp.int32(number)), zero)
        changes += [np.ravel(each) for each in jax.tree.leaves(moved.own.trained)]
    noise = np.concatenate(changes) * 2000
    assert noise.std() == pytest.approx(deviation, rel=0.05)
    assert abs(noise.mean()) < 4.5 * deviation / np.sqrt(noise.size)


@pytest.mark.slow
def test_accuracy_tends_to_that_without_noise():
    plain = accuracy(fedavg(), rounds=5)
    assert accuracy(make(epsilon=2000.0)[0]) > plain - 0.02
    assert plain > 0.85


def test_one_client_that_is_not_finite_does_not_stop_a_run():
    far = np.where((OWNERS == 3)[:, None], np.float32(3e38), FEATURES)
    training, _ = private_training(fedavg(), epsilon=8.0, delta=1e-5, clip=1.0, rounds=2)
    for algorithm in (make(rounds=2)[0], training):
        found = run(algorithm, far, LABELS, OWNERS, key=jax.random.key(0), rounds=2)
        assert all(np.isfinite(record["loss"]) for record in found.history)
        assert np.isfinite(found.result.weight).all()


@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_promised_is_refused():
    messages = as_algorithm(covfree.fedncm(), num_classes=3)
    algorithm, _ = private_rounds(messages, epsilon=1.0, delta=1e-5, clip=1.0, rounds=1)
    with pytest.raises(ValueError, match="expected one whose uploads are sums of floats"):
        accuracy(algorithm)
    with pytest.raises(ValueError, match="clip: expected"):
        make(clip=0.0)
    with pytest.raises(ValueError, match="rounds: expected"):
        make(rounds=0)
    with pytest.raises(TypeError, match=r"expected a covfree.rounds.Algorithm"):
        private_rounds(covfree.fedncm(), epsilon=1.0, delta=1e-5, clip=1.0, rounds=1)


def updates(**changes):
    options = {"epsilon": 8.0, "delta": 1e-5, "clip": 2.0, "rounds": 4, "honest": 50, "num_clients": 60}
    return private_updates(**options | changes)


def seeded(seed=0):
    return np.random.default_rng(seed).bytes


def test_clients_noise_adds_up_to_the_server_s():
    central = make(epsilon=1.0, rounds=4)[0].params.deviation
    for neighbours, times in (("add_remove", 1), ("replace_one", 2)):
        hidden = updates(epsilon=1.0, neighbours=neighbours)
        assert 0.97 < hidden.promise.epsilon <= 1.0
        assert (hidden.promise.unit, hidden.promise.noise) == ("client", "distributed")
        zeros = {"a": np.zeros((50, 40), np.float32), "b": np.zeros(())}
        total = sum(hidden.encode(zeros, seeded(k)) for k in range(50))
        noise = hidden.decode(total, zeros)["a"]
        # Integers cost 7 % of ε, which the deviation follows.
        assert 0.97 < noise.std() / (times * central) < 1.12
        assert abs(noise.mean()) < 4.5 * noise.std() / np.sqrt(noise.size)


def test_noise_that_is_counted_on_needs_masks_with_all():
    uploads = {client: np.zeros(3, np.float32) for client in range(10)}
    with pytest.raises(ValueError, match=r"neighbours: expected None .* fewer than 6 clients"):
        secure_sum(uploads, updates(honest=6, num_clients=10), neighbours=4)


def test_integers_are_as_long_as_the_grid_allows_and_no_longer():
    hidden = updates()
    for scale, length in ((1e30, 1.0), (1e-3, None), (np.nan, 0.0), (np.inf, 0.0)):
        upload = {"a": scale * RNG.normal(size=300), "b": np.float32(scale)}
        zeros = jax.tree.map(np.zeros_like, upload)
        moved = (hidden.encode(upload, seeded()) - hidden.encode(zeros, seeded())).view(np.int64)
        norm = np.sqrt(float(sum(int(x) ** 2 for x in moved)))
        assert norm <= hidden.bound
        wanted = hidden.bound * length if length is not None else norm
        assert norm == pytest.approx(wanted, abs=20)
        if length is None:
            found = hidden.decode(moved.view(np.uint64), upload)
            np.testing.assert_allclose(found["a"], upload["a"], atol=hidden.clip / hidden.bound)


def test_the_norm_is_bounded_for_numbers_whose_squares_are_not_floats():
    for clip in (1e-300, 1e-170, 1.0, 1e300):
        hidden, zeros = updates(clip=clip), np.zeros(300)
        for value in (1e308, 1e200, 1e-170, 1e-299):
            both = hidden.encode(zeros + value, seeded()), hidden.encode(zeros, seeded())
            moved = (both[0] - both[1]).view(np.int64)
            norm = np.sqrt(float(sum(int(x) ** 2 for x in moved)))
            assert norm == pytest.approx(hidden.bound * min(1, value / clip * 300**0.5), abs=20)


@pytest.mark.slow
def test_training_within_masks_is_training_with_the_server_s_noise():
    data, options = (FEATURES, LABELS, OWNERS), {"key": jax.random.key(0), "rounds": 3}
    plain = run(fedavg(), *data, **options).result
    little = updates(epsilon=1e6, rounds=3)
    hidden = secure.run_securely(fedavg(), *data, little, **options)
    np.testing.assert_allclose(hidden.weight, plain.weight, atol=0.02)
    with pytest.raises(ValueError, match="rounds: expected at most 2, for which the promise holds, got 3"):
        secure.run_securely(fedavg(), *data, updates(rounds=2), **options)


def test_no_sum_is_opened_with_less_noise_than_is_promised():
    uploads = {client: np.zeros(2, np.float32) for client in range(5)}
    hidden = updates(honest=4, num_clients=5)
    assert secure.secure_sum(uploads, hidden, leaves={0: "mask"}).came == [1, 2, 3, 4]
    with pytest.raises(secure.Refused, match="expected at least 4"):
        secure.secure_sum(uploads, hidden, leaves={0: "mask", 1: "mask"})
    with pytest.raises(ValueError, match="least: expected at least 4 clients, as point asks for, got 3"):
        secure.secure_sum(uploads, hidden, least=3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clip": 0.0}, "clip"),
        ({"num_clients": 2**60}, "num_clients: expected fewer; .* 2 steps up to the clip"),
        ({"honest": 61}, "honest: expected at most the 60 clients, got 61"),
        ({"epsilon": 1e-5}, "epsilon: expected a larger one"),
        ({"neighbours": "others"}, "neighbours"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_updates_that_promise_nothing_are_errors(changes, why):
    with pytest.raises(ValueError, match=why):
        updates(**changes)
    with pytest.raises(ValueError, match="upload: expected floats alone, got int32"):
        updates().encode({"n": np.int32(3)})
