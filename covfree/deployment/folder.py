"""Exchange a federation's messages through a shared folder: on a disk, synchronised, or on a USB stick."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from covfree.core.atomic import is_temporary
from covfree.deployment.client import Client
from covfree.deployment.description import Description
from covfree.deployment.door import Left, Stopped, TooFew
from covfree.deployment.envelope import SERVER, Refused, unseal, write
from covfree.deployment.machine import SUFFIX
from covfree.deployment.server import Server
from covfree.protocol.files import open_regular, shown

Say = Callable[[str], None]
_DESCRIPTION = "federation.json"
# The most characters of a reason that the round's message carries.
_MOST_REASON = 500
# The files and subfolders of messages that a federation makes in the shared folder, see `Folder`.
_SERVERS = (f"round{SUFFIX}", f"end{SUFFIX}", f"stop{SUFFIX}")
_MESSAGES = ("asks", "answers", *_SERVERS)


class Folder:
    """The layout of a shared folder; every file in it is written atomically.

    ``federation.json`` is the description. ``asks/`` has the server's broadcast of each turn (a step of a
    round, see `Description.place`). ``answers/`` has a folder for each turn, with a file from each site.
    ``round.message`` says which turn is open and which answers the server took, see `Server.standing`.
    ``end.message`` is the last broadcast; ``stop.message`` says why the server stopped before the last round.
    Files that others wrote are read without following links, up to the description's ``max_bytes``.

    Attributes:
        path: the folder.
        description: the federation.
        round: the path of ``round.message``.
        end: the path of ``end.message``.
        stop: the path of ``stop.message``.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open a folder that contains a description.

        Raises:
            ValueError: if the description is not valid.
            FileNotFoundError: if there is no description.
        """
        self.path = Path(path)
        file = self.path / _DESCRIPTION
        if not file.exists():
            raise FileNotFoundError(
                f"{path}: no {file.name}; check the path, or wait for covfree federation new to write it"
            )
        self.description = Description.load(file)
        self.round, self.end, self.stop = (self.path / name for name in _SERVERS)

    def ask(self, turn: int) -> Path:
        """Return the path of the file with the server's broadcast of a turn."""
        return self.path / "asks" / f"{turn:05d}{SUFFIX}"

    def answers(self, turn: int) -> Path:
        """Return the path of the folder with a turn's answers."""
        return self.path / "answers" / f"{turn:05d}"

    @property
    def ended(self) -> bool:
        """Whether the last broadcast of this federation is in the folder; its signature is checked."""
        return self.last() is not None

    def last(self) -> dict[str, Any] | None:
        """Return the metadata of the last broadcast of this federation; None if there is no valid one."""
        return self._about(self.end, "end")

    def standing(self) -> dict[str, Any] | None:
        """Return the metadata of the message of `Server.standing`; None if there is no valid one."""
        return self._about(self.round, "round")

    def check_stop(self) -> None:
        """Raise `Stopped` with the reason if the server has stopped."""
        if (about := self._about(self.stop, "stop")) is not None:
            raise Stopped(str(about.get("reason")))

    def _about(self, path: Path, kind: str) -> dict[str, Any] | None:
        """Return the metadata of the server's message of this ``kind`` in a file; None if it has none."""
        with suppress(OSError, Refused):
            about, _ = unseal(self.read(path), {SERVER: self.description.server})
            if (about.get("kind"), about.get("federation")) == (kind, self.description.identity):
                return about
        return None

    def put(self, path: Path, data: bytes) -> None:
        """Write a file, unless it has this content already."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError, Refused):
            if self.read(path) == data:
                return
        write(path, data)

    def read(self, path: Path, most: int | None = None) -> bytes:
        """Read a file that an untrusted party may have written.

        Args:
            path: the file.
            most: the largest number of bytes to read; None for the description's ``max_bytes``.

        Raises:
            Refused: if ``path`` is not a regular file, or the file is too large.
            OSError: if the file cannot be read.
        """
        try:
            descriptor = open_regular(path, f"path: {shown(path)}:", links=False)
        except ValueError as error:
            raise Refused(str(error)) from error
        most = self.description.max_bytes if most is None else most
        with os.fdopen(descriptor, "rb") as file:
            # Do not read a file that is too large: reading and checking a GiB takes seconds.
            data = b"" if (size := os.fstat(file.fileno()).st_size) > most else file.read(most + 1)
        if (size := max(size, len(data))) > most:
            raise Refused(f"path: {shown(path)}: expected at most {most} bytes, got {size}")
        return data


def new_file(path: Path) -> Path:
    """Return where the description of a new federation goes in a shared folder, which need not exist yet.

    Raise ValueError if the folder holds the description or messages of a federation.
    """
    if (file := path / _DESCRIPTION).exists():
        raise ValueError(f"{file} exists: a federation does not change; take another folder")
    if path.is_file():
        raise ValueError(f"expected a shared folder, got the file {path}")
    if found := [name for name in _MESSAGES if (path / name).exists()]:
        raise ValueError(
            f"{path} holds messages of another federation ({', '.join(found)}): take another folder"
        )
    return file


def serve(
    server: Server,
    folder: Folder,
    file_of: Callable[[Server], bytes] = Server.head_file,
    *,
    poll: float | int = 1.0,
    say: Say = print,
) -> None:
    """Run a server over a shared folder until all rounds are done; the last broadcast is then in the folder.

    Args:
        server: the server.
        folder: the shared folder.
        file_of: function from the server to the content of the file that sites get at the end.
        poll: seconds between checks of the folder.
        say: function that is called with each line of progress.

    If the server stops because of an error, it writes a message to the folder, which ends the wait of the
    sites. A killed process writes none; it is expected to be started again.

    Raises:
        ValueError: if the shared folder is at a later round than the server's own folder, so another server
            folder ran this federation.
        TooFew: if a round ended with too few answers; another call waits for more.
        Stopped: if a message of `stopping` appeared in the folder meanwhile.
    """
    if not server.finished:
        check_state(folder, server.folder, server.turn)
    folder.stop.unlink(missing_ok=True)
    try:
        _serve(server, folder, file_of, poll, say)
    except Stopped:
        raise
    except Exception as error:
        with suppress(OSError):
            folder.put(folder.stop, server.stop(str(error) or type(error).__name__))
        raise


def check_state(folder: Folder, own: Path, turn: int = 0) -> None:
    """Raise ValueError if the shared folder is at a later round than the server's own folder, ``own``.

    ``turn`` is the turn of the server's own folder; 0 if this folder does not exist yet.
    """
    standing, named = folder.standing(), folder.description.named
    shared = -1 if standing is None else standing["turn"]
    if not (folder.ended or shared > turn):
        return
    place = f"has ended ({folder.end.name})" if folder.ended else f"is at {named(shared)}"
    raise ValueError(
        f"folder: expected the folder of the server that ran this federation, which {place} in "
        f"{folder.path}; {own} is at {named(turn)}: give that server's folder, or make a "
        "new federation in another shared folder" + "; join still gives the head" * folder.ended
    )


def _serve(
    server: Server, folder: Folder, file_of: Callable[[Server], bytes], poll: float | int, say: Say
) -> None:
    seen = dict[str, tuple[int, int, int]]()
    sites, named = server.description.sites, server.description.named
    while not server.finished:
        turn, closed = server.turn, len(server.history)
        # If the deadline passed while the server was down, close the round, or reopen it for more answers.
        if server.is_over:
            with suppress(TooFew):
                server.close()
        if len(server.history) == closed:
            asked, aside = server.open(), dict[str, str]()
            folder.put(folder.round, server.standing(aside))
            folder.put(folder.ask(turn), asked)
            until = "all sites answer" if server.expires is None else clock(server.expires)
            say(f"{named(turn)} is open until {until}")
            while True:
                # Also take answers to the previous round, so that a late one is recorded as set aside.
                for path in _new(folder.answers(turn - 1), seen):
                    _take(server, folder, path, say)
                new = _new(folder.answers(turn), seen)
                for path in new:
                    reason = _take(server, folder, path, say)
                    if path.stem in sites:
                        aside[path.stem] = reason[:_MOST_REASON]
                if new:
                    folder.put(folder.round, server.standing(aside))
                if not server.missing or server.is_over:
                    break
                folder.check_stop()
                time.sleep(poll)
            server.close()
        done = server.history[-1]
        say(f"{named(turn)} closed with {len(done['sites'])} of {len(sites)} sites")
        if done["judged"] is not None:
            say(f"{named(turn)}: {done['judged']}")
        for site, reason in done["rejected"].items():
            say(f"site {site}: left out: {reason}")
    if server.stopped is not None:
        say(server.stopped)
    if server.result is None:
        raise ValueError(f"expected a result, got none: {server.stopped}")
    folder.put(folder.end, server.end(file_of(server)))
    if server.choice is not None:
        say(str(server.choice))
    if text := without(sites, server.counted):
        say(text)


def without(sites: Collection[str], counted: Collection[str]) -> str:
    """Return a text that says which sites' uploads are in the head, and which not; "" if all are."""
    out = ", ".join(site for site in sites if site not in counted)
    return out and f"in the head: {', '.join(counted)}; not in it: {out}"


