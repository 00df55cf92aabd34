"""Whose the images of a folder are: from their paths, or from a table."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def clients_by_pattern(pattern: str, files: Sequence[str]) -> list[str]:
    """What the pattern's group finds in each path; empty where it finds nothing."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"client_pattern: {pattern!r} is no regular expression ({error})") from error
    if compiled.groups != 1:
        raise ValueError(f"client_pattern: expected one group, got {compiled.groups} in {pattern!r}")
    return [(match.group(1) or "") if (match := compiled.search(file)) else "" for file in files]


def clients_by_table(
    path: Path, file_column: str, client_column: str, files: Sequence[str], ignored: Sequence[str]
) -> list[str]:
    """What a CSV file says of each path; empty where it says nothing."""
    clients: dict[str, str] = {}
    known, aside = {*files, *ignored}, tuple(name for name in ignored if name.endswith("/"))
    for line, file, client in _lines(path, file_column, client_column):
        if file in clients:
            raise ValueError(f"{path}: line {line}: {file!r} is there twice")
        if file not in known and not file.startswith(aside):
            raise ValueError(f"{path}: line {line}: {file!r} is no image in the folder")
        clients[file] = client
    return [clients.get(file, "") for file in files]


def _lines(path: Path, file_column: str, client_column: str) -> Iterator[tuple[int, str, str]]:
    """The line's number, the file and the client of each row."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        # Spreadsheets write a mark before the first name, which utf-8-sig leaves out.
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.DictReader(stream, strict=True)
            for column in (file_column, client_column):
                if column not in (names := rows.fieldnames or ()):
                    raise ValueError(f"expected a column {column!r}, got {list(names)}")
            for row in rows:
                yield rows.line_num, row[file_column] or "", row[client_column] or ""
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from error
