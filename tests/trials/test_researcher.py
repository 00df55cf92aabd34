"""A researcher, with photographs and with features, who types the pages' commands."""

import json

from pages import commands, type_in


def test_photographs(photos, folder, capsys):
    said = [type_in(command, capsys) for command in commands("docs/images.md")]
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


def test_commands_of_the_readme(features, folder, capsys):
    for command in commands("README.md", but=("all", "photos", "backbones", "finetune", "--help")):
        type_in(command, capsys)
    assert (folder / "confusion.csv").read_text().count("\n") == 4
    assert (folder / "sweep" / "runs.jsonl").exists()
