"""Compiled functions are kept from one command to the next."""

import os
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import covfree
from covfree.core import cache

# A command of one function, which prints how many compiled functions were found and the function's value.
_COMMAND = """
import sys
import jax
import jax.numpy as jnp
from covfree.studies.console import main

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


@pytest.mark.slow
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
def settings(monkeypatch, tmp_path):
    """jax's settings as a dictionary, on a processor that is served; the process's own stay as they are."""
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_processor", lambda: "AuthenticAMD")
    known: dict[str, object] = {}
    config = SimpleNamespace(update=known.__setitem__, values={"jax_compilation_cache_dir": None})
    monkeypatch.setattr(cache, "jax", SimpleNamespace(config=config))
    with warnings.catch_warnings():
        yield known


def test_each_kind_of_processor_has_a_folder(settings, monkeypatch, tmp_path):
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
    monkeypatch.setattr(cache, "_MOST_BYTES", 10)
    (tmp_path / "features.npz").write_bytes(bytes(100))
    (tmp_path / "compiled").mkdir(mode=0o700)
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
    monkeypatch.setattr(cache, "_processor", lambda: processor)
    cache.keep_compiled()
    assert not settings
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("own", ["own", ""])
def test_a_folder_of_the_users_own_stays(settings, monkeypatch, own):
    monkeypatch.setitem(cache.jax.config.values, "jax_compilation_cache_dir", own)
    cache.keep_compiled()
    assert not settings


def test_a_folder_that_cannot_be_written_keeps_nothing(settings, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "file"))
    cache.keep_compiled()
    assert not settings


def test_code_of_another_user_is_not_run(settings, monkeypatch):
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
    cache.keep_compiled()
    assert not settings
    with pytest.raises(OSError, match=r"no home folder is known .* set COVFREE_CACHE"):
        cache.cache_folder()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COVFREE_CACHE", raising=False)
    for common, expected in (("", ".cache"), ("relative", ".cache"), (str(tmp_path / "own"), "own")):
        monkeypatch.setenv("XDG_CACHE_HOME", common)
        assert cache.cache_folder() == tmp_path / expected / "covfree"
    monkeypatch.setenv("COVFREE_CACHE", "~/mine")
    assert cache.cache_folder() == tmp_path / "mine"


def test_folders_that_others_can_write_and_links_keep_nothing(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "cache"))
    cache.keep_compiled()
    compiled = tmp_path / "cache" / "compiled"
    folder = Path(str(settings.pop("jax_compilation_cache_dir")))
    for shared in (compiled, folder):
        assert shared.stat().st_mode & 0o077 == 0
        shared.chmod(0o770)
        cache.keep_compiled()
        assert "jax_compilation_cache_dir" not in settings
        shared.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    cache.keep_compiled()
    assert "jax_compilation_cache_dir" not in settings


@pytest.mark.parametrize(("mode", "is_kept"), [(0o775, False), (0o777, False), (0o1777, True), (0o755, True)])
def test_folders_above_that_others_can_write_keep_nothing(settings, monkeypatch, tmp_path, mode, is_kept):
    """Who can write to a folder above can put another folder in the place of the cache."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    for cache_folder in (above, above / "covfree", above / "own" / "covfree"):
        settings.clear()
        monkeypatch.setenv("COVFREE_CACHE", str(cache_folder))
        cache.keep_compiled()
        assert ("jax_compilation_cache_dir" in settings) == is_kept


def test_a_link_above_is_resolved(settings, monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "own")
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "link" / "covfree"))
    cache.keep_compiled()
    folder = Path(str(settings["jax_compilation_cache_dir"]))
    assert folder.is_relative_to(tmp_path / "own" / "covfree")
    (tmp_path / "own").chmod(0o770)
    settings.clear()
    cache.keep_compiled()
    assert not settings


