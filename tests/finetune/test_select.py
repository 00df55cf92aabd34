"""Clients choose a learning rate: against runs of each candidate, and counts by NumPy."""

import jax
import numpy as np
import optax
import pytest
from precision import x64

import covfree
from covfree import finetune, rounds
from covfree.testing import check_algorithm

RATES = 0.01, 3.0, 3e38
RNG = np.random.default_rng(0)
LABELS, CLIENTS = RNG.integers(0, 3, 300).astype(np.int32), RNG.integers(0, 6, 300)
FEATURES = (RNG.normal(size=(300, 5)) + 1.5 * np.eye(3, 5)[LABELS]).astype(np.float32)
MODEL = finetune.linear_model(finetune.random_head(5, 3, key=jax.random.key(1)))


def run(algorithm, labels, number):
    return rounds.run(algorithm, FEATURES, labels, CLIENTS, key=jax.random.key(0), rounds=number)


@pytest.mark.parametrize("by", ["errors", "losses"])
def test_the_best_candidate_trained_on_the_rest(by):
    """The last rate diverges: it stays where it was, and takes nothing from the others."""
    kept = np.asarray(covfree.kept_aside(FEATURES, 0.3))
    assert 60 < kept.sum() < 120
    done = run(finetune.select([finetune.fedavg(MODEL, rate) for rate in RATES], by=by, keep=0.3), LABELS, 3)
    rest = np.where(kept, -1, LABELS)
    alone = [
        [run(finetune.fedavg(MODEL, rate), rest, number).result for number in (2, 3)] for rate in RATES[:2]
    ]
    expected = []
    for before, _ in alone:
        scores = np.asarray(before(FEATURES[kept]), np.float64)
        wrong = (scores.argmax(1) != LABELS[kept]).mean()
        loss = np.log(np.exp(scores).sum(1)) - scores[np.arange(kept.sum()), LABELS[kept]]
        expected.append(wrong if by == "errors" else loss.mean())
    last = done.history[-1]
    assert last["counted"] == kept.sum()
    np.testing.assert_allclose(last[by][:2], expected, 1e-5)
    assert last[by][2] == done.history[0][by][0]  # the start, which all share
    best = int(np.argmin(expected))
    assert (last["taken"], best) == (1, 1)
    np.testing.assert_allclose(done.result.weight, alone[best][1].weight, 1e-4, 1e-5)


@pytest.mark.slow
def test_it_is_an_algorithm_as_any_other():
    """Also where some round has nobody whose examples are kept aside."""
    candidates = [finetune.fedadam(MODEL, 0.1, rate) for rate in (0.001, 0.01)]
    check_algorithm(finetune.select(candidates))


@pytest.mark.slow
def test_padding_wide_numbers_and_other_names():
    """The same examples are kept as by `covfree.select`; numbers may be of two types; the model is shared."""
    algorithm = finetune.select([finetune.fedavg(MODEL, rate, name=f"rate {rate}") for rate in (1, 0.1)])
    assert algorithm.params.model is MODEL
    features = np.concatenate([FEATURES, np.zeros((500, 5), np.float32)])
    labels = np.concatenate([LABELS, np.full(500, -1)])
    assert (
        upload_of(algorithm, features, labels).number == upload_of(algorithm, FEATURES, LABELS).number
    ).all()
    nobody = upload_of(algorithm, FEATURES[:0], LABELS[:0])
    assert (nobody.number, *nobody.scores) == (0, 0, 0)
    with x64():
        wide = FEATURES.astype(np.float64) * np.pi
        assert upload_of(algorithm, wide, LABELS).number == covfree.kept_aside(wide, 0.1).sum()


def upload_of(algorithm, features, labels):
    """The counts of one client in the first round."""
    state, _ = algorithm.init(algorithm.params, 1, jax.random.key(0))
    data = rounds.ClientData.own(features, labels.astype(np.int32))
    sent = algorithm.broadcast(algorithm.params, state)
    return algorithm.client(algorithm.params, sent, data, (), jax.random.key(0))[0].counted


def test_what_is_no_choice_is_refused():
    fedavg, other = finetune.fedavg, finetune.linear_model(finetune.random_head(5, 3, key=jax.random.key(2)))
    for candidates, error, message in [
        (fedavg(MODEL), TypeError, "candidates: expected several algorithms, got 'fedavg' alone"),
        ([fedavg(MODEL)], ValueError, "candidates: expected two algorithms or more, got 1"),
        ([covfree.fedcof()] * 2, TypeError, "expected a covfree.rounds.Algorithm"),
        ([finetune.scaffold(MODEL, 0.1)] * 2, ValueError, "expected fedavg, .* got 'scaffold'"),
        ([fedavg(MODEL, 0.1), fedavg(MODEL, optax.adam(0.1))], ValueError, "one algorithm with different"),
        ([fedavg(MODEL), fedavg(MODEL, epochs=2)], ValueError, "one algorithm with different numbers"),
        ([fedavg(MODEL), fedavg(other)], ValueError, "candidates: expected one model for all, got several"),
    ]:
        with pytest.raises(error, match=message):
            finetune.select(candidates)
    with pytest.raises(ValueError, match="keep"):
        finetune.select([fedavg(MODEL), fedavg(MODEL)], keep=0.0)
