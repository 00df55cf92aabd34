"""How long the data's ways through the code are: covfree's own functions and files that a call enters.

They may become shorter, and then so may the numbers here. Up to 19 functions make compilation quick: the
automatic rule apart from the rest, with other flags of XLA.
"""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from pages import run_python

import covfree
from covfree import finetune, rounds

pytestmark = pytest.mark.slow

ROOT = str(Path(covfree.__file__).parent)
RNG = np.random.default_rng(0)
LABELS, CLIENTS = RNG.integers(0, 3, 400), np.arange(400) % 12
FEATURES = (RNG.normal(size=(400, 8)) + np.eye(3, 8)[LABELS]).astype(np.float32)


def entered(call):
    """Functions and files of covfree that a call enters, tracing included; comprehensions are left out."""
    seen = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    jax.clear_caches()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        jax.block_until_ready(call())
    finally:
        sys.setprofile(before)
    # Once sweeps are imported, they listen to what is compiled.
    seen = {(file, name) for file, name in seen if name != "_listen"}
    named = {(file, name) for file, name in seen if "<" not in name.rpartition(".")[2]}
    return len(named), len({file for file, _ in named})


def fit(method):
    return covfree.fit(method, FEATURES, LABELS, CLIENTS, num_classes=3)


def received():
    sent = {
        str(k): covfree.client_message(
            covfree.fedcof(), FEATURES[k == CLIENTS], LABELS[k == CLIENTS], num_classes=3
        )
        for k in range(3)
    }
    return lambda: covfree.solve_message(
        covfree.fedcof(), covfree.collect(sent, num_classes=3).message, num_classes=3
    )


def fedavg():
    model = finetune.linear_model(finetune.random_head(8, 3, key=jax.random.key(0)))
    algorithm = finetune.fedavg(model, 0.1, steps=1, batch_size=16)
    return lambda: (
        rounds.run(algorithm, FEATURES, LABELS, CLIENTS, key=jax.random.key(0), rounds=1).result.weight
    )


WAYS = {
    "fit": (lambda: lambda: fit(covfree.fedcof()), (166, 32)),
    "fit, a number": (lambda: lambda: fit(covfree.fedcof(1.0)), (142, 29)),
    "refined": (lambda: lambda: fit(covfree.refined(covfree.fedcof(), 1)), (189, 36)),
    "received": (received, (191, 37)),
    "a round of FedAvg": (fedavg, (92, 20)),
}


def test_the_ways_do_not_grow_longer():
    # In a process of its own: what was traced before is not entered again.
    run_python("tests/test_ways.py")


if __name__ == "__main__":
    for name, (make, most) in WAYS.items():
        found = entered(make())
        assert found[0] <= most[0], (name, found, most)
        assert found[1] <= most[1], (name, found, most)
