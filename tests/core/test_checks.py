"""The door: every error by its message; what is sound passes."""

from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree.core.checks import check_choice, check_integer, check_integers, num_classes_of

FEATURES = np.arange(8.0, dtype=np.float32).reshape(4, 2)
LABELS = np.array([0, 1, 2, 1])
CLIENTS = np.array([7, 7, 9, 9])


def spoiled(value, row=2, column=1):
    features = FEATURES.copy()
    features[row, column] = value
    return features


CASES = [
    # What is wrong, the arguments, the error and its message.
    (
        "NaN",
        (spoiled(np.nan), LABELS, CLIENTS),
        ValueError,
        r"features: row 2 of client 9 \(class 2\) holds nan at position 1",
    ),
    (
        "infinite",
        (spoiled(np.inf), LABELS, CLIENTS),
        ValueError,
        r"features: row 2 of client 9 \(class 2\) holds inf at position 1",
    ),
    (
        "negative infinite",
        (spoiled(-np.inf, 0, 0), LABELS, CLIENTS),
        ValueError,
        "features: row 0 of client 7 .* -inf",
    ),
    ("no clients", (spoiled(np.nan), LABELS), ValueError, r"features: row 2 \(class 2\) holds nan"),
    (
        "both infinities",
        (np.array([[0.0, 0.0], [np.inf, -np.inf]]), LABELS[:2]),
        ValueError,
        "features: row 1 .* inf at position 0",
    ),
    (
        "integer features",
        (FEATURES.astype(int), LABELS),
        TypeError,
        r"features: expected floats, got int64; use features\.astype\(np\.float32\)",
    ),
    (
        "one feature vector",
        (FEATURES[0], LABELS[:2]),
        ValueError,
        r"features: expected shape \[examples, dim\].*got \[2\]",
    ),
    (
        "a batch of clients",
        (FEATURES[None], LABELS[None]),
        ValueError,
        r"features: expected shape \[examples, dim\].*got \[1, 4, 2\]",
    ),
    ("no features", (FEATURES[:, :0], LABELS), ValueError, r"features: .* dim of at least 1, got \[4, 0\]"),
    (
        "float labels",
        (FEATURES, LABELS * 1.0),
        TypeError,
        r"labels: expected integers, got float64; use labels\.astype\(np\.int32\) if all are whole",
    ),
    ("boolean labels", (FEATURES, LABELS > 0), TypeError, "labels: expected integers, got bool"),
    ("few labels", (FEATURES, LABELS[:3]), ValueError, r"labels: expected shape \[4\].*got \[3\]"),
    (
        "one-hot labels",
        (FEATURES, np.eye(4, dtype=int)),
        ValueError,
        r"labels: expected shape \[4\].*got \[4, 4\]",
    ),
    (
        "one-hot labels as floats",
        (FEATURES, np.eye(4)),
        ValueError,
        r"labels: expected shape \[4\].*got \[4, 4\]; of one-hot labels, take labels\.argmax",
    ),
    (
        "float clients",
        (FEATURES, LABELS, CLIENTS * 1.0),
        TypeError,
        "clients: expected integers, got float64",
    ),
    (
        "many clients",
        (FEATURES, LABELS, np.arange(5)),
        ValueError,
        r"clients: expected shape \[4\].*got \[5\]",
    ),
]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(("arguments", "error", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_check(arguments, error, message):
    with pytest.raises(error, match=message):
        covfree.check(*arguments)
    if len(arguments) == 3:
        with pytest.raises(error, match=message):
            covfree.fit(covfree.fedncm(), *arguments)


def test_labels_past_the_end():
    message = "labels: row 2 of client 9 has label 2; expected labels below num_classes = 2"
    with pytest.raises(ValueError, match=message):
        covfree.check(FEATURES, LABELS, CLIENTS, num_classes=2)
    with pytest.raises(ValueError, match=message):
        covfree.fit(covfree.fedcof(), FEATURES, LABELS, CLIENTS, num_classes=2)
    covfree.check(FEATURES, LABELS, CLIENTS, num_classes=3)


def test_what_is_sound_passes():
    covfree.check(*federations.make(0))  # padding holds NaN, of either kind
    covfree.check(FEATURES, LABELS)
    covfree.check(FEATURES[:0], LABELS[:0], CLIENTS[:0])
    covfree.check(jnp.asarray(FEATURES, jnp.bfloat16), jnp.asarray(LABELS), jnp.asarray(CLIENTS))
    covfree.check(FEATURES.tolist(), LABELS.tolist(), CLIENTS.tolist())
    covfree.check(FEATURES, LABELS.astype(np.uint8), CLIENTS.astype(np.int8))
    # Large but finite: sums of them are not.
    covfree.check(np.full((2, 3), 3e38, np.float32), np.zeros(2, int))
    covfree.check(np.full((2, 3), 65504, np.float16), np.zeros(2, int))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_every_float_type_is_looked_at(dtype):
    features = jnp.asarray(spoiled(np.nan), dtype)
    with pytest.raises(ValueError, match=r"features: row 2 .* nan at position 1"):
        covfree.check(features, LABELS)


def test_under_jit_structure_alone_is_checked():
    @jax.jit
    def run(features, labels):
        covfree.check(features, labels)
        return features

    run(spoiled(np.nan), LABELS)
    with pytest.raises(ValueError, match=r"labels: expected shape \[4\]"):
        run(FEATURES, LABELS[:2])


def test_values_are_looked_at_in_the_type_that_is_computed_with(precision):
    """1e300 is a number in float64 and infinite in float32; 3e38 is one in both."""
    for value in (1e300, -1e39):
        features = FEATURES.astype(np.float64)
        features[2, 1] = value
        if precision.name == "float64":
            covfree.check(features, LABELS, CLIENTS)
            continue
        message = (
            r"features: row 2 of client 9 \(class 2\) holds .* expected numbers that are finite in float32"
        )
        for door in (covfree.check, partial(covfree.fit, covfree.fedncm())):
            with pytest.raises(ValueError, match=message):
                door(features, LABELS, CLIENTS)
        features[2, 1] = 3e38
        covfree.check(features, LABELS, CLIENTS)


@pytest.mark.usefixtures("untyped")
def test_half_precision_is_right_and_integers_are_an_error():
    """60,000 is near the end of float16: sums of it are float32's."""
    features = np.array([[60000.0, 0.0], [60000.0, 1.0], [0.0, 1.0], [0.0, 2.0]], np.float16)
    arguments = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    half, single = (
        covfree.fit(covfree.fedncm(), features.astype(dtype), *arguments)
        for dtype in (np.float16, np.float32)
    )
    assert half.weight.dtype == jnp.float32
    np.testing.assert_array_equal(half.weight, single.weight)
    with pytest.raises(TypeError, match="features: expected floats, got int32"):
        covfree.fit(covfree.fedncm(), features.astype(np.int32), *arguments)


def test_sound_arrays_of_devices_are_not_copied_to_the_host():
    """jax keeps the host's copy of an array of several devices once it was made."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("examples",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("examples"))
    features = jax.device_put(FEATURES, sharding)
    covfree.check(features, LABELS, CLIENTS, num_classes=3)
    covfree.fit(covfree.fedncm(), features, LABELS, CLIENTS)
    assert features._npy_value is None
    # A copy would be seen:
    np.asarray(features)
    assert features._npy_value is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_arrays_of_a_device_are_looked_at(value):
    """With integers on the device or on the host; padding may hold anything."""
    features = jnp.asarray(spoiled(value))
    for array in (np.asarray, jnp.asarray):
        labels, clients = array(LABELS), array(CLIENTS)
        with pytest.raises(ValueError, match=r"features: row 2 of client 9 \(class 2\) holds -?(nan|inf)"):
            covfree.check(features, labels, clients)
        covfree.check(features, array(np.where(LABELS == 2, -1, LABELS)), clients)
        covfree.check(features, labels, array(np.where(np.arange(4) == 2, -5, CLIENTS)))
        with pytest.raises(ValueError, match=r"labels: row 2 of client 9 has label 2; .*num_classes = 2"):
            covfree.check(features, labels, clients, num_classes=2)
    with pytest.raises(ValueError, match=r"labels: row 3 has label 4294967296; .*below 2\*\*31"):
        covfree.check(features, np.array([0, 1, -1, 2**32]))


def test_a_choice():
    check_choice("head", "lda", ("lda", "ridge"))
    check_choice("covariance", None, (None, "diagonal"))
    with pytest.raises(ValueError, match=r"head: expected one of \('lda', 'ridge'\), got 'svm'"):
        check_choice("head", "svm", ("lda", "ridge"))
    with pytest.raises(ValueError, match=r"head: expected one of \('lda', 'ridge'\), got 3"):
        check_choice("head", 3, ("lda", "ridge"))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("seed", [0.5, 1.0, np.float32(2), True, "a", None, np.arange(2)])
def test_seeds_are_integers(seed):
    makers = (covfree.ccvr, covfree.fedpft, covfree.fishermix, covfree.proto_hyper, covfree.deepafl)
    more = (covfree.safle, covfree.stsa_e, covfree.fedran, partial(covfree.relu_features, 3))
    features = partial(covfree.fourier_features, 3), partial(covfree.bucket_features, np.zeros((2, 1)))
    for make in (*makers, *more, *features):
        make(seed=3)
        make(seed=np.int64(3))
        with pytest.raises(TypeError, match="seed: expected an integer, got "):
            make(seed=seed)
        with pytest.raises(
            ValueError, match=r"seed: expected an integer from -2\*\*31 to 2\*\*31 - 1, got 109"
        ):
            make(seed=2**40)


@pytest.mark.usefixtures("untyped")
def test_integers_are_told_from_other_types():
    assert check_integer("k", np.int64(3), 1) == 3
    for value in (True, np.True_, 2.0, "2", None, np.array([2])):
        with pytest.raises(TypeError, match="k: expected an integer of at least 1, got"):
            check_integer("k", value, 1)
    with pytest.raises(TypeError, match="labels: expected integers, got object"):
        check_integers("labels", np.array([1, None]), 0)


def test_identifiers_are_no_labels(tmp_path):
    """One large label would make a table of so many classes; nothing is allocated before it is refused."""
    labels = np.arange(40) % 10
    labels[7] = 900_000
    hint = r"labels: expected classes numbered from 0 .* got 900000 as the largest of 11 labels; .*np\.unique"
    features = np.zeros((40, 2), np.float32)
    with pytest.raises(ValueError, match=hint):
        covfree.fit(covfree.fedcof(), features, labels, labels)
    np.savez(tmp_path / "a.npz", features=features, labels=labels)
    with pytest.raises(ValueError, match=rf"a\.npz: {hint}"):
        covfree.data.load_npz(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=f"arrays: {hint}"):
        covfree.data.image_arrays(np.zeros((40, 2, 2, 3), np.uint8), labels)
    # Many classes, most of which occur; and padding.
    assert num_classes_of(np.arange(-1, 40_000)) == 40_000
    assert num_classes_of(np.array([-3, -1])) == 0
