"""The programs of docs/from-pytorch.md with torch run, and the first gives what it says."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from pages import programs

from covfree.backbones import Preprocessing

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the page's programs are not run")
FIRST, SECOND, _ = programs("docs/from-pytorch.md")


def test_the_program_gives_what_its_comment_says(capsys):
    exec(FIRST, {})
    (said,) = re.findall(r"# (0\.\d+)$", FIRST, re.MULTILINE)
    (printed,) = re.findall(r"0\.\d+", capsys.readouterr().out)
    assert round(float(printed), 2) == float(said)


def test_photographs_through_a_module(monkeypatch, tmp_path):
    """With a module as timm makes them."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for name, level in (("dark", 10), ("light", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(tmp_path / "photos" / name / "0.png")

    def create_model(name, *, pretrained, num_classes):
        assert (name, pretrained, num_classes) == ("resnet18", True, 0)
        return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    transform = Preprocessing(8, 8, "bilinear", (0.0,) * 3, (100.0,) * 3)
    data = SimpleNamespace(
        resolve_data_config=lambda given, *, model: {"input_size": (3, 8, 8)},
        create_transform=lambda *, input_size, is_training: transform,
    )
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model, data=data))
    exec(SECOND, {})
    with np.load("photos.npz") as found:
        np.testing.assert_allclose(found["features"], np.full((2, 3), [[0.1], [2.0]]), rtol=1e-5)