def _new(where: Path, seen: dict[str, tuple[int, int, int]]) -> list[Path]:
    """Return a folder's message files that are new or have changed since the last call, sorted by name.

    ``seen`` maps each path to its file's inode, size and time of change; it is updated.
    """
    found = list[Path]()
    if not where.is_dir():
        return found
    with os.scandir(where) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not entry.name.endswith(SUFFIX) or is_temporary(entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # the file is gone
                continue
            mark = status.st_ino, status.st_size, status.st_mtime_ns
            if seen.get(entry.path) != mark:
                seen[entry.path] = mark
                found.append(Path(entry.path))
    return found


def _take(server: Server, folder: Folder, path: Path, say: Say) -> str:
    """Give a file to the server; return "" if it is a valid answer of the site in its name, else the reason.

    A reason is also returned if the answer was taken, but is another site's.
    """
    try:
        data = folder.read(path, server.most_bytes)
    except (Refused, OSError) as error:
        say(f"{shown(path.name)}: set aside: {error}")
        return str(error)
    receipt = server.take(data)
    by = "" if receipt.site in (None, path.stem) else f"by the name of {receipt.site}"
    if receipt.reason is None:
        say(f"site {receipt.site} answered ({len(data):,} bytes), {len(server.taken)} in all")
        return by
    reason = f"{by}: {receipt.reason}" if by else receipt.reason
    if not receipt.reason.startswith("doubled: the same") and "is closed" not in receipt.reason:
        say(f"{shown(path.name)}: set aside: {reason}")
    return reason


def join(
    client: Client,
    folder: Folder,
    *,
    poll: float | int = 1.0,
    wait: float | int | None = None,
    say: Say = print,
) -> tuple[bytes, str | None]:
    """Answer each broadcast of a server over a shared folder, and return what the last broadcast contains.

    Args:
        client: the site.
        folder: the shared folder.
        poll: seconds between checks of the folder.
        wait: seconds without a new broadcast after which to give up; None for never.
        say: function that is called with each line of progress.

    Returns:
        The file in the last broadcast, and the reason why the federation stopped early, or None.

    Raises:
        TooFew: if no broadcast came for ``wait`` seconds.
        Stopped: if the server stopped before there was a result; call again once the server is resumed.
    """
    heard, seen = time.monotonic(), dict[str, tuple[int, int, int]]()
    tell = cache(say)  # says each text once
    while True:
        if folder.end.exists():
            try:
                return client.finish(folder.read(folder.end))
            except (Refused, OSError) as error:
                tell(f"{folder.end.name}: {error}")
        folder.check_stop()
        # Answer the latest round first: once it is answered, earlier ones are over.
        for path in reversed(_new(folder.path / "asks", seen)):
            try:
                answer = client.answer(folder.read(path))
            except Left as error:
                file = folder.answers(error.turn) / f"{client.site}{SUFFIX}"
                if _answers(folder, file, error):
                    text = f"; the answer in {file} stays: another process with another --state made it"
                    tell(f"{error}{text}")
                else:
                    folder.put(file, error.answer)
                    tell(str(error))
                break  # earlier rounds are over
            except Refused as error:
                tell(f"a broadcast was refused: {error}")
                continue
            except OSError:  # try again at the next check
                del seen[str(path)]
                continue
            folder.put(folder.answers(client.turn) / f"{client.site}{SUFFIX}", answer)
            say(f"{folder.description.named(client.turn)} answered, {len(answer):,} bytes")
            heard = time.monotonic()
            break
        if wait is not None and time.monotonic() - heard > wait:
            raise TooFew(
                f"expected a broadcast within {wait:g} s, got none in {folder.path}: does the server run, on "
                "this folder? The same command goes on from here"
            )
        time.sleep(poll)


def _answers(folder: Folder, file: Path, error: Left) -> bool:
    """Return whether ``file`` is an answer to the same broadcast from before the site left (``error``)."""
    sites = folder.description.sites
    with suppress(OSError, Refused):
        found = unseal(folder.read(file), sites).about
        return "left" not in found and {**found, "left": True} == unseal(error.answer, sites).about
    return False


def clock(seconds: float) -> str:
    """Format a time in seconds since 1970 as the machine's local time."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
