"""Contracts that every registered method keeps; a method added to the registry is tested unasked.

They are those of `covfree.testing`, and what only covfree's own methods promise. Compilation is what costs:
all tests of a method run one after the other, on federations of one shape.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from classifiers import (
    DRAWN,
    KEY,
    ONE_SHOT,
    ORACLES,
    ROW_ORACLES,
    SAMPLED,
    TRAINED,
    assert_same_classifier,
    default,
    expected_head,
    make,
    tolerance,
)
from federations import Federation
from variants import slow

import covfree
from covfree.methods import registry
from covfree.testing import check_method
from covfree.testing.federations import CLASSES, federation
from covfree.testing.method import METHOD_LAWS

DIM = 5
# Heads about an origin: where the mean is 1000 times the spread their system has condition 1e7, and features
# scaled to norm 1 differ by a thousandth.
ABOUT_ORIGIN = {*("afl", "fed3r", "fed3r-within", "fedcof-paper", "fedncm", "fedran", "stsa-e")}
# Their λ or γ is in the features' unit.
OF_A_UNIT = {"afl", "fed3r", "fed3r-within", "fedcof-paper", "fedran", "stsa-e"}
# A method for each way in which clients make something of features, and for each system that a server solves.
OF_SUMMARIES = ["fedncm", "fed3r", "naive-bayes", *slow("fedcof-components", "fedcof-random")]
OF_SUMS = ["fed3r", "afl", "fedcof", *slow("fed3r-within", "fedcgs", "fedcof-paper", *ROW_ORACLES)]
# A method for each kind of message; what the others send is solved in tests/test_messages.py.
OF_MESSAGES = {"fedncm", "naive-bayes", "fed3r", "afl", "fedcof-oracle"}
# A method for each kind of part that `vmap` may meet; what it makes of heads is compared in tests/heads.
OF_PARTS = {"fedcof", "naive-bayes", "fed3r", "ccvr"}
# A method for each estimate that the automatic rule looks at.
OF_ESTIMATES = ["fedcof", "fedcof-components", "fedcof-oracle", "fedcof-diagonal", "qda"]
# Laws that are none, and why.
UNIT = {"scaling": "the tests' γ and λ are in the features' unit"}
CLIENTS_DRAW = dict.fromkeys(
    ("order", "messages"), "what a client draws depends on its key and on its examples' order"
)
SERVER_DRAWS = {
    "gradients": "the heads' are checked: tests/heads/test_softmax.py; what is drawn has none in reverse",
    "classes": "the server draws for one class after the other",
}
# Whose totals are those of another method of the same phases, over rows that are summed up in one way. They
# differ in maps and heads, which are differentiated in tests of their own.
OF_TOTALS = ("splitting", "gradients")
SAME_TOTALS = {
    "fedcof-paper": "fedcof",
    "fedcof-random": "fedcof",
    "afl": "fed3r",
    "ccvr": "qda",
    "fishermix": "qda",
    "proto-hyper": "qda",
}
OTHERS = {
    "fedpft": {"clients": "the server draws from the rows in their order"},
    "ensemble": {
        "gradients": SERVER_DRAWS["gradients"],
        "splitting": "rows are kept, as fedpft's are",
        "learns": "a client knows its own classes alone",
    },
    "fedcof-residuals-student": {"gradients": "its rows' are fedcof-residuals', its head's fedcof-student's"},
    "fed3r-within": {"gradients": "its sums' are fed3r's"},
    "fedcgs": {"gradients": "its sums' are fed3r's, its head's fedcof's"},
    "fedcof-spherical": {"gradients": "as those of fedcof-diagonal"},
    "qda": {"gradients": "its sums' are fedcof-oracle's, its head's those of qda-means"},
    "fedran": dict.fromkeys(OF_TOTALS, "directions are those of fedcof-residuals, sums those of fed3r"),
    "stsa-e": dict.fromkeys(OF_TOTALS, "rows are those of fedcof, sums those of fed3r-within"),
}


@pytest.fixture(scope="module", autouse=True)
def strict():
    """Nowhere in a method are data types mixed, which jax may refuse."""
    with jax.numpy_dtype_promotion("strict"):
        yield


# Their parts are those of others.
COMBINED = ["fedcof-components", "fedcof-random", "fedcof-residuals-student", "fedcof-spherical", "qda-means"]
VARIANTS = [
    *COMBINED,
    *(
        "ccvr",
        "ensemble",
        "fed3r-within",
        "fedcgs",
        "fedcof-diagonal",
        "fedcof-residuals",
        "fedcof-student",
        "fedpft",
        "fedran",
        "fishermix",
        "proto-hyper",
    ),
]


@pytest.fixture(scope="module", params=[*sorted({*ONE_SHOT} - {*VARIANTS}), *slow(*VARIANTS)])
def name(request):
    return request.param


def fit(method, examples, num_classes=CLASSES):
    """The head of float32 features."""
    features, labels, clients = examples
    features = np.asarray(features, np.float32)
    return covfree.fit(method, features, labels, clients, num_classes=num_classes, key=KEY)


def reference(name, method):
    """The oracle as `check_method` calls it."""

    summarise = jax.jit(lambda *columns: covfree.summarise(method, *columns, key=KEY))

    def formula(features, labels, clients, num_classes):
        if name in ROW_ORACLES:  # of the rows that the library draws
            rows = summarise(features, labels, clients)
            kept = np.asarray(rows.count) > 0
            head = ROW_ORACLES[name](jax.tree.map(lambda x: np.asarray(x)[kept], rows), num_classes)
        else:
            head = expected_head(name, method, Federation(features, labels, clients), num_classes)
        return head if callable(head) else lambda x: with_absent(x @ head[0] + head[1], labels)

    def with_absent(scores, labels):
        return np.where(np.isin(np.arange(CLASSES), labels), scores, -np.inf)

    return formula


def test_every_method_has_an_oracle():
    assert sorted([*ORACLES, *ROW_ORACLES, *TRAINED]) == sorted(ONE_SHOT), (
        "write the method's formula in tests/oracle.py and list it in tests/classifiers.py"
    )


def test_entry_describes_its_method(name):
    entry = registry()[name]
    assert entry.title
    method = entry.make()
    assert method.name
    assert entry.accepts <= set(inspect.signature(entry.make).parameters)
    with pytest.raises(TypeError):
        registry()["new"] = entry  # read-only
    # Two that are made alike are alike: they share compiled functions.
    assert jax.tree.structure(entry.make()) == jax.tree.structure(method)


# The laws are of values; types are checked by all other tests. (An older jax fills the records with
# placeholders on the way to several devices.)
@pytest.mark.usefixtures("untyped")
def test_laws(name):
    method = make(name)
    exclude = {
        **(UNIT if jax.tree.structure(default(name)) != jax.tree.structure(method) else {}),
        **(UNIT if name in OF_A_UNIT else {}),
        **({} if name in OF_MESSAGES else {"messages": "those of its kind are checked"}),
        **({} if name in OF_PARTS else {"vmap": "its parts are those of other methods"}),
        **(dict.fromkeys(OF_TOTALS, f"that of {SAME_TOTALS[name]}") if name in SAME_TOTALS else {}),
        **(CLIENTS_DRAW if name in DRAWN else {}),
        **(SERVER_DRAWS if name in SAMPLED else {}),
        **OTHERS.get(name, {}),
    }
    check_method(
        method,
        key=KEY,
        reference=None if name in TRAINED else reference(name, method),
        tolerance=tolerance(name, 1e-9),
        exclude=exclude,
    )


@pytest.mark.parametrize(("name", "other"), SAME_TOTALS.items())
def test_totals_are_those_of_another_method(name, other):
    one, same = make(name), make(other)
    assert (one.summary.make, one.summary.sizes, one.rounds) == (
        same.summary.make,
        same.summary.sizes,
        same.rounds,
    )


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", ["fedcof", *slow(*(name for name in OF_ESTIMATES if name != "fedcof"))])
def test_defaults_need_no_tuning(name):
    """The automatic rule in place of the tests' γ: finite heads whatever the federation, and no unit.

    Of `fedcof`, all laws: it is what everybody calls first.
    """
    method = default(name)
    assert jax.tree.structure(method) != jax.tree.structure(make(name))
    exclude = {}
    if name != "fedcof":
        exclude = {law.__name__: "test_laws checks it" for law in METHOD_LAWS}
        del exclude["finite"], exclude["scaling"]
    check_method(method, key=KEY, exclude=exclude)


def test_far_from_zero(name):
    """Predictions are those of float64 however far the features lie from zero, against their spread.

    Heads about an origin cannot be: `diagnose` says so (tests/engine/test_diagnosis.py).
    """
    method, rng = make(name), np.random.default_rng(0)
    near = federation(DIM).padded_last.clean
    for offset in (0.0, 10.0, 1e3, 1e4):
        examples = Federation(*near._replace(features=(near.features + offset).astype(np.float32)))
        some = rng.integers(0, len(examples.labels), 2000)
        tests = examples.features[some] + rng.normal(size=(2000, DIM)).astype(np.float32)
        scores = np.asarray(fit(method, examples)(tests))
        assert np.isfinite(scores[:, near.held]).all()
        if name in ABOUT_ORIGIN and offset > 100:
            continue
        if name in TRAINED:
            # No formula: what it makes of the same features near zero.
            moved = examples.with_features(examples.features - np.float32(offset))
            expected = np.asarray(fit(method, moved)(tests - np.float32(offset)))
        else:
            exact = expected_head(name, method, examples)
            doubled = tests.astype(np.float64)
            expected = exact(doubled) if callable(exact) else doubled @ exact[0] + exact[1]
        agreement = (scores.argmax(-1) == expected.argmax(-1)).mean()
        assert agreement >= 0.995, (offset, agreement)


@pytest.mark.parametrize("name", OF_SUMMARIES)
def test_half_precision_features_are_computed_in_float32(name):
    features, labels, clients = federation(DIM).padded_last.clean
    half = jnp.asarray(features, jnp.bfloat16)
    head = covfree.fit(make(name), half, labels, clients, num_classes=CLASSES, key=KEY)
    rounded = fit(make(name), (np.asarray(half.astype(jnp.float32)), labels, clients))
    assert_same_classifier(head, rounded, tolerance(name, 1e-5))


@pytest.mark.parametrize("name", OF_SUMS)
def test_more_dimensions_than_rows(name):
    # The dual route, with two classes that nobody holds beyond those that there are.
    rng = np.random.default_rng(4)
    labels, clients = rng.integers(0, 3, 24), rng.integers(0, 4, 24)
    features = (rng.normal(size=(24, 60)) + labels[:, None] * rng.normal(size=60)).astype(np.float32)
    examples = Federation(features, labels, clients)
    method = make(name)
    head = jax.jit(lambda m, x, y, k: covfree.fit(m, x, y, k, num_classes=5, key=KEY))(method, *examples)
    assert (np.asarray(head(features)).argmax(-1) == labels).mean() > 0.85
    assert_same_classifier(head, expected_head(name, method, examples, 5), 1e-3, dim=60)
