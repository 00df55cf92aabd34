"""Files of JSON lines that several processes add to."""

import errno

import pytest

from covfree.core import atomic
from covfree.core.atomic import JsonLines


def lines(path):
    return JsonLines(path, int, "a number")


def test_two_that_write_to_one_file_keep_each_others_lines(tmp_path):
    path = tmp_path / "new" / "lines.jsonl"
    one, other = lines(path), lines(path)
    for number in range(4):
        (one, other)[number % 2].add(number, number)
    assert lines(path).records == [0, 1, 2, 3]
    # Each knows its own, and what was there when it was opened.
    assert one.records == [0, 2]


def test_where_there_are_no_locks_lines_are_added_all_the_same(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(atomic.fcntl, "flock", refuse)
    lines(tmp_path / "lines.jsonl").add(1, 1)
    assert lines(tmp_path / "lines.jsonl").records == [1]


@pytest.mark.parametrize("torn", [b"12", b'"' + b"x" * 200_000])
@pytest.mark.parametrize("before", [b"", b"1\n2\n"])
def test_a_line_that_was_cut_short_is_taken_away(tmp_path, before, torn):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(before + torn)
    opened = lines(path)
    opened.add(3, 3)
    assert path.read_bytes() == before + b"3\n"
    assert opened.records == [*map(int, before.split()), 3]


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'1\n"one"\n')
    with pytest.raises(ValueError, match=r"lines.jsonl: line 2: expected a number \("):
        lines(path)
