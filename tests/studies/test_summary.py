"""What runs come to: means and deviations over seeds, tables, and methods by their texts."""

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

import covfree
from covfree import studies
from covfree.studies import Federation, Run, report
from covfree.studies.federation import LeftOut
from covfree.studies.fingerprint import fingerprint

OWN = """
import dataclasses, jax, covfree, its_helper


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Twice:
    num_features = 64

    def __call__(self, features):
        return 2 * features


@jax.jit
def compiled(covariance, moments):
    return covfree.LinearHead(its_helper.means(moments), moments.mean[:, 0])
"""


def fake(method, seed, accuracy, dataset="digits", federation=None):
    federation = federation or Federation(10, "inner_dirichlet", 0.1)
    sent = covfree.SentBytes(8, 4)
    return Run(method, seed, accuracy, sent, 0, 1, 1, 1, 0.1, 0.2, LeftOut(0, 0), dataset, federation)


def test_means_and_deviations_are_numpys():
    values = [0.91, 0.943, 0.9]
    (result,) = studies.summarise([fake("ncm", seed, value) for seed, value in enumerate(values)])
    assert result.accuracy == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert (result.method, result.title) == ("ncm", "ncm")


def test_a_table_of_methods_by_federations():
    few, many = Federation(10, "inner_dirichlet", 0.1), Federation(10, "inner_dirichlet", 0.5)
    runs = [
        *(fake(m, s, a, federation=few) for m, s, a in (("a", 0, 0.9), ("a", 1, 0.92), ("b", 0, 0.95))),
        *(fake("d", s, 0.9, federation=few) for s in (0, 1)),
        *(fake("b", 0, 0.5, federation=many), fake("c", 0, 0.50001, federation=many)),
    ]
    # Two methods may have one title.
    table = studies.accuracy_table(studies.summarise(runs, {"a": "Method A", "d": "Method A"}))
    assert table.columns == ("method", "alpha 0.1", "alpha 0.5")
    assert table.lines == (
        ("Method A", "91.00 ± 1.41", ""),
        # It failed with the other seed.
        ("b", "95.00 (1 seed)", "50.00"),
        ("Method A", "90.00 ± 0.00", ""),
        ("c", "", "50.00"),
    )
    # Equal to the digits shown is equal; fewer seeds are not compared.
    assert table.best == {(0, 1), (1, 2), (3, 2)}
    assert studies.as_markdown(table).splitlines()[3] == "| b | 95.00 (1 seed) | **50.00** |"
    assert studies.as_latex(table).splitlines()[4:6] == [
        r"Method A & \textbf{91.00} $\pm$ 1.41 &  \\",
        r"b & 95.00 (1 seed) & \textbf{50.00} \\",
    ]


