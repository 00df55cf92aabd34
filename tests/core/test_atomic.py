"""Files that are there as a whole or not at all, under any umask, and what killed writers leave."""

import os
import resource
import signal
import stat
import subprocess
import sys
import time

import pytest

from covfree.core.atomic import is_temporary, remove_abandoned, replacing

WRITER = """
import sys, time
from pathlib import Path
from covfree.core.atomic import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that is in the middle of writing ``a``."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_the_mode_follows_the_umask(tmp_path, umask, mode):
    earlier = os.umask(umask)
    try:
        for content in (b"first", b"second"):
            with replacing(tmp_path / "a") as file:
                file.write(content)
            assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    finally:
        os.umask(earlier)
    assert (tmp_path / "a").read_bytes() == b"second"


def test_what_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_bytes(b"before")

    def write():
        with replacing(tmp_path / "a") as file:
            file.write(b"half")
            assert len(names(tmp_path)) == 2
            raise KeyError("of the body")

    with pytest.raises(KeyError, match="of the body"):
        write()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


def test_two_writers_of_a_path_do_not_mix(tmp_path):
    with replacing(tmp_path / "a") as first, replacing(tmp_path / "a") as second:
        first.write(b"first")
        second.write(b"second, which ends first")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


def test_errors_name_the_file_that_was_asked_for(tmp_path):
    for path, kind in (
        (tmp_path / "none" / "a", FileNotFoundError),
        (tmp_path, IsADirectoryError),
        (tmp_path / ("a" * 300), OSError),
    ):
        with pytest.raises(kind) as error, replacing(path) as file:
            file.write(b"whole")
        assert error.value.filename == str(path)
    # An error of the body about another file is left as it is.
    with pytest.raises(FileNotFoundError) as error, replacing(tmp_path / "a"):
        (tmp_path / "other").read_bytes()
    assert error.value.filename == str(tmp_path / "other")
    assert names(tmp_path) == []


def test_a_name_as_long_as_names_can_be(tmp_path):
    with replacing(tmp_path / ("a" * 255)) as file:
        file.write(b"whole")
    assert names(tmp_path) == ["a" * 255]


def test_a_full_disk(tmp_path):
    """A limit on the size of files stands for it: the write ends in an error in the same place."""
    (tmp_path / "a").write_bytes(b"before")
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, earlier[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*/a'"), replacing(tmp_path / "a") as file:
            file.write(bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


def test_what_a_killed_writer_left_is_removed_after_an_hour(tmp_path, writer):
    (left,) = names(tmp_path)
    assert is_temporary(left)
    # Old, but of a writer that lives.
    os.utime(tmp_path / left, (0, 0))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [left]
    writer.kill()
    writer.wait()
    assert names(tmp_path) == [left]
    # Nobody's, but young: on another machine, somebody may be writing to it.
    young = time.time() - 3500
    os.utime(tmp_path / left, (young, young))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [left]
    os.utime(tmp_path / left, (0, 0))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == []


def test_nothing_else_is_removed(tmp_path):
    for name in ("a", "a.tmp", ".covfree-a", ".covfree-a.tmp.npz"):
        (tmp_path / name).write_bytes(b"somebody's")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".covfree-folder.tmp").mkdir()
    os.mkfifo(tmp_path / ".covfree-pipe.tmp")
    (tmp_path / ".covfree-link.tmp").symlink_to("a")
    before = names(tmp_path)
    for name in (".covfree-folder.tmp", ".covfree-pipe.tmp", ".covfree-link.tmp"):
        os.utime(tmp_path / name, (0, 0), follow_symlinks=False)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == before
    remove_abandoned(tmp_path / "none")
