"""A choice among methods: the heads, counts and choice of brute force, wherever the examples are."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from variants import slow

import covfree
from covfree import rounds as federated
from covfree.core import padding
from covfree.engine.totals import serve
from covfree.heads.composed import taken
from covfree.methods import registry
from covfree.methods.rounds import as_total, option
from covfree.methods.selecting.counting import MOST
from covfree.statistics.kept import kept_aside
from covfree.testing import check_method

KEY, CLASSES, DIM = jax.random.key(0), 3, 6


def federation(size=600, seed=0):
    """Classes that overlap and differ in their covariance."""
    rng = np.random.default_rng(seed)
    labels, clients = rng.integers(0, CLASSES, size), rng.integers(0, 12, size)
    root = rng.normal(size=(CLASSES, DIM, DIM)) * np.logspace(0, -1, DIM)
    features = np.einsum("ni,nij->nj", rng.normal(size=(size, DIM)), root[labels])
    return (features + rng.normal(size=(CLASSES, DIM))[labels]).astype(np.float32), labels, clients


DATA = federation()
LINEAR = covfree.fedncm(), covfree.fedcof(0.1), covfree.fedcof(10.0)
CANDIDATES = (
    *LINEAR,
    covfree.fedcof(0.1, head=covfree.student(0.3)),
    covfree.fedcof(0.1, head=covfree.student(3.0)),
    covfree.refined(covfree.fedcof(0.1), 1),
)


def fit(method, data=DATA):
    return covfree.fit(method, *data, num_classes=CLASSES)


def run(method, uploads: Any = "messages"):
    algorithm = federated.as_algorithm(method, num_classes=CLASSES, uploads=uploads)
    return federated.run(algorithm, *DATA, key=KEY)


def brute_force(candidates, share, by):
    """Each candidate's head of the examples that are not kept aside, and its mean score on the others."""
    kept = np.asarray(kept_aside(DATA[0], share))
    heads, means = [], []
    for candidate in candidates:
        head = fit(candidate, (DATA[0], np.where(kept, -1, DATA[1]), DATA[2]))
        scores, labels = np.asarray(head(DATA[0][kept]), float), DATA[1][kept]
        wrong = scores.argmax(1) != labels
        loss = np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1)) + scores.max(1)
        loss -= scores[np.arange(len(labels)), labels]
        heads.append(head)
        means.append(np.mean(wrong if by == "errors" else np.minimum(loss, MOST)))
    return heads, np.array(means), kept.sum()