def test_a_user_s_files_tell_methods_apart(tmp_path, monkeypatch):
    """Also a map's class, a compiled function, and a file that is imported."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "its_helper.py").write_text("def means(moments):\n    return moments.mean.T\n")
    (tmp_path / "its_own.py").write_text(OWN)
    own = importlib.import_module("its_own")
    methods = [covfree.fedcof(0.5).with_feature_map(own.Twice()), covfree.fedcof(0.5, head=own.compiled)]
    before = [fingerprint(method) for method in methods]
    assert before == [fingerprint(method) for method in methods]
    (tmp_path / "its_helper.py").write_text("def means(moments):\n    return 0 * moments.mean.T\n")
    helped = [fingerprint(method) for method in methods]
    (tmp_path / "its_own.py").write_text(OWN.replace("2 *", "3 *"))
    changed = [fingerprint(method) for method in methods]
    assert len({*before, *helped, *changed}) == 6


def test_columns_are_named_after_what_differs():
    places = [
        (dataset, Federation(clients, partition, 0.1))
        for dataset, clients, partition in (("a", 10, "iid"), ("a", 20, "iid"), ("b", 10, "shards"))
    ]
    runs = [fake("m", 0, 0.5, *place) for place in places]
    assert studies.accuracy_table(studies.summarise(runs)).columns[1:] == (
        "a, iid, 10 clients",
        "a, iid, 20 clients",
        "b, shards, 10 clients",
    )


def test_latex_takes_signs_of_titles():
    table = studies.Table(("method", "a_b"), (("γ = 1 & 50 % {x} ~ 3×", "1"),))
    text = studies.as_latex(table)
    assert r"$\gamma$ = 1 \& 50 \% \{x\} \textasciitilde{} 3$\times$ & 1 \\" in text
    assert r"method & a\_b \\" in text


def test_signs_of_a_table_are_text():
    table = studies.Table(("a|b", "n"), (("[x] | <b> *y* C:\\z", "∞"), ("*", "1")), frozenset({(0, 1)}))
    assert studies.as_markdown(table).splitlines()[::2] == [
        r"| a\|b | n |",
        r"| [x] \| \<b> \*y\* C:\\z | **∞** |",
    ]
    latex = studies.as_latex(table).splitlines()
    assert latex[2] == r"a\textbar{}b & n \\"
    # A bracket or a star at the start of a line would be an argument of the end of the line before.
    assert latex[4].startswith(
        r"{[}x{]} \textbar{} \textless{}b\textgreater{} {*}y{*} C:\textbackslash{}z & "
    )
    assert latex[4].endswith(r"\textbf{$\infty$} \\")
    assert latex[5] == r"{*} & 1 \\"


def test_methods_by_their_texts():
    found = studies.variants(
        ["fedncm", "fedcof:shrinkage=0.5:head=ridge", "fedcof"], {"shrinkage": [0.1, "auto"]}
    )
    assert {name: variant.title for name, variant in found.items()} == {
        "fedncm": "FedNCM",
        "fedcof:shrinkage=0.5:head=ridge": "FedCOF (shrinkage=0.5, head=ridge)",
        "fedcof:shrinkage=0.1": "FedCOF (shrinkage=0.1)",
        "fedcof:shrinkage=auto": "FedCOF (shrinkage=auto)",
    }
    methods = {name: variant.method for name, variant in found.items()}
    prints = {name: fingerprint(method) for name, method in methods.items()}
    assert len(set(prints.values())) == 4
    assert prints["fedcof:shrinkage=0.1"] == fingerprint(covfree.fedcof(0.1))
    # Beside others, a choice takes the numbers as it does alone.
    alone, beside = (
        studies.variants([*names, "fedncm-or-fedcof"], {"shrinkage": [0.1]})["fedncm-or-fedcof"]
        for names in ([], ["fedcof"])
    )
    assert fingerprint(alone.method) == fingerprint(beside.method)
    # One value for all is in no name, and in the title where it takes a default's place.
    (one,) = studies.variants(["fedcof"], {"shrinkage": [0.1]}).items()
    assert (one[0], one[1].title) == ("fedcof", "FedCOF (shrinkage=0.1)")
    titles = {"fedcof:shrinkage=1": "A (shrinkage=1, head=ridge)"}
    told = report.notes(studies.summarise([fake("fedcof:shrinkage=1", 0, 0.9)], titles))
    assert told[0].startswith("FedCOF sees no covariance at one client")
    assert told[1:] == ["On the command line fedcof:shrinkage=1:head=ridge is A (shrinkage=1, head=ridge)."]
    pooled = studies.summarise([fake("pooled", 0, 0.9)], {"pooled": "All data in one place"})
    assert report.notes(pooled) == []
    of_others = [fake("fedncm", 0, 0.9), fake("fed3r", 0, 0.9), replace(fake("fedcof", 0, 0.9), clients=2)]
    assert not any("no covariance" in note for note in report.notes(studies.summarise(of_others)))
    assert [v.title for v in studies.variants(["fed3r"], {"ridge": [1.0, 2.0]}).values()] == [
        "Fed3R (ridge=1.0)",
        "Fed3R (ridge=2.0)",
    ]


@pytest.mark.parametrize(
    ("names", "numbers", "text"),
    [
        (["bogus"], {}, "methods: unknown method 'bogus'; expected some of fedncm"),
        (["fedncm", "fedncm"], {}, "methods: expected different names, got fedncm twice"),
        ([], {}, "methods: expected names of methods, got none"),
        (
            ["fedcof:shrinkage=1", "fedcof"],
            {"shrinkage": [1.0]},
            "=1 and fedcof, which are the same",
        ),
        (["fedncm:ridge=1"], {}, "methods: fedncm takes no number, got ridge"),
        (["fedcof:head"], {}, r"methods: expected a number such as fedcof:shrinkage=0\.1, got 'fedcof:head'"),
        (["fedncm"], {"ridge": [1.0]}, "ridge: fedncm does not take it; methods that take it: fed3r"),
        (
            ["fedncm", "fedcof"],
            {"ridge": [1.0]},
            "ridge: none of the methods takes it; .*; methods that take it: fed3r",
        ),
        (["fed3r:ridge=much"], {}, "methods: fed3r:ridge=much: "),
        (["fed3r:ridge=1:ridge=2"], {}, "methods: expected ridge once, got 'fed3r:ridge=1:ridge=2'"),
    ],
)
def test_bad_methods(untyped, names, numbers, text):
    with pytest.raises(ValueError, match=text):
        studies.variants(names, numbers)


def test_one_value_is_not_several(untyped):
    with pytest.raises(TypeError, match=r"names: expected several names of methods.*got 'fedncm'"):
        studies.variants("fedncm")
    with pytest.raises(TypeError, match="clients: expected several numbers, such as a list, got 20"):
        studies.federations(20, ["iid"], [1.0])
    with pytest.raises(TypeError, match=r"partitions: expected several names.*got 'iid'"):
        studies.federations([20], "iid", [1.0])
    with pytest.raises(ValueError, match=r"partition: expected one of .* got 'inner'"):
        studies.federations([20], ["inner"], [1.0])
