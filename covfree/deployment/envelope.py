"""Write and read signed messages: an Ed25519 signature, followed by the signed safetensors."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree.core.atomic import replacing
from covfree.core.optional import optional
from covfree.protocol.tensors import DTYPES, read_header, read_tensors

# Signed data begins with this, so that a signature made for another purpose is not valid for a message.
_MAGIC = b"covfree federation 1\n"
_SIGNATURE = 64
_KEY = re.compile("[0-9a-f]{64}")
# A site's name is also used as a file name.
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SERVER = "server"


class Refused(ValueError):
    """Raised for a message that is not used; the text says what was expected, and what the message has.

    Attributes:
        sender: the site that the message names as its sender, perhaps falsely; None if it names none.
    """

    def __init__(self, text: str, sender: str | None = None) -> None:
        super().__init__(text)
        self.sender = sender


class Unsealed(NamedTuple):
    """A message with a valid signature: its metadata and its arrays."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]


def _keys() -> Any:
    return optional("cryptography.hazmat.primitives.asymmetric.ed25519", "deployment")


def new_key(path: str | PathLike[str]) -> str:
    """Draw a private key, write it to a file that only its owner may read, and return the public key.

    Args:
        path: the file, which must not exist yet.

    Returns:
        The public key, 64 hexadecimal digits.

    Raises:
        FileExistsError: if the file exists.
        ImportError: if ``cryptography`` is not installed.
    """
    key = _keys().Ed25519PrivateKey.generate()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{key.private_bytes_raw().hex()}\n")
    except OSError:
        os.unlink(path)  # if the disk is full, the file has half a key
        raise
    return public_key(key)


def load_key(path: str | PathLike[str]) -> Any:
    """Read a private key that `new_key` wrote.

    Raises:
        ValueError: if the file contains no private key.
        OSError: if the file cannot be read.
    """
    try:
        return _keys().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(Path(path).read_text("ascii")))
    except ValueError as error:
        raise ValueError(f"{path}: expected a private key, 64 hexadecimal digits ({error})") from error


def public_key(key: Any) -> str:
    """Return the public key of a private key, as 64 hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def check_keys(sites: Mapping[str, str], server: str) -> None:
    """Raise ValueError unless names are valid, and all keys are different and of 64 hexadecimal digits."""
    for name in sites:
        if not _NAME.fullmatch(name) or name == SERVER:
            raise ValueError(
                f"sites: expected names of letters, digits, dots and dashes, none of them {SERVER!r}; "
                f"got {name!r}"
            )
    keys = [*sites.values(), server]
    for key in keys:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"sites: expected public keys of 64 hexadecimal digits, got {key!r}")
    if len(set(keys)) < len(keys):
        raise ValueError("sites: expected another public key for each site and the server, got one twice")


def check_own(sites: Mapping[str, str], site: str, key: Any) -> None:
    """Raise ValueError unless ``key`` is the private key of ``site``."""
    if site not in sites:
        raise ValueError(f"site: expected one of {', '.join(sites)}, got {site!r}")
    if public_key(key) != sites[site]:
        # Private and public keys are both files of 64 digits, so say if they were confused.
        what = "its public key" if bytes.fromhex(sites[site]) == key.private_bytes_raw() else "another"
        raise ValueError(f"key: expected the private key of {site!r} in the description, got {what}")


def seal(key: Any, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Make a signed message: a safetensors file of ``arrays``, behind its signature by ``key``.

    The file's metadata has ``about`` as JSON. The same arguments give the same bytes.
    """
    text = json.dumps(dict(about), sort_keys=True, allow_nan=False)
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    body = optional("safetensors.numpy", "safetensors").save(tensors, metadata={"about": text})
    return key.sign(_MAGIC + body) + body


def unseal(data: bytes, keys: Mapping[str, str]) -> Unsealed:
    """Return the content of a message, after a check of its signature.

    Args:
        data: the message, from `seal` or anybody.
        keys: the public key of each sender that is accepted, by its name.

    Raises:
        Refused: if ``data`` is cut short or is no message, the sender has no key in ``keys``, or the
            signature does not match that key.
    """
    about, header, length, file = _parts(data)
    sender = about.get("sender")
    if not isinstance(sender, str) or sender not in keys:
        raise Refused(f"sender: expected one of this federation, got {sender!r}", str(sender))
    public = _keys().Ed25519PublicKey.from_public_bytes(bytes.fromhex(keys[sender]))
    try:
        public.verify(data[:_SIGNATURE], _MAGIC + data[_SIGNATURE:])
    except optional("cryptography.exceptions", "deployment").InvalidSignature as error:
        raise Refused(
            f"signature: expected that of {sender!r}, got another: the message was altered, or signed by "
            "someone else",
            sender,
        ) from error
    try:
        if strange := {name for name, entry in header.items() if entry["dtype"] not in DTYPES}:
            raise ValueError(f"unknown data types in {sorted(strange)}")
        return Unsealed(about, read_tensors(file, header, length))
    except ValueError as error:
        raise Refused(f"message: expected arrays of safetensors, got {error}", sender) from error


def _parts(data: bytes) -> tuple[dict[str, Any], dict[str, Any], int, Any]:
    try:
        file = io.BytesIO(data[_SIGNATURE:])
        header, metadata, length = read_header(file, len(data) - _SIGNATURE)
        about = json.loads(metadata["about"])
        if not isinstance(about, dict):
            raise TypeError(f"about: expected a JSON object, got a {type(about).__name__}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Refused(
            f"message: expected one of a federation, got another file or an incomplete one ({error})"
        ) from error
    return about, header, length, file


def write(path: Path, data: bytes) -> None:
    """Write a file atomically; when the function returns, the file's content and its name are on disk."""
    with replacing(path) as file:
        file.write(data)
    # Flush the folder too, or the name may not be on disk.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
