"""Read the keys of a federation between machines from files; errors name the option and the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covfree.deployment import Description, load_key
from covfree.deployment.envelope import SERVER, check_own


def read_key(path: Path) -> Any:
    """Read a private key; if the file is missing, the error says how to make one."""
    if path.is_dir() or not path.exists():  # a pipe is fine
        raise ValueError(f"--key: no such file: {path}; covfree federation key makes one")
    return load_key(path)


def server_key(path: Path, own: Description) -> Any:
    """Read a private key, and check that it is that of the federation's server."""
    private = read_key(path)
    check_key(path, private, {SERVER: own.server}, SERVER)
    return private


def check_key(path: Path, private: Any, keys: Mapping[str, str], name: str) -> None:
    """Raise ValueError, with the key's file, unless ``private`` is the private key of ``keys[name]``."""
    try:
        check_own(keys, name, private)
    except ValueError as error:
        raise ValueError(f"--{error}, in {path}") from error


def public_keys(folder: Path, server: str) -> dict[str, str]:
    """Read the sites' public keys from a folder, by name; skip the server's key, which may be there too."""
    keys = {path.stem: path.read_text().strip() for path in folder.glob("*.pub")}
    if keys.get(SERVER) == server:
        del keys[SERVER]
    if not keys:
        there = "which is no folder" if folder.exists() else "which does not exist"
        there = "which has none of a site" if folder.is_dir() else there
        raise ValueError(
            f"--sites: expected a folder with the sites' public keys, NAME.pub; got {str(folder)!r}, {there}"
        )
    owner = {server: "the server (--key)"}
    for name, own in sorted(keys.items()):
        if own in owner:
            raise ValueError(
                f"--sites: expected another public key for each site and the server, got that of "
                f"{owner[own]} in {folder / name}.pub"
            )
        owner[own] = f"{name}.pub"
    return keys
