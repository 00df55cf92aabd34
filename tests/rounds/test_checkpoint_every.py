"""Checkpoints that are saved every few rounds."""

import jax
import numpy as np
import pytest

from covfree.finetune import fedavg, linear_model, random_head
from covfree.rounds import Checkpoint, run

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 30)
FEATURES = (RNG.normal(size=(30, 4)) + np.eye(3, 4)[LABELS]).astype(np.float32)
CLIENTS = np.arange(30) % 5


def trained(rounds, **options):
    algorithm = fedavg(linear_model(random_head(4, 3, key=jax.random.key(0))), 0.1)
    key = jax.random.key(1)
    return run(algorithm, FEATURES, LABELS, CLIENTS, key=key, rounds=rounds, participation=2, **options)


def test_the_state_is_saved_every_few_rounds_and_at_the_end(tmp_path):
    seen = []

    def look(history):
        seen.append([path.name for path in tmp_path.glob("[0-9]*")])
        return len(history) == 7

    stopped = trained(9, checkpoint=Checkpoint(tmp_path, every=3), stop=look)
    # Saved before it is asked whether to stop.
    assert seen == [[], [], ["3"], ["3"], ["3"], ["6"], ["6"]]
    assert [path.name for path in tmp_path.glob("[0-9]*")] == ["7"]
    assert len(stopped.history) == 7
    resumed, whole = trained(9, checkpoint=Checkpoint(tmp_path, every=3)), trained(9)
    assert [record["round"] for record in resumed.history] == list(range(9))
    np.testing.assert_array_equal(resumed.result.weight, whole.result.weight)
    with pytest.raises(ValueError, match="checkpoint: every: expected an integer of at least 1, got 0"):
        Checkpoint(tmp_path, every=0)