@pytest.mark.parametrize(("candidates", "by"), [(LINEAR, "errors"), *slow((CANDIDATES, "losses"))])
def test_it_is_brute_force(candidates, by, monkeypatch):
    heads, means, number = brute_force(candidates, 0.2, by)
    method = covfree.select(candidates, by=by, keep=0.2)
    taken = int(np.argmin(means))
    assert taken > 0  # or the first would do as well
    done = run(method)
    record = done.history[-1]
    assert (record["taken"], record["counted"]) == (taken, number)
    np.testing.assert_allclose(record[by], means, rtol=1e-3, atol=1e-6)
    chex.assert_trees_all_close(done.result, heads[taken], rtol=1e-3, atol=1e-3)
    assert type(done.result) is type(heads[taken])
    chex.assert_trees_all_close(fit(method), heads[taken], rtol=1e-3, atol=1e-3)
    if by == "errors":
        summed = run(method, "sums")
        assert summed.history[-1]["errors"] == record["errors"]
        chex.assert_trees_all_close(summed.result, heads[taken], rtol=1e-3, atol=1e-3)
    monkeypatch.setattr(padding, "LARGE", 0)
    monkeypatch.setattr(padding, "_PART", 170 * DIM * 4)
    chex.assert_trees_all_close(fit(method), heads[taken], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_temperatures_by_losses():
    candidates = [covfree.fedcof(0.1).with_temperature(each) for each in (10.0, 1.0)]
    heads, means, _ = brute_force(candidates, 0.1, "losses")
    plain = heads[1]
    chex.assert_trees_all_close(heads[0], covfree.with_temperature(plain, 10.0), rtol=1e-5)
    done = run(covfree.select(candidates, by="losses"))
    np.testing.assert_allclose(done.history[-1]["losses"], means, rtol=1e-3, atol=1e-7)
    assert done.history[-1]["taken"] == np.argmin(means) == 1
    chex.assert_trees_all_close(done.result, plain, rtol=1e-4)
    with pytest.raises(TypeError, match="head: expected a linear or corrected head, got StudentHead"):
        fit(CANDIDATES[3].with_temperature(2.0))


@pytest.mark.slow
def test_messages_of_matrices():
    """Rows of rounds are examples here, in memory, in sums and in parts."""
    candidates = [covfree.fed3r(0.01), covfree.fed3r(1e4), covfree.fedcgs()]
    heads, means, _ = brute_force(candidates, 0.1, "errors")
    method = covfree.select(candidates)
    done = run(method)
    np.testing.assert_allclose(done.history[-1]["errors"], means, atol=1e-6)
    taken = done.history[-1]["taken"]
    chex.assert_trees_all_close(done.result, heads[taken], rtol=1e-3, atol=1e-3)
    chex.assert_trees_all_close(fit(method), heads[taken], rtol=1e-3, atol=1e-3)
    # The Gram matrix is summed up once for all λ, and apart for the covariance about the mean.
    assert [len(option(each.client, "steps") or ()) for each in method.rounds[:-1]] == [2, 2]


def test_candidates_may_use_the_same_message_otherwise():
    """QDA needs each class's covariance, the oracle their sum: clients send both alike."""
    for candidates in ([covfree.qda(), covfree.fedcof_oracle()], [covfree.fedcof_oracle(), covfree.qda()]):
        method = covfree.select(candidates)
        assert method.summary.matrices == "each"
    kinds = {type(fit(each)) for each in candidates}
    assert type(fit(method)) in kinds


def test_what_candidates_share_is_done_once():
    heads = "lda", covfree.student(0.3), covfree.student(1.0)
    method = covfree.select([covfree.fedcof(gamma, head=head) for gamma in (0.1, 1.0) for head in heads])
    steps = [option(each.client, "steps") or () for each in method.rounds[:-1]]
    assert [len(each) for each in steps] == [1, 1, 2]
    assert sum(step.each is not None for step in steps[-1]) == 1
    # Clients send what those of one candidate send, then a number for each candidate and the examples'.
    own = covfree.sent_bytes(covfree.fedcof(), *DATA[1:], dim=DIM).total
    assert covfree.sent_bytes(method, *DATA[1:], dim=DIM).total == own + 12 * 4 * 7


@pytest.mark.slow
def test_the_hash_is_uniform_and_tells_nothing():
    rng = np.random.default_rng(1)
    for features in (DATA[0], rng.integers(0, 2, (4000, 24)).astype(np.float32), np.arange(4000.0)[:, None]):
        distinct = np.unique(features, axis=0)
        for share in (0.1, 0.5):
            kept = np.asarray(kept_aside(distinct, share))
            assert abs(kept.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(kept))
    x, y, _ = federation(20_000)
    kept = np.asarray(kept_aside(x, 0.5))
    for c in range(CLASSES):
        assert abs(kept[y == c].mean() - 0.5) < 4 * 0.5 / np.sqrt((y == c).sum())
    # Nor of any feature's size or sign, or of one bit of it.
    assert abs(np.corrcoef(np.c_[x, abs(x)].T, kept)[-1, :-1]).max() < 4 / np.sqrt(len(x))
    few = x[:500]
    order = rng.permutation(500)
    np.testing.assert_array_equal(kept_aside(few[order], 0.5), kept[:500][order])
    np.testing.assert_array_equal(kept_aside(np.pad(few, [(0, 0), (0, 3)]), 0.5), kept[:500])
    np.testing.assert_array_equal(
        kept_aside(np.where(few > 1, 0.0, few), 0.5), kept_aside(np.where(few > 1, -0.0, few), 0.5)
    )
    zeros, all_but_few = np.zeros((1, 3), np.float32), 0.99
    assert not kept_aside(zeros, all_but_few)[0]
    half = few.astype(np.float16)
    np.testing.assert_array_equal(kept_aside(half, 0.5), kept_aside(half.astype(np.float32), 0.5))


def test_heads_that_are_not_finite_and_ties():
    def broken(covariance, moments):
        weight = jnp.full_like(moments.total.T, jnp.nan)
        return covfree.LinearHead(weight, jnp.zeros_like(weight[0]))

    lost = covfree.fedcof(0.1, head=broken)
    record = run(covfree.select([lost, covfree.fedcof(10.0), covfree.fedcof(10.0, head="lda")]))
    assert record.history[-1]["errors"][0] == 1
    assert record.history[-1]["taken"] == 1
    assert record.history[-1]["errors"][1] == record.history[-1]["errors"][2]
    with pytest.raises(ValueError, match="head: holds nan"):
        fit(covfree.select([lost, lost]))


def test_the_hash_sees_all_bits_of_float64():
    far = 1e9 + np.arange(2000)[:, None] / 2000
    with jax.enable_x64(True):
        assert abs(float(np.mean(kept_aside(far, 0.5))) - 0.5) < 0.05
        few = DATA[0].astype(np.float64)
        np.testing.assert_array_equal(kept_aside(few, 0.5), kept_aside(DATA[0], 0.5))


def test_nothing_is_told_where_nothing_is_kept():
    """The first is taken, and no error of 0 is claimed."""
    assert not np.asarray(kept_aside(DATA[0], 1e-6)).any()
    method = covfree.select(LINEAR, keep=1e-6)
    record = run(method).history[-1]
    assert (record["taken"], record["counted"]) == (0, 0)
    assert np.isnan(record["errors"]).all()
    chex.assert_trees_all_close(fit(method), fit(LINEAR[0]))


class OfOneNumber(NamedTuple):
    """A head with a leaf that has no axes."""

    weight: jax.Array
    scale: jax.Array

    def __call__(self, features):
        return self.scale * (features @ self.weight)


@pytest.mark.slow
def test_heads_hold_what_they_like():
    def made(covariance, moments):
        return OfOneNumber(moments.mean.T, jnp.ones(()))

    method = covfree.select([covfree.fedcof(0.1, head=made), covfree.fedncm()])
    assert fit(method) is not None
    assert run(method).history[-1]["counted"] > 0


def test_numbers_are_swept():
    features = jnp.asarray(DATA[0])

    def scores(gamma):
        return fit(covfree.select([covfree.fedcof(gamma), covfree.fedncm()]))(features)

    swept = jax.vmap(scores)(jnp.array([0.1, 10.0]))
    np.testing.assert_allclose(swept[1], scores(10.0), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_heads_of_different_kinds_are_traced(tmp_path):
    method = covfree.select([covfree.fedncm(), covfree.fedcof(0.1, head="student")])
    traced, head = jax.jit(lambda x: fit(method, (x, *DATA[1:])))(DATA[0]), fit(method)
    assert isinstance(head, covfree.StudentHead)
    # Under jit, tables of rows have room for all examples.
    assert isinstance(taken(traced), covfree.StudentHead)
    file = tmp_path / "head.npz"
    covfree.save_head(traced, file)
    assert isinstance(covfree.load_head(file).head, covfree.StudentHead)
    scores = jax.jit(lambda head, features: head(features))(traced, DATA[0])
    np.testing.assert_allclose(scores, head(DATA[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_it_keeps_the_laws_of_methods():
    other = "what is kept aside is told by the features' bits"
    method = covfree.select([covfree.fedncm(), covfree.fedcof(0.1), covfree.fedcof(1.0)], keep=0.05)
    check_method(method, exclude={"scaling": other, "gradients": other})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: covfree.select([covfree.fedcof()]), "two methods or more, got 1"),
        (
            lambda: covfree.select([covfree.fedcof(), covfree.fed3r()]),
            "'fedcof' sends ClassMeans, 'fed3r' sends Gram matrices",
        ),
        (
            lambda: covfree.select([covfree.fedcof(), covfree.fedcof(num_subsets=2)]),
            "'fedcof' sends ClassMeans with other settings",
        ),
        (
            lambda: covfree.select([covfree.afl(), covfree.afl(2.0)]),
            "the same whatever the numbers, got 'afl'",
        ),
        (
            lambda: covfree.select(
                [covfree.fedcof().with_feature_map(covfree.relu_features(9)) for _ in range(2)]
            ),
            "without a feature map, got 'fedcof'",
        ),
        (lambda: covfree.select(LINEAR, keep=1.0), "keep: expected a share that keeps some .* got 1.0"),
        (lambda: covfree.select(LINEAR, keep=1e-9), "keep: expected a share that keeps some"),
        (
            lambda: covfree.select([covfree.select(LINEAR)] * 2),
            "candidates: expected methods that were not made by select",
        ),
        (lambda: covfree.select(LINEAR, by="loss"), "by: expected"),
    ],
)
def test_what_cannot_be_selected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    for wrong in (covfree.fedcof(), [covfree.fedcof, covfree.fedcof]):
        with pytest.raises(TypeError, match="candidates: expected"):
            covfree.select(wrong)


@pytest.mark.slow
def test_fixed_rounds_use_no_number():
    """Or candidates that differ in it would share the first one's terms."""
    features, labels, clients = (x[:60] for x in DATA)
    seen = set()
    for entry in registry().values():
        method, state = entry.make(), ()
        if not {each for each in method.rounds if each.fixed} - seen:
            continue
        rows = covfree.summarise(method, features, labels, clients, key=KEY)
        for each in method.rounds[: method.rounds_over_rows]:
            own = each.own(method.params)
            sent = state if each.broadcast is None else each.broadcast(own, state)
            terms = each.client(own, sent, rows, CLASSES)
            if each.fixed:
                lost = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan, dtype=float), own)
                chex.assert_trees_all_equal(terms, each.client(lost, sent, rows, CLASSES))
                seen.add(each)
            state = serve(each, own, state, as_total(terms))
    assert len(seen) > 15
