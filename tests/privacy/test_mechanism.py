"""Private methods: the same by hand and simulated, close to the method at large ε, refused where unsound."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

import covfree
from covfree.privacy import Upload, private
from covfree.privacy.mechanism import _sum_of_clients
from covfree.privacy.server import NoisySums
from covfree.privacy.uploads import added

CLASSES, DIM, CLIENTS = 4, 6, 12
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, CLASSES, 4800)
OWNERS = np.arange(4800) % CLIENTS
MIX = np.diag([1.0, 0.2, 0.2, 0.2, 0.2, 1.5])
FEATURES = (RNG.normal(size=(4800, DIM)) @ MIX + 1.0 + np.eye(CLASSES, DIM)[LABELS]).astype(np.float32)
CLIP = 6.0
METHODS = [
    covfree.fedncm(),
    covfree.fedcof(),
    covfree.fedcof(0.1, head="ridge"),
    covfree.fed3r(),
    covfree.fed3r(scatter="within"),
    covfree.fedcgs(),
]
SETTINGS = [
    {},
    {"noise": "distributed", "honest": 10},
    {"noise": "local"},
    {"neighbours": "replace_one"},
    {"unit": "client", "weight": 500.0},
]


def make(method=None, **changes):
    options = {"epsilon": 1.0, "delta": 1e-6, "clip": CLIP, **changes}
    return private(covfree.fedcof() if method is None else method, **options)


def accuracy(head):
    return float((np.asarray(head(FEATURES)).argmax(-1) == LABELS).mean())


def fitted(made, seed=0, **options):
    return made.fit(FEATURES, LABELS, OWNERS, random_bytes=np.random.default_rng(seed).bytes, **options)


# Every method with one kind of noise, every kind with one method.
@pytest.mark.parametrize(
    ("method", "setting"),
    [*((method, {}) for method in METHODS), *((METHODS[1], setting) for setting in SETTINGS[1:])],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_little_noise_gives_the_methods_own_head(method, setting):
    exact = accuracy(covfree.fit(method, FEATURES, LABELS, OWNERS))
    # Twelve clients hide one of them only in a lot of noise.
    made = make(method, epsilon=200_000.0 if "unit" in setting else 200.0, **setting)
    assert accuracy(fitted(made)) > exact - (0.05 if "unit" in setting else 0.02)


def test_weights_tend_to_the_methods_own_as_the_noise_goes():
    for method in (*METHODS[3:], covfree.fed3r(bias=True)):
        exact = covfree.fit(method, FEATURES, LABELS, OWNERS)
        near = fitted(make(method, epsilon=5000.0))
        if method.name != "fedcgs":  # whose biases differ by a constant
            np.testing.assert_allclose(near.bias, exact.bias, rtol=0.03, atol=0.01)
        np.testing.assert_allclose(
            near.weight, exact.weight, rtol=0.03, atol=0.02 * np.abs(exact.weight).max()
        )


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_clients_by_hand_and_the_simulation_add_up_to_the_same(setting):
    made = make(**setting)
    for step, kind in ((0, "sums"), (1, "matrix"), (1, "sums")):
        grid = made.grids[step][kind]
        parts = [grid.upload(FEATURES[k == OWNERS], LABELS[k == OWNERS], CLASSES) for k in range(CLIENTS)]
        together = _sum_of_clients(grid, FEATURES, LABELS, OWNERS, CLASSES)
        assert np.array_equal(added(parts).values, together.values)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_federation_step_by_step(setting):
    made = make(epsilon=20_000.0 if "unit" in setting else 8.0, **setting)
    draws = np.random.default_rng(1).bytes

    def total(step, kind):
        uploads = [
            made.upload(
                step,
                kind,
                FEATURES[k == OWNERS],
                LABELS[k == OWNERS],
                num_classes=CLASSES,
                random_bytes=draws,
            )
            for k in range(CLIENTS)
        ]
        assert {each.noises for each in uploads} == {0 if made.promise.noise == "central" else 1}
        return made.total(step, uploads, random_bytes=draws)

    first = total(0, "sums")
    assert first.noises == (1 if made.promise.noise == "central" else CLIENTS)
    second = total(1, made.choose(first))
    assert accuracy(made.head(first, second)) > 0.5


@cache
def mean_accuracy(method, epsilon):
    made = make(method, epsilon=epsilon)
    return np.mean([accuracy(fitted(made, seed)) for seed in range(6)])


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: method.name)
def test_never_more_than_a_point_below_the_private_nearest_mean(method, epsilon):
    # Six draws of the noise: at the smallest ε their mean is known to about a point.
    assert mean_accuracy(method, epsilon) > mean_accuracy(METHODS[0], epsilon) - (
        0.01 if epsilon >= 0.3 else 0.03
    )


def test_where_the_matrix_would_drown_the_sums_are_asked_for_again():
    def choice(made):
        sums = _sum_of_clients(made.grids[0]["sums"], FEATURES, LABELS, OWNERS, CLASSES)
        return made.choose(made.grids[0]["sums"].noised(sums, 1, np.random.default_rng(0).bytes))

    assert choice(make(epsilon=0.05)) == "sums"
    assert choice(make(epsilon=8.0)) == "matrix"
    assert choice(make(METHODS[0])) is None


def test_an_absent_class_is_sent_like_any_other_and_not_predicted():
    made = make()
    up = made.upload(0, "sums", FEATURES[:0], LABELS[:0], num_classes=CLASSES + 1)
    assert up.values.shape == (CLASSES + 1, DIM + 2)
    head = fitted(make(epsilon=20.0), num_classes=CLASSES + 1)
    assert not (np.asarray(head(FEATURES)).argmax(-1) == CLASSES).any()


def test_far_huge_and_padded_examples():
    far = np.concatenate(
        [FEATURES, np.full((2, DIM), 1e30, np.float32), np.full((1, DIM), np.nan, np.float32)]
    )
    labels = np.concatenate([LABELS, [0, 1], [-1]])
    owners = np.concatenate([OWNERS, [0, 1, 2]])
    made = make(epsilon=20.0)
    head = made.fit(far, labels, owners, random_bytes=np.random.default_rng(0).bytes)
    assert accuracy(head) > accuracy(fitted(made)) - 0.01
    with pytest.raises(ValueError, match="features: row 4802"):
        made.fit(far, np.abs(labels), owners)


def test_no_example_decides_whether_a_client_uploads():
    zeros, made = np.zeros((2, DIM), np.float32), make()
    for value in (np.nan, np.inf, 1e-40, 0):
        rows = np.float32([[value] * DIM, [value] * DIM])
        for x in (rows, rows[:1], np.r_[rows, FEATURES[:2]]):
            found = made.upload(0, "sums", x, np.zeros(len(x), int), num_classes=2)
            expected = np.r_[zeros, FEATURES[:2]] if len(x) > 2 else zeros[: len(x)]
            plain = made.grids[0]["sums"].upload(expected, np.zeros(len(x), int), 2)
            np.testing.assert_array_equal(found.values, plain.values)
    with pytest.raises(ValueError, match="labels: row 1 has label 2; expected labels below num_classes = 2"):
        made.upload(0, "sums", zeros, np.array([0, 2]), num_classes=2)
    with pytest.raises(ValueError, match=r"labels: expected shape \[2\]"):
        made.upload(0, "sums", zeros, np.zeros(3, int), num_classes=2)


def test_a_projection_becomes_the_heads_map():
    made = make(projection=5, epsilon=20.0)
    head = fitted(made)
    assert head.feature_map.num_features == 5
    assert head(FEATURES[:2]).shape == (2, CLASSES)
    assert made.upload(0, "sums", FEATURES, LABELS, num_classes=CLASSES).values.shape == (CLASSES, 7)


def test_no_example_changes_how_another_is_projected():
    # So fine a grid shows the last bit of each number.
    x, y = np.random.default_rng(0).normal(size=(51, 384)).astype(np.float32), np.zeros(51, int)
    made = make(METHODS[0], projection=128, epsilon=1e6, clip=30.0, centre=x[0])

    def sent(part):
        return made.upload(0, "sums", x[part], y[part], num_classes=1)

    whole = sent(slice(0, 51)).values
    for first in (1, 17, 50):
        parts = sent(slice(0, first)), sent(slice(first, 51))
        np.testing.assert_array_equal(added(parts).values, whole)


def test_the_promise_is_kept_to_the_digit():
    for setting in SETTINGS:
        promise = make(**setting).promise
        assert 0.97 < promise.epsilon <= 1.0
        assert promise.honest == setting.get("honest")
    assert len(make(METHODS[0]).promise.releases) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": covfree.qda()}, "method: expected one whose head is a function of class sums"),
        (
            {"method": replace(covfree.fedcof(), system=covfree.fedcgs().system)},
            "method: expected one whose head is a function of class sums",
        ),
        ({"method": covfree.afl()}, "method: expected one whose head is a function of class sums"),
        (
            {"method": covfree.fedcof(head="student")},
            "method: expected one whose head is a function of class",
        ),
        ({"method": covfree.fedncm().with_transforms(covfree.count_noise("laplace", 1.0))}, "transforms"),
        ({"epsilon": 0.0}, "epsilon: expected"),
        ({"epsilon": 1e-5}, "epsilon: expected a larger one"),
        ({"delta": 2.0}, "delta: expected"),
        ({"projection": 0}, "projection: expected an integer of at least 1, got 0"),
        ({"clip": -1.0}, "clip: expected"),
        ({"unit": "row"}, "unit: expected"),
        ({"noise": "none"}, "noise: expected"),
        ({"noise": "distributed"}, "honest: expected the number of clients that surely add noise with"),
        ({"honest": 3}, "honest: expected None with noise='central', got 3"),
        ({"unit": "client"}, "weight: expected the most that a client weighs, in examples"),
        (
            {"weight": 3.0},
            "weight: expected None with unit='example', as it bounds the weight of a client, got 3.0",
        ),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_promised_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_too_few_noises_and_wrong_steps_are_refused():
    made = make(noise="distributed", honest=3)
    one = made.upload(0, "sums", FEATURES, LABELS, num_classes=CLASSES)
    plain = made.grids[0]["sums"].upload(FEATURES, LABELS, CLASSES)
    with pytest.raises(ValueError, match="expected at least 3"):
        made.total(0, [one, one])
    with pytest.raises(ValueError, match="expected noise in each"):
        made.total(0, [one, one, plain])
    with pytest.raises(ValueError, match="expected no noise"):
        make().total(0, [one])
    with pytest.raises(ValueError, match="clients: expected at least 3"):
        made.fit(FEATURES, LABELS, np.zeros_like(OWNERS))
    for setting, units in (({}, "4,800 examples"), (SETTINGS[4], "12 clients")):
        with pytest.raises(ValueError, match=f"delta: expected well below one over the {units}, got 0.5"):
            make(delta=0.5, **setting).fit(FEATURES, LABELS, OWNERS)
    assert repr(made) == f"Private({made.method.name}: {made.promise})"
    with pytest.raises(TypeError, match="got Private, which has its own fit"):
        covfree.fit(made, FEATURES, LABELS, OWNERS)  # type: ignore
    with pytest.raises(ValueError, match="kind: expected a kind of step 0"):
        made.upload(0, "matrix", FEATURES, LABELS, num_classes=CLASSES)
    with pytest.raises(ValueError, match="totals: expected 2"):
        made.head(one)
    total = made.total(0, [one] * 3)
    matrix = made.total(1, [made.upload(1, "matrix", FEATURES, LABELS, num_classes=CLASSES)] * 3)
    with pytest.raises(ValueError, match="kind: expected a kind of step 0 of 2, got 'matrix'"):
        made.head(matrix, total)
    for call in (made.choose, lambda first: made.head(first, matrix)):
        with pytest.raises(ValueError, match="total: expected at least 3 noises in step 0, got 0"):
            call(plain)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("epsilon", [0.02, 1e9])
def test_extreme_epsilons_stay_within_int64(setting, epsilon):
    made = make(epsilon=epsilon, **setting)
    for step, kind in ((0, "sums"), (1, "matrix")):
        grid = made.grids[step][kind]
        values = _sum_of_clients(grid, 100 * FEATURES[:600], LABELS[:600], OWNERS[:600], CLASSES).values
        assert np.isfinite(values * grid.step).all()
        truth = np.abs(values * grid.step).max()
        assert truth <= 600 * CLIP**2
        assert values.max() > 0
    assert made.promise.epsilon <= epsilon


def test_sums_of_unequal_noise_are_averaged_by_it():
    grid = make(noise="distributed", honest=2).grids[0]["sums"]
    sums, draws = Upload("sums", np.zeros((200, 52), np.int64)), np.random.default_rng(0).bytes
    few, many = (NoisySums.of(grid, grid.noised(sums, noises, draws)) for noises in (2, 50))
    for one, other in ((few, many), (many, few)):
        both = one.averaged(other)
        assert both.sums.std() == pytest.approx(both.sum_deviation, rel=0.03)
        assert both.counts.std() == pytest.approx(both.count_deviation, rel=0.2)
        assert both.sum_deviation < few.sum_deviation


def test_no_examples_and_little_noise():
    for method in METHODS[:2]:
        made = make(method, epsilon=1e4)
        totals = []
        for step, kind in enumerate(["sums", "sums"][: len(made.grids)]):
            one = made.upload(step, kind, FEATURES[:4], np.full(4, -1), num_classes=CLASSES)
            totals.append(made.total(step, [one]))
        assert made.choose(totals[0]) in (None, "sums")
        assert np.isfinite(np.asarray(made.head(*totals)(FEATURES))).all()


def test_totals_of_wrong_shapes_are_refused():
    made = make(noise="distributed", honest=2)

    def sums(*shape):
        return Upload("sums", np.zeros(shape, np.int64), 2)

    for shape in ((18,), (3, 2), (0, 5)):
        for call in (made.choose, lambda first: made.head(first, first)):
            with pytest.raises(ValueError, match=r"total: expected class sums of shape \[classes, dim"):
                call(sums(*shape))
    with pytest.raises(ValueError, match=r"total: expected sums of shape \[3, 6\] in step 1, got \[4, 6\]"):
        made.head(sums(3, 6), sums(4, 6))
    with pytest.raises(ValueError, match=r"total: expected matrix of shape \[10\] in step 1, got \[6\]"):
        made.head(sums(3, 6), replace(sums(6), kind="matrix"))


def test_lists_and_one_client():
    made = make(METHODS[0], epsilon=50.0)
    head = made.fit(FEATURES, LABELS, np.zeros_like(OWNERS))
    assert accuracy(head) > 0.7
    with pytest.raises(ValueError, match="clients: expected at least one with examples"):
        made.fit(FEATURES, LABELS, np.full_like(OWNERS, -1))


def test_a_row_that_overflows_in_a_projection_counts_as_zeros():
    made, far, none = make(projection=5), FEATURES[:50].copy(), FEATURES[:50].copy()
    far[0], none[0] = 3e38, 0
    for step, kind in ((0, "sums"), (1, "matrix")):
        found = [made.upload(step, kind, x, LABELS[:50], num_classes=CLASSES).values for x in (far, none)]
        np.testing.assert_array_equal(*found)


def test_features_of_any_scale_have_the_head_of_the_others():
    draws = {"random_bytes": np.random.default_rng(0).bytes}
    for method in METHODS:
        plain = fitted(make(method, epsilon=8.0))
        for scale in (2.0**60, 2.0**-60):
            far = FEATURES * np.float32(scale)
            draws = {"random_bytes": np.random.default_rng(0).bytes}
            head = make(method, epsilon=8.0, clip=CLIP * scale).fit(far, LABELS, OWNERS, **draws)
            found = np.asarray(head(far)).argmax(-1)
            if method.name in ("fedncm", "fedcgs") or method is METHODS[1]:  # without γ or a ridge
                np.testing.assert_array_equal(found, np.asarray(plain(FEATURES)).argmax(-1))
            else:
                assert (found == LABELS).mean() > 0.8
    with pytest.raises(ValueError, match="clip: expected one with which the head's numbers fit float32"):
        make(clip=1e-45, epsilon=1e9).fit(np.float32(1e-35) * FEATURES, LABELS, OWNERS)
    # A ridge that overflows in units of the clip makes weights that are not finite.
    for method in METHODS[2:4]:
        with pytest.raises(ValueError, match="clip: expected one with which the head's numbers fit float32"):
            make(method, clip=1e-20, epsilon=300.0).fit(np.float32(1e-20) * FEATURES, LABELS, OWNERS)


@pytest.mark.slow
def test_works_with_x64():
    with jax.enable_x64(True):
        assert accuracy(fitted(make(epsilon=20.0))) > 0.5


@pytest.mark.slow
def test_a_centre_is_the_same_as_moving_the_features():
    centre = np.linspace(0.5, 2.0, DIM).astype(np.float32)
    for changes in [
        *({"method": method} for method in METHODS),
        {"projection": 5},
        {"unit": "client", "weight": 500.0},
        {"noise": "local", "epsilon": 0.05},  # the sums twice
    ]:
        plain, made = (
            make(**{"epsilon": 8.0, **changes}),
            make(**{"epsilon": 8.0, **changes, "centre": centre}),
        )
        assert made.promise == plain.promise
        moved = plain.fit(FEATURES - centre, LABELS, OWNERS, random_bytes=np.random.default_rng(0).bytes)
        scores = moved(FEATURES - centre)
        np.testing.assert_allclose(fitted(made)(FEATURES), scores, rtol=1e-3, atol=1e-3)
    # A map that is not linear: the centre is of what it gives.
    mapped = replace(METHODS[1], feature_map=covfree.relu_features(8, seed=1))
    centre = np.asarray(mapped.mapped(FEATURES)).mean(0)
    head = fitted(make(mapped, epsilon=8.0, centre=centre))
    moved = make(epsilon=8.0).fit(
        np.asarray(mapped.mapped(FEATURES)) - centre,
        LABELS,
        OWNERS,
        random_bytes=np.random.default_rng(0).bytes,
    )
    scores = moved(np.asarray(mapped.mapped(FEATURES)) - centre)
    np.testing.assert_allclose(head(FEATURES), scores, rtol=1e-3, atol=1e-3)


def test_a_centre_changes_an_lda_head_by_clipping_and_noise_alone():
    heads = [fitted(make(clip=20.0, epsilon=1e9, centre=c)) for c in (None, np.full(DIM, 3.0))]
    scores = [np.asarray(head(FEATURES)) for head in heads]
    np.testing.assert_allclose(*(each - each.mean(1, keepdims=True) for each in scores), rtol=0.01, atol=0.1)
    far, shift = {"clip": 60.0, "epsilon": 0.5}, np.full(DIM, 20.0, np.float32)
    noisy = make(METHODS[0], **far).fit(FEATURES + shift, LABELS, OWNERS)
    centred = make(METHODS[0], clip=CLIP, epsilon=0.5, centre=shift).fit(FEATURES + shift, LABELS, OWNERS)
    assert accuracy(lambda x: centred(x + shift)) > accuracy(lambda x: noisy(x + shift)) + 0.02


@pytest.mark.usefixtures("untyped")
def test_a_centre_that_does_not_fit_is_refused():
    for centre, message in [
        (np.zeros((2, 3)), r"centre: expected numbers of shape \[dim\], got float64 of shape \[2, 3\]"),
        (["a"], r"centre: expected numbers of shape \[dim\], got <U1"),
        ([0.0, np.inf], "centre: expected finite numbers, got inf at position 1"),
        ([0.0, 1e39], r"centre: expected numbers that are finite in float32, got 1e\+39 at position 1"),
        (1j * np.ones(6), r"centre: expected numbers of shape \[dim\], got complex128"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(centre=centre)
    for changes in ({}, {"projection": 5}):
        with pytest.raises(ValueError, match=r"centre: expected shape \[6\] as the features have, got \[5\]"):
            fitted(make(centre=np.zeros(5), **changes))
