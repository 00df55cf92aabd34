"""A researcher, with photographs and with features, who types the pages' commands."""

import json
import re

import numpy as np
import pytest
from pages import ROOT, commands, optimising, type_in

pytestmark = pytest.mark.slow


def test_photographs(photos, folder, capsys):
    extract, *others = commands("docs/images.md")
    with optimising():
        type_in(extract, capsys)
    # What is compiled for the network serves these too.
    said = [type_in(command, capsys) for command in others]
    assert (folder / "photos.npz").exists()
    # Features from the file and straight from the images make the same table.
    from_file, from_images = ([line for line in out.splitlines() if "FedCOF" in line] for out in said[-2:])
    # The first line has the accuracy; a wide table goes on in a second block, of times.
    assert from_file[0].split("│")[1] == from_images[0].split("│")[1]


def test_features_of_their_own(features, folder, capsys):
    for command in commands("docs/how-to.md"):
        type_in(command, capsys)
    assert "\\begin{tabular}" in (folder / "table.tex").read_text()
    assert json.loads((folder / "results" / "results.json").read_text())["results"]


def test_the_readme_shows_what_its_commands_print(folder, capsys):
    """The first table: accuracies and bytes; its seconds are those of one machine."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+), `(\S+)` \| \**([\d.]+) ± ([\d.]+)\** \| ([\d.,]+) \|", text, re.M)
    shown = {name: (*numbers, often) for often, name, *numbers in rows}
    once, trained, publish = commands("README.md")
    found = json.loads(type_in([*once, "--format", "json"], capsys))["results"]
    printed = {
        each["method"]: (each["accuracy_mean"], each["accuracy_sd"], 1, each["bytes_up"]) for each in found
    }
    for each in json.loads(type_in([*trained, "--format", "json"], capsys))["results"]:
        rounds = each["runs"][0]["rounds"]
        accuracy = each["last_accuracy_mean"], each["last_accuracy_sd"]
        printed[each["algorithm"]] = (*accuracy, rounds, each["bytes_up"])
    assert shown.keys() == printed.keys()
    for name, (mean, deviation, size, often) in shown.items():
        expected = printed[name]
        # One image of the test part is 0.17 points of one seed, and 0.03 of the mean; rounding is 0.05.
        np.testing.assert_allclose([float(mean), float(deviation)], 100 * np.array(expected[:2]), atol=0.12)
        assert often in {"means", "matrices"} if expected[2] == 1 else often == f"{expected[2]} rounds"
        assert 1e3 * float(size.replace(",", "")) == pytest.approx(expected[3], rel=0.01)
    ((gain, share),) = re.findall(r"by ([\d.]+) points at a (\d+)th of the\s+bytes", text)
    best, rounds = printed["fedcof-student"], printed["fedadam"]
    assert float(gain) == pytest.approx(100 * (best[0] - rounds[0]), abs=0.12)
    assert int(share) == pytest.approx(rounds[3] / best[3], abs=0.51)
    assert "\\begin{tabular}" in type_in([*publish, "--seeds", "1"], capsys)
    assert (folder / "results" / "accuracy_vs_bytes.pdf").exists()
    assert (folder / "page.html").exists()
