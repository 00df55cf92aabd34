"""What the readers of the pages have: an empty folder, features of their own, photographs."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where commands are typed; no cache of earlier ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def features(folder) -> Path:
    """``features.npz`` as the README describes it, of three classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 3
    np.savez(
        folder / "features.npz",
        features=(rng.normal(size=(240, 6)) + 2 * np.eye(3, 6)[labels]).astype(np.float32),
        labels=labels,
        is_test=np.arange(240) % 4 == 0,
    )
    return folder / "features.npz"


@pytest.fixture
def photos(folder) -> Path:
    """A folder of photographs, a folder a class: stripes across and upright."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(160):  # 106 of them to train on, for the pages' 100 clients
        stripes = 200 * (np.arange(64) // 8 % 2)[:, None] + rng.integers(0, 56, (64, 80))
        name = "across" if number % 2 == 0 else "upright"
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        pixels = (stripes if name == "across" else stripes.T).astype(np.uint8)
        image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    return folder / "photos"
