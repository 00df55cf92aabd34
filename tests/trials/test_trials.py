"""Three readers of the documentation, who type what it says: a JAX programmer, a researcher, an engineer."""

import json

from pages import commands, run_page, type_in


def test_a_programmer_runs_the_readme_in_a_process_of_its_own(folder):
    run_page("README.md", folder)


def test_an_engineer_runs_the_page_on_servers_in_a_process_of_its_own(folder):
    run_page("docs/server.md", folder)


def test_a_researcher_with_photographs(photos, folder, capsys):
    said = [type_in(command, capsys) for command in commands("docs/images.md")]
    assert (folder / "photos.npz").exists()
    # Features from the file and straight from the images make the same table.
    from_file, from_images = ([line for line in out.splitlines() if "FedCOF" in line] for out in said[-2:])
    assert [line.split("│")[1] for line in from_file] == [line.split("│")[1] for line in from_images]


def test_a_researcher_with_features_of_its_own(features, folder, capsys):
    for command in commands("docs/how-to.md"):
        type_in(command, capsys)
    assert "\\begin{tabular}" in (folder / "table.tex").read_text()
    assert json.loads((folder / "results" / "results.json").read_text())["results"]
    for command in commands("README.md", but=("all", "photos", "backbones", "finetune", "--help")):
        type_in(command, capsys)
    assert (folder / "confusion.csv").read_text().count("\n") == 4
