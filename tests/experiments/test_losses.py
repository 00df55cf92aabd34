"""What DENSE and Co-Boosting compute, against formulas in NumPy and float64 that share no code with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import x64

RNG = np.random.default_rng(0)
BATCH, CLASSES, MEMBERS = 12, 5, 4
TEACHER, STUDENT = 3 * RNG.normal(size=(2, BATCH, CLASSES))
LABELS = RNG.integers(0, CLASSES, BATCH)
LOGITS = 2 * RNG.normal(size=(MEMBERS, BATCH, CLASSES))


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def cross_entropy(logits, labels):
    return -np.log(softmax(logits)[np.arange(len(labels)), labels])


def kl(teacher, student, temperature):
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    return temperature**2 * (p * np.log(p / q)).sum(1)


def dense_loss(teacher, student, labels, distance):
    differ = teacher.argmax(1) != student.argmax(1)
    return cross_entropy(teacher, labels).mean() + distance - (differ * kl(teacher, student, 1)).mean()


def co_boosting_loss(teacher, student, labels, hardness):
    return (hardness * cross_entropy(teacher, labels) - kl(teacher, student, 3)).mean()


def slope(function, at, step=1e-6):
    """By central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[place] += step
        down[place] -= step
        found[place] = (function(up) - function(down)) / (2 * step)
    return found


@pytest.mark.slow
def test_the_generators_losses_and_slopes():
    from baselines import co_boosting, dense

    differ = TEACHER.argmax(1) != STUDENT.argmax(1)
    assert 0 < differ.sum() < BATCH  # the mask says something
    hardness = 1 - softmax(TEACHER)[np.arange(BATCH), LABELS]
    with x64():
        loss, found = jax.value_and_grad(dense.generator_loss)(TEACHER, STUDENT, LABELS, 0.75)
        np.testing.assert_allclose(loss, dense_loss(TEACHER, STUDENT, LABELS, 0.75), rtol=1e-12)
        expected = slope(lambda t: dense_loss(t, STUDENT, LABELS, 0.75), TEACHER)
        np.testing.assert_allclose(found, expected, atol=1e-8)
        loss, found = jax.value_and_grad(co_boosting.generator_loss)(TEACHER, STUDENT, LABELS)
        np.testing.assert_allclose(loss, co_boosting_loss(TEACHER, STUDENT, LABELS, hardness), rtol=1e-12)
        # The hardness is a constant to the derivative.
        expected = slope(lambda t: co_boosting_loss(t, STUDENT, LABELS, hardness), TEACHER)
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_the_students_loss():
    from baselines.distillation import divergence

    with x64():
        for temperature in (1.0, 4.0, 20.0):
            np.testing.assert_allclose(
                divergence(jnp.asarray(TEACHER), jnp.asarray(STUDENT), temperature),
                kl(TEACHER, STUDENT, temperature),
                rtol=1e-9,
            )


@pytest.mark.slow
def test_the_ensembles_weights():
    from baselines import ensemble

    weights = np.array([0.25, 0.005, 0.4, 0.999])

    def loss(w):
        return cross_entropy(np.tensordot(w, LOGITS, 1) / w.sum(), LABELS).mean()

    direction = slope(loss, weights)
    assert {-1, 1} == set(np.sign(direction))
    with x64():
        mixed = ensemble.combine(jnp.asarray(LOGITS), jnp.asarray(weights))
        np.testing.assert_allclose(mixed, np.tensordot(weights, LOGITS, 1) / weights.sum(), rtol=1e-12)
        for step in (0.002, 0.01):
            new = ensemble.reweighted(jnp.asarray(weights), jnp.asarray(LOGITS), jnp.asarray(LABELS), step)
            expected = np.clip(weights - step * np.sign(direction), 0, 1)
            np.testing.assert_allclose(new, expected, rtol=1e-12)
        assert loss(np.asarray(new)) < loss(weights)


def test_some_member_keeps_a_weight():
    """Steps as large as the weights, and a member that is alone: never are all weights 0."""
    from baselines import ensemble

    step = jax.jit(ensemble.reweighted)
    logits = RNG.normal(size=(2, 32, CLASSES)).astype(np.float32)
    labels = RNG.integers(0, CLASSES, 32)
    logits[0, np.arange(32), labels] += 8
    for weights in ([0.0, 0.005], [0.005, 0.005]):
        for count in range(50):
            logits = np.roll(logits, count, axis=1)
            weights = step(jnp.asarray(weights), logits, labels, 0.01)
            assert float(weights.max()) > 0
            assert np.isfinite(ensemble.combine(logits, weights)).all()


