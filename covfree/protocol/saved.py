"""Save what a server has collected in a file, so that the server can be restarted."""

from __future__ import annotations

import json
from dataclasses import replace
from os import PathLike

import numpy as np

from covfree.core.checks import check_type
from covfree.protocol.door import Collected
from covfree.protocol.files import read, shown, write

_FORMAT, _VERSION = "covfree.Collected", "1"
_BY_CLIENT = ("rejected", "repeated", "receipts", "doubted")


def save_collected(collected: Collected, path: str | PathLike[str]) -> None:
    """Write what was collected to a safetensors file (needs the ``safetensors`` extra).

    An interrupted call leaves no file, or the earlier one.

    Args:
        collected: from `collect`.
        path: the file, which is replaced if it exists. Keep it out of the folder of an `Inbox`.

    Raises:
        TypeError: if a client's name is neither a text nor a whole number.

    >>> import covfree, numpy as np, tempfile
    >>> sent = covfree.Message(covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0])))
    >>> server = covfree.collect({"a": sent}, num_classes=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_collected(server, f"{folder}/server.safetensors")
    ...     server = load_collected(f"{folder}/server.safetensors")
    >>> covfree.collect({"a": sent, "b": sent}, num_classes=1, before=server).clients
    ('a', 'b')
    """
    check_type("collected", collected, Collected)
    named = {name: getattr(collected, name) for name in _BY_CLIENT}
    for client in (*collected.clients, *(client for texts in named.values() for client in texts)):
        if type(client) not in (str, int):
            raise TypeError(f"clients: expected names that are texts or whole numbers, got {client!r}")
    about = {
        "clients": collected.clients,
        # As pairs: JSON keys are strings, but the clients 1 and "1" differ.
        **{name: list(texts.items()) for name, texts in named.items()},
        "bounds": dict(collected.bounds),
        "rounding": collected.rounding,
    }
    message = replace(collected.message, solved=collected.solved)
    write(path, message, {"format": _FORMAT, "version": _VERSION, "collected": json.dumps(about)})


def load_collected(path: str | PathLike[str]) -> Collected:
    """Read a `Collected` from a file that `save_collected` wrote.

    Args:
        path: the file. Nobody else may write to it, as its arrays are not checked again.

    Raises:
        ValueError: if the file is cut short or holds something else; the error names the path.
        OSError: if the file cannot be read.
    """
    message, metadata = read(path, _FORMAT, (_VERSION,))
    try:
        about = json.loads(metadata["collected"])
        named = {name: dict(about[name]) for name in _BY_CLIENT}
        clients, bounds = tuple(about["clients"]), dict(about["bounds"])
        # Files of earlier versions do not record the rounding of their matrix, so the bound is infinite.
        rounding = float(about.get("rounding", 0.0 if message.matrix is None else np.inf))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"path: {shown(path)}: expected what save_collected wrote ({error})") from error
    owner = np.asarray(message.rows.client)
    if message.rows.client is None or owner.max(initial=-1) >= len(clients):
        raise ValueError(
            f"path: {shown(path)}: expected rows whose client is below {len(clients)}, the number of clients"
        )
    solved, message = message.solved, replace(message, solved=False)
    return Collected(message, clients, solved=solved, bounds=bounds, rounding=rounding, **named)
