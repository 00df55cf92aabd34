"""The pictures and the page of a study that was made in Python."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import covfree
from covfree import studies
from covfree.data import load_digits


def made(alphas, *, predictions=False, more=None) -> studies.Study:
    places = studies.federations([6], ["inner_dirichlet"], alphas)
    methods = {"<b>: odd-or-even": covfree.fedncm(), **(more or {})}
    return studies.Study(
        {"digits": lambda seed: load_digits(seed=seed)}, places, methods, [0], (), predictions
    )


@pytest.mark.parametrize(
    ("study", "drawn", "told"),
    [
        (made([0.1, 1.0]), {"accuracy_vs_alpha"}, False),
        (made([0.1], predictions=True), {"accuracy_vs_bytes"}, True),
        pytest.param(
            made([0.1], more=studies.variants(["fedcof"], {"shrinkage": [0.1, 1.0]})),
            {"accuracy_vs_bytes", "accuracy_vs_shrinkage"},
            False,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_study_in_python_has_the_pictures_and_the_page_of_a_command(study, drawn, told, tmp_path):
    page, *pictures = studies.illustrate(study, study.runs(), tmp_path / "new" / "folder")
    expected = {f"{name}.{suffix}" for name in drawn for suffix in ("png", "pdf", "svg")}
    assert {path.name for path in pictures} == expected
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {"page.html", *expected}
    text = page.read_text(encoding="utf-8")
    assert "&lt;b&gt;: odd-or-even" in text
    assert "covfree compare" not in text
    assert "How to repeat it" not in text
    assert "On the command line &lt;b&gt;" not in text
    assert "How often clients took each method" not in text
    assert ("Accuracy by class" in text) == told


def test_settings_may_be_of_numpy_and_paths(tmp_path):
    own = {"ridge": np.float32(0.5), "bins": np.arange(2), "cache": Path("a/b"), "how": {"at": Path("c")}}
    study = dataclasses.replace(made([0.1]), seeds=np.arange(1), settings=own)
    page, *_ = studies.illustrate(study, study.runs(), tmp_path)
    shown = re.findall(r"<td>(.*?)</td>", page.read_text(encoding="utf-8"))
    assert {"0.5", "0, 1", "a/<wbr>b", "{&quot;at&quot;: &quot;c&quot;}"} <= set(shown)


def test_no_runs_make_no_page(tmp_path):
    with pytest.raises(ValueError, match="runs: expected at least one run, got none"):
        studies.illustrate(made([0.1]), [], tmp_path)


def test_an_iterator_that_was_read_is_told_from_no_runs(tmp_path):
    study = made([0.1])
    with pytest.raises(ValueError, match=r"got none; an iterator is read once: give list\(study.runs\(\)\)"):
        studies.illustrate(study, iter([]), tmp_path)


def test_the_page_tells_the_federations_and_a_folder_may_be_text(tmp_path):
    study = dataclasses.replace(made([0.1, 1.0]), folder=str(tmp_path / "kept"))
    twice = [*study.runs(), *study.runs()]
    assert [len(result.runs) for result in studies.summarise(twice)] == [1, 1]
    page, *_ = studies.illustrate(study, twice, tmp_path)
    assert (tmp_path / "kept" / "runs.jsonl").exists()
    text = page.read_text(encoding="utf-8")
    for name, value in (("clients", "6"), ("partition", "inner_dirichlet"), ("alpha", "0.1, 1.0")):
        assert f'<th scope="row">{name}</th><td>{value}</td>' in text


@pytest.mark.slow
def test_data_need_to_know_only_the_studys_seeds(tmp_path):
    study = made([0.1])
    known = {name: {3: load(3)}.__getitem__ for name, load in study.datasets.items()}
    study = dataclasses.replace(study, seeds=[3], datasets=known)
    assert studies.illustrate(study, study.runs(), tmp_path)


def test_a_method_of_any_name_has_the_mark_of_its_family(tmp_path):
    study = made([0.1])
    _, *pictures = studies.illustrate(study, study.runs(), tmp_path)
    (drawn,) = (path for path in pictures if path.suffix == ".svg")
    assert ">class means</text>" in drawn.read_text(encoding="utf-8")
