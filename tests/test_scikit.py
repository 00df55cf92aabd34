"""`FederatedDiscriminant` is a classifier of scikit-learn, and gives the heads that `covfree.fit` gives."""

import jax
import numpy as np
import pytest
import sklearn
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import covfree
from covfree.sklearn import FederatedDiscriminant

RNG = np.random.default_rng(0)
LABELS, CLIENTS = RNG.integers(0, 3, 120), np.arange(120) % 10
FEATURES = RNG.normal(size=(120, 4)) + 2 * np.eye(3, 4)[LABELS]
NAMES = np.array(["b", "a", "c"])[LABELS]
NUMBERS = np.unique(NAMES, return_inverse=True)[1]
SITES = np.array([f"site {client}" for client in CLIENTS])


@pytest.mark.slow
def test_scikit_learn_finds_no_fault():
    # Each of the many shapes compiles for nothing but itself: the method that compiles fastest.
    found = check_estimator(FederatedDiscriminant("fedncm"), on_skip=None)
    passed = {result["check_name"] for result in found if result["status"] == "passed"}
    assert {"check_classifiers_train", "check_estimators_partial_fit_n_features"} <= passed
    assert {result["status"] for result in found} == {"passed", "skipped"}


@pytest.mark.parametrize(
    "name", ["afl", "naive-bayes", covfree.fedcof(0.1), covfree.refined(covfree.fedcof(0.1), 1)]
)
def test_fit_is_that_of_covfree_and_parts_add_up(name):
    method = covfree.methods.registry()[name].make() if isinstance(name, str) else name
    head = covfree.fit(method, FEATURES, NUMBERS, CLIENTS)
    expected = np.asarray(head(FEATURES.astype(np.float32)))
    model = FederatedDiscriminant(name, random_state=0).fit(FEATURES, NAMES, groups=SITES)
    np.testing.assert_allclose(model.decision_function(FEATURES), expected, rtol=2e-4, atol=2e-4)
    assert model.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(model.predict(FEATURES), model.classes_[expected.argmax(1)])
    np.testing.assert_allclose(model.predict_proba(FEATURES), jax.nn.softmax(expected), atol=1e-4)
    parts = FederatedDiscriminant(method)
    if not method.one_shot:
        with pytest.raises(ValueError, match="expected one whose clients send a single message"):
            parts.partial_fit(FEATURES, NAMES, ["a", "b", "c"])
        return
    # Parts cut groups.
    for part in np.array_split(np.random.default_rng(1).permutation(120), 3):
        parts.partial_fit(FEATURES[part], NAMES[part], ["a", "b", "c"], SITES[part])
    np.testing.assert_allclose(parts.decision_function(FEATURES), expected, rtol=2e-4, atol=2e-4)


def test_without_groups_it_is_linear_discriminant_analysis():
    model = FederatedDiscriminant(covfree.fedcof(0.0)).fit(FEATURES, NAMES)
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(FEATURES, NAMES)
    # Theirs divides the scatter by n, ours by n − C; a number that all classes share changes no class.
    ours, theirs = (each.decision_function(FEATURES) - np.log(peer.priors_) for each in (model, peer))
    np.testing.assert_allclose((ours - ours[:, :1]) * 120 / 117, theirs - theirs[:, :1], rtol=1e-3, atol=1e-3)


def test_pipelines_searches_and_cross_validation():
    pipeline = make_pipeline(StandardScaler(), FederatedDiscriminant(covfree.fedcof(0.1)))
    scores = cross_val_score(
        pipeline, FEATURES, NAMES, cv=3, params={"federateddiscriminant__groups": CLIENTS}
    )
    assert scores.min() > 0.7
    gammas = [covfree.fedcof(gamma) for gamma in (0.1, 1e4)]
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedDiscriminant().set_fit_request(groups=True)
        search = GridSearchCV(model, {"method": gammas}, cv=GroupKFold(2))
        search.fit(FEATURES, NAMES, groups=CLIENTS)
    # The best model has seen the groups: a row for each group and class, not for each example.
    assert len(search.best_estimator_.total_.rows.count) == 30
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])


