"""The benchmark of the estimators' errors agrees with its theory, and would say so if it did not."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from covfree.studies.plots.style import PHONE

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
DRAWS = 300


@pytest.fixture(scope="module")
def script():
    """The script, which finds its helpers beside it as it does when it is run."""
    helpers = ("common", "variance_picture", "variance_theory", "estimator_variance")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("estimator_variance")
        for name in helpers:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def few(script):
    """One of each kind of estimator, on a federation of unequal counts with client shift."""
    kinds = [("eq. 5", 1), ("components", 2), ("exact", 1)]
    return tuple(script.Estimator(*kind) for kind in kinds), script.Setting(6, 20, 3, 0.5, 0.5)


def test_measured_errors_agree_with_theory(script, few):
    estimators, setting = few
    point = script.study(setting, estimators, draws=DRAWS)
    assert script.contradictions([point]) == []
    assert point["draws"] >= DRAWS
    results = point["results"]
    assert set(results) == {estimator.name for estimator in estimators}
    for result in results.values():
        assert result["measured"]["error"] == pytest.approx(result["theory"]["error"], rel=0.25)
    # Eq. 22: here alone the spread of clients' means is taken for covariance.
    biased = {name for name, r in results.items() if r["theory"]["squared_bias"] > 1e-9}
    assert biased == {"eq. 5, J = 1"}


def test_the_picture_is_drawn_for_phones_too(script):
    kept = json.loads((FOLDER / "estimator_variance.json").read_text(encoding="utf-8"))
    drawn = script.picture(kept["panels"], script.ESTIMATORS, kept["numbers"], script.NUMBERS, PHONE)
    assert drawn.get_figwidth() == PHONE
    assert drawn.axes[0].get_gridspec().get_geometry() == (3, 2)


def test_rounds_are_measured(monkeypatch):
    """On few clients: seconds of each round, and a model that learns."""
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("rounds")
    monkeypatch.setitem(script.SIZES, "few", script.Size(4, (8,), 3, 0.5, 12))
    found = script.by_covfree("few")
    assert len(found["seconds"]) == 12
    assert found["accuracy"] > 0.4
    assert script.best([{"round": 2.0}, {"round": 1.0}]) == {"round": 1.0}
    for name in ("rounds", "common"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("mean_scale", "variance_scale", "z"), [(1.2, 1, "z_mean"), (1, 2.0, "z_variance")])
def test_wrong_theory_is_contradicted(script, few, mean_scale, variance_scale, z):
    estimators, setting = few

    def wrong(estimator, federation):
        mean, variance = script.theory(estimator, federation)
        return mean * mean_scale, variance * variance_scale

    point = script.study(setting, estimators, draws=DRAWS, expected=wrong)
    found = script.contradictions([point])
    for estimator in estimators:
        assert any(line.startswith(f"{estimator.name} ") and z in line for line in found), estimator