@pytest.mark.slow
def test_perturbed_images_go_up_the_ensembles_answer():
    from baselines import co_boosting

    images = RNG.uniform(size=(BATCH, 3, 2, 1))
    weight = RNG.normal(size=(6, CLASSES))
    direction = RNG.uniform(-1, 1, (BATCH, CLASSES))

    def along(x):
        return (direction * softmax(x.reshape(BATCH, 6) @ weight / 4)).sum()

    with x64():
        moved = co_boosting.perturbed(lambda x: x.reshape(BATCH, 6) @ weight, jnp.asarray(images), direction)
    np.testing.assert_allclose(moved, images + 8 / 255 * np.sign(slope(along, images)), atol=1e-12)


def layer(x, kernel, bias):
    """A convolution over 3 × 3 with zeros around, one position after the other."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    out = np.zeros((*x.shape[:3], kernel.shape[-1]))
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            out[:, i, j] = np.tensordot(padded[:, i : i + 3, j : j + 3], kernel, 3) + bias
    return out


def forward(variables, x):
    """Logits, and the distance of what enters the norms from their running statistics."""
    params, statistics, distance = variables["params"], variables["batch_stats"], 0.0
    for place in range(2):
        own, running = params[f"norms_{place}"], statistics[f"norms_{place}"]
        convolution = params[f"convolutions_{place}"]
        x = layer(x, convolution["kernel"], convolution["bias"])
        distance += np.sqrt(((x.mean((0, 1, 2)) - running["mean"]) ** 2).sum())
        distance += np.sqrt(((x.var((0, 1, 2)) - running["var"]) ** 2).sum())
        x = (x - running["mean"]) / np.sqrt(running["var"] + 1e-5) * own["scale"] + own["bias"]
        x = np.maximum(x, 0)
        x = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).max((2, 4))
    return x.reshape(len(x), -1) @ params["head"]["kernel"] + params["head"]["bias"], distance


@pytest.mark.slow
def test_the_members_outputs():
    from baselines import ensemble
    from baselines.cnn import CNN, applied, cnn_model, new_variables

    cnn = CNN(CLASSES, widths=(2, 3))
    shapes = jax.tree.map(jnp.shape, new_variables(cnn, (8, 4, 1), jax.random.key(0)))
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    # Running variances are above 0, and nothing has the value that it starts from.
    members = jax.tree.map(lambda s: RNG.uniform(0.2, 1.2, (2, *s)) * 0.5, shapes, **is_shape)
    images = RNG.integers(0, 256, (6, 8, 4, 1), np.uint8)
    each = [forward(jax.tree.map(lambda x, i=i: x[i], members), images / 255) for i in range(2)]
    small = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), members)
    logits, distance = jax.jit(ensemble.outputs, static_argnums=0)(
        cnn, small, jnp.asarray(images / 255, jnp.float32)
    )
    np.testing.assert_allclose(logits, np.stack([one for one, _ in each]), rtol=1e-4)
    np.testing.assert_allclose(distance, [one for _, one in each], rtol=1e-4)
    second = jax.tree.map(lambda x: x[1], small)
    np.testing.assert_allclose(applied(cnn, second, images, batch_size=4), each[1][0], rtol=1e-4)
    np.testing.assert_allclose(cnn_model(cnn, second)(images), each[1][0], rtol=1e-4)


@pytest.mark.parametrize("name", ["flipped", "shifted"])
def test_moved_images_are_the_same_images(name):
    from baselines import dense

    images = RNG.uniform(0.1, 1, (40, 14, 8, 1)).astype(np.float32)
    moved = np.asarray(getattr(dense, name)(jnp.asarray(images), jax.random.key(1)))
    ways = {"flipped": [images, images[:, :, ::-1]]}
    around = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    ways["shifted"] = [around[:, i : i + 14, j : j + 8] for i in range(5) for j in range(5)]
    same = np.stack([(moved == way).all((1, 2, 3)) for way in ways[name]])
    assert (same.sum(0) == 1).all()
    # More than one way is taken, one image another than the next.
    assert (same.any(1)).sum() >= (2 if name == "flipped" else 15)
