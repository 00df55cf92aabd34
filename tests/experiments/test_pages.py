"""Pages of experiments whose tables the experiments themselves make of kept results."""

import json
from pathlib import Path

import numpy as np
import pytest

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
