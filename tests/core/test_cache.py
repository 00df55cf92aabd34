"""Compiled functions are kept from one command to the next."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from covfree.core import cache

# A command of one function, which prints how many compiled functions were found and the function's value.
_COMMAND = """
import sys
import jax
import jax.numpy as jnp
from covfree.cli import main

found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))

def command(*_, **__):
    value = jax.jit(lambda x: jnp.sin(x).sum())(jnp.arange(5.0))
    print(sum(event.endswith("cache_hits") for event in found), float(value))

main(command)
"""


def command(folder: Path) -> list[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")
    }
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND],
        env={**environment, "COVFREE_CACHE": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("compiled/*/*-cache"))


@pytest.mark.skipif("AuthenticAMD" not in cache._processor(), reason="only AMD's processors are served")
def test_a_later_command_finds_what_was_compiled(tmp_path):
    first, again = command(tmp_path), command(tmp_path)
    assert (int(first[0]), first[1]) == (0, again[1])
    assert int(again[0]) == len(kept(tmp_path)) > 0
    # Damaged files cost a compilation.
    for file in kept(tmp_path):
        file.write_bytes(file.read_bytes()[:100])
    assert command(tmp_path)[1] == first[1]


@pytest.fixture
def settings(monkeypatch):
    """jax's settings as a dictionary; the process's own stay as they are."""
    known: dict[str, object] = {}
    config = SimpleNamespace(update=known.__setitem__, values={"jax_compilation_cache_dir": None})
    monkeypatch.setattr(cache, "jax", SimpleNamespace(config=config))
    with warnings.catch_warnings():
        yield known


def test_each_kind_of_processor_has_a_folder(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path))
    folders = set()
    for flags in ("avx2", "avx2 avx512f", "avx2"):
        monkeypatch.setattr(
            cache, "_processor", lambda flags=flags: f"vendor_id: AuthenticAMD\nflags: {flags}"
        )
        cache.keep_compiled()
        folders.add(settings["jax_compilation_cache_dir"])
    assert {str(folder) for folder in tmp_path.glob("compiled/*")} == folders
    assert len(folders) == 2


def test_a_large_folder_is_emptied(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_processor", lambda: "AuthenticAMD")
    monkeypatch.setattr(cache, "_MOST_BYTES", 10)
    (tmp_path / "features.npz").write_bytes(bytes(100))
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "theirs-cache").write_bytes(bytes(100))
    for size, left in ((10, 1), (11, 0)):
        cache.keep_compiled()
        (Path(str(settings["jax_compilation_cache_dir"])) / "jit_f-cache").write_bytes(bytes(size))
        cache.keep_compiled()
        assert len(kept(tmp_path)) == left
    assert (tmp_path / "features.npz").exists()
    assert (tmp_path / "compiled" / "theirs-cache").exists()


@pytest.mark.parametrize("processor", ["", "vendor_id: GenuineIntel"])
def test_other_processors_keep_nothing(settings, monkeypatch, tmp_path, processor):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_processor", lambda: processor)
    cache.keep_compiled()
    assert not settings
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_users_own_stays(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_processor", lambda: "AuthenticAMD")
    monkeypatch.setitem(cache.jax.config.values, "jax_compilation_cache_dir", "own")
    cache.keep_compiled()
    assert not settings


def test_a_folder_that_cannot_be_written_keeps_nothing(settings, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "_processor", lambda: "AuthenticAMD")
    cache.keep_compiled()
    assert not settings


def test_code_of_another_user_is_not_run(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_processor", lambda: "AuthenticAMD")
    user = os.getuid()
    monkeypatch.setattr(cache.os, "getuid", lambda: user + 1)
    cache.keep_compiled()
    assert not settings


def test_without_a_home_nothing_is_kept(settings, monkeypatch):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    for name in ("COVFREE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", unknown)
    monkeypatch.setattr(cache, "_processor", lambda: "AuthenticAMD")
    cache.keep_compiled()
    assert not settings
