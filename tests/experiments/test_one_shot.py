"""One-shot learning in miniature: three clients with the digits, of 8 by 8 pixels."""

import json
from dataclasses import replace
from functools import partial

import idx_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covfree.data import load_digits
from covfree.data.partitions import dirichlet

pytestmark = pytest.mark.slow
CLIENTS = 3
EPOCHS = 30


class Digits:
    """Digits, the clients' networks, and what they answer on the test images."""

    def __init__(self):
        from baselines import local_training
        from baselines.cnn import CNN, cnn_model, new_variables
        from baselines.idx import Images

        data = load_digits(seed=0)
        as_images = [
            (x.reshape(-1, 8, 8, 1) * 255).astype(np.uint8) for x in (data.train_features, data.test_features)
        ]
        self.train = Images(as_images[0], np.asarray(data.train_labels, np.int32))
        self.test = Images(as_images[1], np.asarray(data.test_labels, np.int32))
        self.clients = dirichlet(self.train.labels, CLIENTS, 0.5, min_partition_size=100, seed=0)
        self.cnn = CNN(widths=(8, 16))
        start = new_variables(self.cnn, (8, 8, 1), jax.random.key(0))
        self.model = cnn_model(self.cnn, start)
        self.members = local_training.train_clients(
            self.model, self.train, self.clients, epochs=EPOCHS, key=jax.random.key(1)
        )

    def predictions(self, variables):
        from baselines.cnn import applied

        return applied(self.cnn, variables, self.test.images)

    @property
    def member_logits(self):
        each = [jax.tree.map(lambda x, i=i: x[i], self.members) for i in range(CLIENTS)]
        return np.stack([self.predictions(variables) for variables in each])

    def accuracy(self, logits):
        return (logits.argmax(1) == self.test.labels).mean()


@pytest.fixture(scope="module")
def digits():
    return Digits()


def test_the_ensemble_knows_more_than_its_members(digits):
    each = [digits.accuracy(logits) for logits in digits.member_logits]
    assert digits.accuracy(digits.member_logits.mean(0)) > max(each) + 0.05
    assert min(each) > 0.15