def test_new_folders_are_the_users_alone(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "own" / "covfree"))
    before = os.umask(0o002)
    try:
        cache.keep_compiled()
    finally:
        os.umask(before)
    assert settings
    assert all(each.stat().st_mode & 0o777 == 0o700 for each in (tmp_path / "own").rglob("*"))
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_empty_files_are_deleted(settings, monkeypatch, tmp_path):
    """jax never writes a file again, so an empty one would cost a compilation in each run."""
    cache.keep_compiled()
    folder = Path(str(settings["jax_compilation_cache_dir"]))
    (folder / "jit_f-cache").touch()
    (folder / "jit_g-cache").write_bytes(b"code")
    cache.keep_compiled()
    assert [file.name for file in kept(tmp_path)] == ["jit_g-cache"]


def test_the_limit_survives_links_and_deletes_nothing_elsewhere(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_MOST_BYTES", 10)
    cache.keep_compiled()
    folder = Path(str(settings["jax_compilation_cache_dir"]))
    (tmp_path / "other").mkdir()
    theirs = tmp_path / "other" / "jit_f-cache"
    theirs.write_bytes(bytes(100))
    (folder.parent / "0123456789abcdef").symlink_to(theirs.parent)
    (folder / "jit_gone-cache").symlink_to(tmp_path / "nowhere")
    (folder / "jit_g-cache").write_bytes(bytes(100))
    (folder / "jit_g-atime").touch()
    settings.clear()
    cache.keep_compiled()
    assert settings["jax_compilation_cache_dir"] == str(folder)
    assert theirs.exists()
    assert not list(folder.iterdir())


def test_the_users_own_thresholds_stay(settings, monkeypatch):
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "5")
    cache.keep_compiled()
    assert set(settings) == {"jax_compilation_cache_dir", "jax_persistent_cache_min_entry_size_bytes"}


@pytest.mark.slow
@pytest.mark.skipif("AuthenticAMD" not in cache._processor(), reason="only AMD's processors are served")
def test_kept_functions_hold_no_features(tmp_path):
    """An array that a compiled function closes over would be kept with it, as plain numbers."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(120, 5)).astype(np.float32)
    labels = np.arange(120) % 3
    np.savez(tmp_path / "data.npz", features=features, labels=labels, is_test=np.arange(120) % 5 == 0)
    subprocess.run(
        [
            *(sys.executable, "-c", "from covfree.cli import main; main()", "compare", "--seeds", "1"),
            *("--dataset", "data.npz", "--clients", "4", "--methods", "fedncm,fed3r,fedcof,fedpft,ensemble"),
        ],
        env=os.environ | {"COVFREE_CACHE": str(tmp_path)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=300,
    )
    files = kept(tmp_path)
    assert len(files) > 10
    code = b"".join(_unpacked(file) for file in files)
    assert b"fusion" in code
    assert not any(row[:2].tobytes() in code for row in features)


def test_kept_functions_hold_no_head(tmp_path):
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name)
    weight = np.random.default_rng(0).normal(size=(70, 50)).astype(np.float32)
    covfree.save_head(covfree.LinearHead(weight, np.zeros(50, np.float32)), tmp_path / "head.npz")
    subprocess.run(
        [
            *(sys.executable, "-c", "from covfree.cli import main; main()", "export"),
            *("--head", "head.npz", "--out", "head.onnx"),
        ],
        env=os.environ
        | {
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "kept"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=120,
    )
    code = b"".join(_unpacked(file) for file in (tmp_path / "kept").glob("*-cache"))
    assert b"fusion" in code or b"dot" in code
    assert not any(row[:2].tobytes() in code for row in weight)


def _unpacked(file: Path) -> bytes:
    """jax compresses what it keeps by zstandard, if that is installed, else by zlib."""
    try:
        return zlib.decompress(file.read_bytes())
    except zlib.error:
        return pytest.importorskip("zstandard").ZstdDecompressor().decompress(file.read_bytes())
