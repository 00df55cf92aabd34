"""The notebooks: run in a process of their own, as make does."""

import json
import re
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT, optimising, run_python, type_in

import covfree

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> Path:
    """The notebooks after they were run in an empty folder."""
    folder = tmp_path_factory.mktemp("notebooks")
    for name in NOTEBOOKS:
        shutil.copy(ROOT / "notebooks" / name, folder / name)
        # Where a network sees images, XLA's optimisations pay.
        given = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"} if "images" in name else {}
        run_python("-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", name, cwd=folder, **given)
    return folder


def outputs(notebook: Path) -> list[tuple[str, list[str]]]:
    """What each cell of code printed or showed as text, and of which kinds its outputs are."""
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if "outputs" in cell]
    told = []
    for cell in cells:
        data = [output.get("data", {}) for output in cell["outputs"]]
        printed = ["".join(output.get("text", ())) for output in cell["outputs"]]
        shown = ["".join(each.get("text/plain", ())) for each in data]
        told.append(("".join(printed + shown), sorted({kind for each in data for kind in each})))
    return told


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_print_what_they_show(name, executed):
    kept = outputs(ROOT / "notebooks" / name)
    assert any(text for text, _ in kept), f"{name}: keep its outputs, `make notebooks`"
    assert any("image/png" in kinds for _, kinds in kept)
    assert outputs(executed / name) == kept


def test_a_notebooks_commands_repeat_it(executed, monkeypatch, capsys):
    cells = json.loads((executed / "your_own_images.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "".join(cells[-1]["source"]).replace("\\\n", " ")
    commands = re.findall(r"^covfree (.*)", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["extract", "fit", "evaluate"]
    monkeypatch.chdir(executed)
    for command in commands:
        with optimising() if command.startswith("extract") else nullcontext():
            type_in(shlex.split(command), capsys)
    heads = [covfree.load_head(name).head for name in ("shapes.npz", "head.npz")]
    np.testing.assert_allclose(*(head.weight for head in heads), rtol=1e-3, atol=1e-3)
