"""Pages of experiments whose tables the experiments themselves make of kept results."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covfree.studies.plots.style import PAGE, PHONE
from experiments.automatic_choice import summary

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


def test_the_summary_of_automatic_shrinkage_is_of_the_kept_results():
    records = json.loads((FOLDER / "automatic_choice.json").read_text(encoding="utf-8"))["results"]
    page = (FOLDER / "automatic_choice.md").read_text(encoding="utf-8")
    assert "\n".join(summary(records)) in page


@pytest.mark.usefixtures("experiments")
def test_a_file_without_a_test_part_is_refused(tmp_path):
    from data_sets import stored

    np.savez(tmp_path / "own.npz", features=np.ones((2, 3)), labels=np.zeros(2))
    with pytest.raises(ValueError, match=r"own.npz: expected features, labels and is_test, got no is_test"):
        stored(tmp_path / "own.npz")


@pytest.mark.usefixtures("experiments")
def test_the_table_of_student_heads_is_of_the_kept_results():
    from student import table

    kept = json.loads((FOLDER / "student.json").read_text(encoding="utf-8"))
    assert table(kept) in (FOLDER / "student.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("experiments")
def test_pictures_of_several_panels_have_a_second_drawing_for_phones(tmp_path):
    from prompt_tuning_plot import plot
    from refinement_plot import picture

    kept = json.loads((FOLDER / "prompt-tuning" / "results.json").read_text(encoding="utf-8"))
    assert plot(kept["runs"], PHONE).get_figwidth() == PHONE
    kept = json.loads((FOLDER / "refinement" / "results.json").read_text(encoding="utf-8"))
    panels = {name: kept[f"digits, {name}, α = 0.1"] for name in ("10 clients", "100 clients")}
    picture(tmp_path / "digits.png", "digits", panels)
    for name, width in (("digits", PAGE), ("digits-phone", PHONE)):
        with Image.open(tmp_path / f"{name}.png") as drawn:
            assert drawn.width == 200 * width
