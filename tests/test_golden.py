"""Parity with the classifiers that the methods' official implementation gave."""

import numpy as np
import pytest
from precision import assert_close

import covfree

FEDERATIONS = ["digits-k100-a0.1", "digits-k30-a0.5"]


@pytest.mark.parametrize("federation", FEDERATIONS)
@pytest.mark.parametrize("name", ["fedncm", "fed3r", "fedcof"])
def test_weights_and_accuracy(shared, federation, name):
    with np.load(shared / "data" / "golden" / f"{federation}.npz") as file:
        data = dict(file)
    method = {
        "fedncm": covfree.fedncm,
        "fed3r": lambda: covfree.fed3r(float(data["ridge"])),
        "fedcof": lambda: covfree.fedcof(shrinkage=float(data["gamma"]), weighting="per_class", head="ridge"),
    }[name]()
    head = covfree.fit(method, data["train_features"], data["train_labels"], data["clients"], num_classes=10)
    assert_close(head.weight, data[f"{name}_weight"].T, 1e-3)
    np.testing.assert_array_equal(head.bias, 0)
    accuracy = 100 * float(covfree.evaluate(head, data["test_features"], data["test_labels"]))
    assert accuracy == pytest.approx(float(data[f"{name}_accuracy"]), abs=0.1)
