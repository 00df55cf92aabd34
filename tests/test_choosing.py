"""docs/choosing.md and the pages of the four federations say what the kept results say."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("methods-caltech101", "methods-digits", "methods-text", "methods-speech")
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


def test_every_row_of_the_table_is_of_the_kept_results():
    page = (ROOT / "experiments/choosing.md").read_text(encoding="utf-8")
    rows = {match[1]: match[2].split(" | ") for match in re.finditer(r"^\| `(.+?)` \| (.+) \|$", page, re.M)}
    for column, folder in enumerate(FOLDERS):
        file = ROOT / "experiments" / folder / "results.json"
        results = {each["method"]: each for each in json.loads(file.read_text(encoding="utf-8"))["results"]}
        assert rows.keys() == results.keys()
        for method in rows:
            found = results[method]
            match = re.fullmatch(r"([\d.]+) ± ([\d.]+), ([\d.]+) (\wB)", rows[method][column])
            assert match, rows[method][column]
            assert float(match[1]) == pytest.approx(100 * found["accuracy_mean"], abs=0.0501)
            assert float(match[2]) == pytest.approx(100 * found["accuracy_sd"], abs=0.0501)
            size = found["bytes_up"] + found["bytes_down"]
            assert float(match[3]) * UNITS[match[4]] == pytest.approx(size, rel=0.006)


def test_the_advice_has_figures_of_the_kept_results():
    text = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `((?:fedcof|qda|fedncm)\(.*?\))`.*?((?: \| [\d.]+)+) \|$", text, re.M))
    methods = {
        "fedcof()": "fedcof",
        'fedcof(head="student")': "fedcof-student",
        'qda(covariance="means")': "qda-means",
        "fedncm()": "fedncm",
    }
    assert rows.keys() == methods.keys()
    for name, method in methods.items():
        for shown, folder in zip(re.findall(r"[\d.]+", rows[name]), FOLDERS, strict=True):
            file = ROOT / "experiments" / folder / "results.json"
            kept = json.loads(file.read_text(encoding="utf-8"))["results"]
            (accuracy,) = (each["accuracy_mean"] for each in kept if each["method"] == method)
            assert float(shown) == pytest.approx(100 * accuracy, abs=0.0501)


def test_the_gains_of_student_heads_are_of_the_kept_results():
    kept = json.loads((ROOT / "experiments/student.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| ([+-][^;]+;.+) \|$", text, re.M)
    assert [name for name, _ in rows] == ['fedcof(head="student")', 'qda(covariance="means")']
    for (_, cells), method in zip(rows, ("ρ = 1", "qda-means"), strict=True):
        for cell, data in zip(cells.split(" | "), ("digits", "speech", "texts", "Caltech-101"), strict=True):
            for shown, shift in zip(cell.split("; "), ("", ", shift"), strict=True):
                runs = kept[f"{data}, 100 clients, α = 0.1{shift}"]
                gain = sum(run[method][0] - run["LDA"][0] for run in runs) / len(runs)
                assert float(shown) == pytest.approx(gain, abs=0.0501)
    gains = {
        method: [[run[method][0] - run["LDA"][0] for run in runs] for runs in kept.values()]
        for method in ("ρ = 1", "qda-means")
    }
    average = {method: sum(sum(g) / len(g) for g in each) / len(kept) for method, each in gains.items()}
    worst = {method: -min(map(min, each)) for method, each in gains.items()}
    for number, where in (
        (average["ρ = 1"], r"its mean gain over `fedcof\(\)` was ([\d.]+)"),
        (worst["ρ = 1"], r"and it never lost\s+more than ([\d.]+) points\s+to `fedcof\(\)`, in any seed"),
        (average["qda-means"], r"`qda-means` gained ([\d.]+)"),
        (worst["qda-means"], r"but lost ([\d.]+) points\s+to it in the worst seed"),
    ):
        assert float(re.findall(where, text)[0]) == pytest.approx(number, abs=0.0501)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_page_of_a_federation_has_its_kept_results(folder):
    place = ROOT / "experiments" / folder
    kept = json.loads((place / "results.json").read_text(encoding="utf-8"))["results"]
    results = {each["title"]: each for each in kept}
    rows = re.findall(
        r"^\| (.+?) \| ([\d.]+) ± ([\d.]+) \| ([\d.]+) (\w?B) ",
        (place / "README.md").read_text("utf-8"),
        re.M,
    )
    assert len(rows) > 25
    for title, mean, deviation, size, unit in rows:
        found = results[title]
        assert float(mean) == pytest.approx(100 * found["accuracy_mean"], abs=0.0051)
        assert float(deviation) == pytest.approx(100 * found["accuracy_sd"], abs=0.0051)
        step = 0.1 if "." in size else 1.0
        assert float(size) == pytest.approx(found["bytes_up"] / UNITS[unit], abs=0.51 * step)
