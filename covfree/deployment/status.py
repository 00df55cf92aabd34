"""Tell in words how a federation over a shared folder stands, from what its server signed."""

from __future__ import annotations

from covfree.deployment.door import Stopped
from covfree.deployment.folder import Folder, clock, without
from covfree.deployment.machine import SUFFIX


def status(folder: Folder) -> tuple[bool, list[str]]:
    """Return whether a federation has ended, and lines of text: its settings, and how the open round stands.

    The server's signatures are checked.

    Args:
        folder: the shared folder.
    """
    own = folder.description
    size = f"{len(own.class_names)} classes, {own.num_rounds} round{'s' * (own.num_rounds > 1)}"
    lines = [
        f"federation {own.identity}: {own.algorithm}, {size}",
        "uploads: " + ("the server sees each" if own.sums is None else "hidden in secure sums"),
        f"noise: {own.promised or 'none'}",
    ]
    if (last := folder.last()) is not None:
        out = without(own.sites, last.get("counted", own.sites))  # a draft of covfree 0.1.0 wrote none
        return True, [*lines, "ended", *([out] if out else [])]
    try:
        folder.check_stop()
    except Stopped as error:
        return False, [*lines, f"stopped: {error}"]
    if (about := folder.standing()) is None:
        return False, [*lines, "no round is open yet"]
    turn, expires = about["turn"], about["expires"]
    lines.append(f"{own.named(turn)} is open" + ("" if expires is None else f" until {clock(expires)}"))
    for site in own.sites:
        found = "not yet"
        if site in about["left_out"]:
            found = f"left out: {about['left_out'][site]}"
        elif site in about["taken"]:
            found = "answered"
        elif about["aside"].get(site):
            found = f"set aside: {about['aside'][site]}"
        elif (folder.answers(turn) / f"{site}{SUFFIX}").exists():
            found = "sent; the server has not read it yet"
        lines.append(f"  {site}: {found}")
    return False, lines