def test_the_average_is_one_round_of_fedavg(digits):
    import optax
    from baselines import local_training
    from jax.tree_util import Partial

    from covfree import finetune, rounds

    share = np.bincount(digits.clients) / len(digits.clients)
    mean = local_training.average(digits.members, share)
    algorithm = finetune.fedavg(
        digits.model, Partial(optax.sgd, 0.01, momentum=0.9), epochs=EPOCHS, batch_size=128
    )
    run = rounds.run(algorithm, *digits.train, digits.clients, key=jax.random.key(1), rounds=1)
    for ours, theirs in zip(jax.tree.leaves(mean), jax.tree.leaves(run.result), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_images_are_made_to_a_loss():
    from baselines.generator import Generator, synthesise

    def loss(images, key):
        noise = jax.random.uniform(key, maxval=1e-3)
        return jnp.square(images.mean() - 0.9) + noise

    generator = Generator(size=8, channels=2, width=4)
    made = jax.jit(partial(synthesise, generator, loss, batch_size=6, latent=5), static_argnames="steps")
    first, last = (made(key=jax.random.key(2), steps=steps) for steps in (1, 40))
    assert first.shape == last.shape == (6, 8, 8, 2)
    assert bool(((last > 0) & (last < 1)).all())
    # The generator starts near the middle of (0, 1), as its kernels are small.
    assert abs(float(first.mean()) - 0.5) < 0.1
    assert float(first.mean()) + 0.1 < float(last.mean()) < 0.95


def test_images_that_cannot_be_made_are_not_black(digits):
    from baselines import dense
    from baselines.distillation import Networks, distil
    from baselines.generator import Generator, synthesise

    def synthesised(size, loss, steps):
        generator = Generator(size=size, width=2)
        return synthesise(generator, loss, key=jax.random.key(0), batch_size=2, latent=3, steps=steps)

    assert np.isnan(synthesised(8, lambda images, key: jnp.nan * images.sum(), 1)).all()
    for size in (3, 10):
        with pytest.raises(ValueError, match=f"size: expected a multiple of 4, at least 4, got {size}"):
            synthesised(size, lambda images, key: images.sum(), 1)
    with pytest.raises(ValueError, match="steps: expected an integer of at least 1, got 0"):
        synthesised(8, lambda images, key: images.sum(), 0)

    def broken(networks, settings, members, state, key):
        return state._replace(images=state.images.at[0].set(jnp.nan))

    settings = replace(dense.PUBLISHED, epochs=1, batch_size=2)
    networks = Networks(digits.cnn, Generator(size=8, width=2))
    with pytest.raises(FloatingPointError, match="epoch 0: no step of the generator had a finite loss"):
        distil(broken, networks, settings, digits.members, key=jax.random.key(0))


def test_students_learn_from_the_ensemble_without_data(digits):
    from baselines import co_boosting, dense
    from baselines.distillation import Networks, distil
    from baselines.generator import Generator

    networks = Networks(digits.cnn, Generator(size=8, width=32))
    ensemble = digits.member_logits.mean(0)
    for method, epochs, steps in ((dense, 8, 20), (co_boosting, 6, 10)):
        settings = replace(
            method.PUBLISHED, epochs=epochs, steps=steps, batch_size=64, learning_rate=0.1, latent=32
        )
        seen = []
        state = distil(
            method.epoch,
            networks,
            settings,
            digits.members,
            key=jax.random.key(3),
            report=lambda state, seen=seen: seen.append(digits.predictions(state.student)),
        )
        student = seen[-1]
        # Chance is a tenth, and a hundredth is its standard error on 596 images.
        assert digits.accuracy(student) > 0.25, method.__name__
        agrees = [(logits.argmax(1) == ensemble.argmax(1)).mean() for logits in seen]
        assert agrees[-1] > max(0.25, agrees[0] + 0.05)
        assert int(state.epoch) == len(seen) == epochs
        assert float(state.images.min()) > 0
        # Images are what the ensemble takes them for.
        made = state.images.astype(jnp.float32)
        each = [
            digits.cnn.apply(jax.tree.map(lambda x, i=i: x[i], digits.members), made) for i in range(CLIENTS)
        ]
        taught = np.tensordot(np.asarray(state.weights), np.stack(each), 1)
        assert (taught.argmax(1) == np.asarray(state.labels)).mean() > 0.3
        if method is dense:
            np.testing.assert_allclose(state.weights, 1 / CLIENTS)
        else:
            assert 0 <= float(state.weights.min()) < 1 / CLIENTS < float(state.weights.max()) <= 1


def test_the_command_measures_goes_on_and_draws(digits, tmp_path, capsys):
    import fashion_mnist

    for part, data in (("train", digits.train), ("t10k", digits.test)):
        idx_files.write_part(tmp_path, part, data.images[..., 0], data.labels)
    sizes = {"images": 600, "clients": 3, "local-epochs": 2, "tuning-rounds": 1, "every": 1}
    options = [f"--{name}={value}" for name, value in sizes.items()]
    common = [
        "--data-dir",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        "--alphas",
        "0.5",
        *options,
        "--methods",
    ]
    fashion_mnist.main([*common, "ensemble", "fedncm"])
    first = json.loads((tmp_path / "out" / "results.json").read_text())
    fashion_mnist.main([*common, "ensemble", "fedncm", "tuned-fedavg"])
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    # What was there is as it was, its times too.
    assert content["records"][:2] == first["records"]
    assert [record["method"] for record in content["records"]] == ["ensemble", "fedncm", "tuned-fedavg"]
    assert (content["settings"]["images"], content["settings"]["clients"]) == (600, 3)
    record = content["records"][1]
    printed = capsys.readouterr().out
    assert f"| FedNCM | {100 * np.mean(record['accuracy']):.2f} |" in printed
    # On a backbone that has seen half of the classes.
    assert np.mean(record["accuracy"]) > 0.5
    history = content["records"][2]["history"]
    assert [place for place, _ in history] == [0, 1]
    for name in ("one_round", "by_rounds", "by_rounds-phone"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match=r"of another run, with \{'images': 600\}"):
        fashion_mnist.main(["--images=500", *common, "ensemble", "--images=500"])