def test_two_classes_an_absent_class_and_a_group_that_comes_again():
    two = FEATURES[NUMBERS < 2], NAMES[NUMBERS < 2], CLIENTS[NUMBERS < 2]
    model = FederatedDiscriminant("fedncm").fit(*two)
    scores = model.decision_function(two[0])
    np.testing.assert_allclose(model.predict_proba(two[0])[:, 1], 1 / (1 + np.exp(-scores)), atol=1e-6)
    np.testing.assert_allclose(two[0] @ model.coef_[0] + model.intercept_[0], scores, rtol=1e-3, atol=1e-3)
    model = FederatedDiscriminant("fedncm").partial_fit(two[0], two[1], ["a", "b", "c"], two[2])
    assert np.isfinite(model.decision_function(two[0])).all()
    assert set(model.predict(FEATURES)) == {"a", "b"}
    assert (model.predict_proba(FEATURES)[:, 2] == 0).all()
    by_hand = (FEATURES @ model.coef_.T + model.intercept_).argmax(1)
    np.testing.assert_array_equal(model.classes_[by_hand], model.predict(FEATURES))
    once = model.coef_
    model.partial_fit(*two[:2], groups=two[2])
    # A group that is cut is one group.
    assert len(model.total_.rows.count) == 20
    np.testing.assert_allclose(model.coef_, once, rtol=1e-5)
    with pytest.raises(ValueError, match="method: expected that of the parts before, 'fedncm'"):
        model.set_params(method="fedcof").partial_fit(*two[:2], groups=two[2])
    for seen in (0, 1):
        one = seen == NUMBERS
        model = FederatedDiscriminant("fedncm").partial_fit(FEATURES[one], NAMES[one], ["a", "b"])
        signs = np.sign(FEATURES @ model.coef_[0] + model.intercept_[0])
        np.testing.assert_array_equal(signs, np.sign(model.decision_function(FEATURES)))
        assert set(model.predict(FEATURES)) == {"ab"[seen]}


def test_after_a_call_that_failed_nothing_counts_as_fitted():
    model = FederatedDiscriminant().fit(FEATURES, NAMES)
    with pytest.raises(ValueError, match="2 classes or more"):
        model.fit(FEATURES, np.zeros(120))
    with pytest.raises(NotFittedError):
        model.predict(FEATURES)
    model = FederatedDiscriminant()
    for classes in (["a", "b", "c"], None):
        with pytest.raises(ValueError, match="groups: expected a name" if classes else "^classes: expected"):
            model.partial_fit(FEATURES, NAMES, classes, np.where(CLIENTS == 3, np.nan, CLIENTS))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: FederatedDiscriminant("fedcov").fit(FEATURES, NAMES), "^method: name: expected one of"),
        (lambda: FederatedDiscriminant().fit(FEATURES, np.zeros(120)), "^y: expected examples of 2 classes"),
        (lambda: FederatedDiscriminant().partial_fit(FEATURES, NAMES), "^classes: expected all classes at"),
        (lambda: FederatedDiscriminant().partial_fit(FEATURES, NAMES, ["a", "b"]), r"got \['c'\]$"),
        (
            lambda: FederatedDiscriminant("ensemble").fit(FEATURES, NAMES),
            "^groups: expected the client of each",
        ),
        (lambda: FederatedDiscriminant().fit(FEATURES, NAMES, CLIENTS[:5]), "inconsistent numbers of"),
        (lambda: FederatedDiscriminant().fit(FEATURES, NAMES, [*SITES[:7], None] * 15), "got None at row 7$"),
        (lambda: FederatedDiscriminant().fit(FEATURES * 1e300, NAMES), "features: row 0 of client 0"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
