"""Feature sets: features with labels and perhaps clients, split into a training and a test part."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from covfree.backbones.extractors import fingerprint_of
from covfree.core.array_file import names_in, read_npz
from covfree.core.checks import check, num_classes_of
from covfree.core.columns import READABLE, read_columns, splits_in
from covfree.core.optional import optional
from covfree.core.padding import part_of
from covfree.core.registries import nearest
from covfree.data.partitions.partition import held_out

StrPath: TypeAlias = str | PathLike[str]
# A file and its arrays, by name.
Part: TypeAlias = tuple[Path, dict[str, np.ndarray]]


class FeatureSet(NamedTuple):
    """Features of a frozen backbone and their labels, split into a training and a test part.

    Attributes:
        name: the name of the set in tables.
        train_features: [examples, dim]. If the features take 1 GiB or more, a memory map or a `Gathered` view
            (see `load_npz`), which `fit` and `evaluate` take, and ``np.asarray`` reads into memory.
        train_labels: [examples], in [0, num_classes).
        test_features: [test examples, dim].
        test_labels: [test examples].
        num_classes: the number of classes, C.
        clients: [examples], number of each training example's client, −1 for none; None without clients.
        fixed_split: whether the data itself marks the test part, so that no seed changes it.
        test_clients: [test examples], the client of each test example, if the data says so; −1 for none.
            Numbered as in ``clients``; clients without training examples come after all others.
        class_names: [C], the names of the classes, if the data has them.
        client_names: the names of the clients, by number, if the data has clients.
        extractor: the fingerprint of the network that made the features, if known; `client_message` takes it.
    """

    name: str
    train_features: np.ndarray
    train_labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    clients: np.ndarray | None = None
    fixed_split: bool = False
    test_clients: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    client_names: tuple[str, ...] | None = None
    extractor: str | None = None


# A path, perhaps followed by names of columns, as in ``x.csv:labels=kind``.
_NAMED = re.compile(r"(.*?)((?::\w+=[^:]+)*)", re.DOTALL)


def load(
    dataset: StrPath,
    *,
    test: StrPath | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
) -> FeatureSet:
    """Load a data set by its name or path.

    Args:
        dataset: ``"digits"``; or the path of a file: ``.npz`` as `load_npz` reads it, ``.npy``, ``.pt``,
            ``.safetensors``, ``.parquet``, ``.arrow``, ``.csv``, ``.tsv``; or of a folder that
            ``save_to_disk`` of Hugging Face's ``datasets`` wrote. Labels may be texts, numbered in the order
            of the file's ``class_names``; without these, in sorted order, without spaces around them.
            If a table (the last five kinds) has no column ``features`` of lists, each column of numbers or
            booleans is one feature, except the index of a pandas data frame; a column of another type, or
            that looks like labels, clients or ids, is then an error. Names of columns may follow the path, as
            in ``"x.parquet:features=embedding:labels=kind"``. ``is_test`` may hold "train" and "test".
        test: path of such a file with the test part, if ``dataset`` has none. Its feature columns are found
            by name, and put in the order of ``dataset``. Its other columns have the names that they have in
            ``dataset``, unless ``test`` names them itself: ``"test.csv:labels=kind"``.
        seed: the seed that draws a third of each class as the test part, if the data marks none.
        columns: the file's names for ``features``, ``labels``, ``clients`` and ``is_test``, if it has others.
            ``features`` may name many columns: ``"age+weight"`` or ``"f*"``. For an ``.npy`` file of
            features: the paths of the ``.npy`` files of the other arrays.

    Raises:
        ValueError: if the name is unknown, or a file does not contain what is expected.
        FileNotFoundError: if there is no such file.
        TypeError: if ``dataset`` or ``test`` is no path.
    """
    for name, given in {"dataset": dataset, "test": "" if test is None else test}.items():
        if not isinstance(given, str | PathLike):
            kind = type(given).__name__
            raise TypeError(f"{name}: expected a path, got {kind}; call covfree.fit with its columns")
    if str(dataset) == "digits":
        if test is not None:
            raise ValueError("test: expected none with dataset 'digits', which is split here")
        return load_digits(seed=seed)
    path, named = _named(dataset)
    named |= columns or {}
    files: dict[str, tuple[StrPath, dict[str, str]]] = {"dataset": (path, named)}
    if test is not None:
        file, theirs = _named(test)
        files["test"] = file, named | theirs
    for name, (file, _) in files.items():
        if Path(file).suffix in READABLE or (file and Path(file).is_dir()):
            continue
        digits, near = ("'digits', ", nearest(str(file), ["digits"])) if name == "dataset" else ("", "")
        raise ValueError(
            f"{name}: expected {digits}the path of a file that ends in {', '.join(READABLE)}, or of a folder "
            f"that save_to_disk of Hugging Face's datasets wrote, got {file!r}{near}"
        )
    if splits := splits_in(Path(path)):
        if test is not None:
            raise ValueError(f"test: expected none with {path}, which has a split test")
        files = {part.name: (part, named) for part in splits}
    parts = [(Path(file), read_columns(Path(file), own)) for file, own in files.values()]
    return _joined(parts, seed)._replace(name=Path(path).stem)


def _named(file: StrPath) -> tuple[str, dict[str, str]]:
    """Split an argument such as ``x.csv:labels=kind`` into the path and a dict of column names."""
    path, named = re.fullmatch(_NAMED, str(file)).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return path, dict(pair.split("=", 1) for pair in named.split(":")[1:])


def load_digits(*, seed: int = 0) -> FeatureSet:
    """Load the 8×8 handwritten digits that ship with scikit-learn: 1,797 images, pixels/16 as 64 features.

    Args:
        seed: the seed that draws a third of each class as the test part.

    Source: Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    pixels, labels = optional("sklearn.datasets", "cli").load_digits(return_X_y=True)
    arrays = {"features": (pixels / 16).astype(np.float32), "labels": labels}
    return _joined([(Path("digits"), arrays)], seed)


def load_npz(path: StrPath, *, test: StrPath | None = None, seed: int = 0) -> FeatureSet:
    """Load features from an ``.npz`` file.

    Args:
        path: a file with ``features [n, d]`` (any float), ``labels [n]`` (integers from 0) and, if there are
            any, ``clients [n]`` (strings or integers; ``""`` or a number below 0: no client),
            ``is_test [n]`` (booleans) and ``class_names [C]``. Without names, C is the largest label plus 1.
        test: a second file with the test part's ``features`` and ``labels``. If both have ``feature_names
            [d]``, its features are put in the order of the first file. Without ``test`` and ``is_test``, a
            random third of each class is the test part.
        seed: the seed that draws this third.

    If a file's features take 1 GiB or more and are split into both parts, these are
    `covfree.core.padding.Gathered` views, which are indexed like arrays. `covfree.fit` and
    `covfree.evaluate` read large features in blocks. Unless compressed, they stay in the file.

    Returns:
        The feature set. Clients are numbered from 0 by sorted name: first those with training examples, then
        those with test examples only.

    Raises:
        ValueError: naming the file and the array, if something is missing or wrong.
        FileNotFoundError: if there is no such file.
    """
    files = [Path(file) for file in (path, test) if file is not None]
    return _joined([(file, read_npz(file)) for file in files], seed)


def _joined(parts: list[Part], seed: int) -> FeatureSet:
    """Make a feature set of the arrays of one file, or of a training and a test file."""
    for file, part in parts:
        if not {"features", "labels"} <= set(part):
            raise ValueError(f"{file}: expected arrays features and labels, got {sorted(part)}")
        # Convert to this machine's byte order.
        part.update((name, own.astype(own.dtype.newbyteorder("="), copy=False)) for name, own in part.items())
    _number_labels(parts)
    (path, arrays), *others = parts
    _check(path, arrays)
    test_features = arrays["features"]
    for test, other in others:
        arrays, test_features = _with_test(path, arrays, test, other)
    labels, features = arrays["labels"], arrays["features"]
    clients, is_test, names = (arrays.get(name) for name in ("clients", "is_test", "class_names"))
    if clients is not None and clients.dtype.kind not in "iuUS":
        raise ValueError(f"{path}: clients: expected integers or strings, got {clients.dtype}")
    if names is None:
        try:
            num_classes = num_classes_of(labels)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if (first := int(labels.min(initial=num_classes))) > 0:
            warnings.warn(
                f"{path}: labels: the smallest is {first}, so class 0 has no example; number classes from 0, "
                "or give them names",
                UserWarning,
                stacklevel=3,
            )
    elif names.ndim == 1 and len(names) > labels.max(initial=0):
        num_classes = len(names)
    else:
        raise ValueError(
            f"{path}: class_names: expected at least {labels.max() + 1} names, as that many classes have "
            f"labels, got shape {list(names.shape)}"
        )
    made = [_extractor_of(part) for _, part in parts]
    if len(set(made) - {None}) > 1:
        raise ValueError(f"{parts[1][0]}: features: expected those of the extractor of {path}, got another's")
    fixed_split, few = is_test is not None, ""
    if is_test is None:
        is_test, few = held_out(labels, seed), "; there are too few of each class to keep some for the test"
    train = ~is_test
    if not train.any() or not is_test.any():
        raise ValueError(
            f"{path}: expected examples in both parts, got {train.sum()} to train and {is_test.sum()} to test"
            + few
        )
    owners, client_names = (None, None) if clients is None else _numbered(clients, train)
    labels = labels.astype(np.int32)
    return FeatureSet(
        name=path.stem,
        train_features=part_of(features, train[: len(features)]),
        train_labels=labels[train],
        test_features=part_of(test_features, is_test[-len(test_features) :]),
        test_labels=labels[is_test],
        num_classes=num_classes,
        clients=None if owners is None else owners[train],
        fixed_split=fixed_split,
        test_clients=None if owners is None or (owners[is_test] < 0).all() else owners[is_test],
        class_names=None if names is None else names_in(names),
        client_names=client_names,
        extractor=made[0],
    )


def _extractor_of(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return the fingerprint of the network that made a file's features; None if the file does not say it."""
    try:
        made = json.loads(str(arrays["key"].item()))
    except (KeyError, ValueError):
        return None
    return fingerprint_of(made) if isinstance(made, dict) and "weights" in made else None


def _with_test(
    path: Path, arrays: dict[str, np.ndarray], test: Path, other: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Append the labels and clients of a test file to those in ``arrays``, and mark them in ``is_test``.

    Returns:
        The arrays, with the training features alone; and the test features, with columns in the training
        file's order if both files name them.
    """
    if "is_test" in arrays:
        raise ValueError(f"{path}: expected either is_test in the file or a separate test file, got both")
    used = {"features", "labels"} | ({"clients"} & set(arrays))
    _check(test, {name: array for name, array in other.items() if name in used})
    classes = arrays.get("class_names")
    if classes is not None and not np.array_equal(classes, other.get("class_names", classes)):
        raise ValueError(f"{test}: class_names: expected the same as in {path}")
    features, dim = other["features"], arrays["features"].shape[1]
    names, theirs = (np.ravel(part.get("feature_names", [])).tolist() for part in (arrays, other))
    if len(names) == dim and len(theirs) == features.shape[1]:
        if wrong := sorted(set(names) ^ set(theirs)):
            place = "lacks" if wrong[0] in names else "has also"
            raise ValueError(f"{test}: features: expected the columns of {path}, but it {place} {wrong[0]!r}")
        features = features if names == theirs else features[:, [theirs.index(name) for name in names]]
    elif features.shape[1] != dim:
        raise ValueError(f"{test}: features: expected dim {dim} as in {path}, got {features.shape[1]}")
    counts = [len(part["labels"]) for part in (arrays, other)]
    joined = {
        "labels": np.concatenate([arrays["labels"], other["labels"]]),
        "is_test": np.repeat([False, True], counts),
    }
    if "clients" in arrays:
        clients = arrays["clients"]
        text = clients.dtype.kind in "US"
        own = other.get("clients", np.full(counts[1], "" if text else -1, str if text else np.int8))
        if own.dtype.kind not in ("US" if text else "iu"):
            raise ValueError(
                f"{test}: clients: expected the kind of {clients.dtype}, as in the training file, got "
                f"{own.dtype}"
            )
        # NumPy converts mixed bytes and text to text, but mixed uint64 and int64 to floats: `_joined` refuses
        # them.
        joined["clients"] = np.concatenate([clients, own])
    return arrays | joined, features


def _number_labels(parts: list[Part]) -> None:
    """Replace text labels in the files' arrays, in place, by class numbers.

    A label's number is its index in ``class_names`` if a file has this array, else among the sorted labels.
    """
    if any(part["labels"].dtype.kind != "U" or part["labels"].ndim != 1 for _, part in parts):
        return
    given = [names_in(part["class_names"]) for _, part in parts if "class_names" in part]
    for path, part in parts if not given else []:
        part["labels"] = np.char.strip(part["labels"])
        if (empty := part["labels"] == "").any():
            row = int(empty.argmax())
            raise ValueError(f"{path}: labels: expected a label for each example, got none in row {row}")
    names = np.array(given[0]) if given else np.unique(np.concatenate([part["labels"] for _, part in parts]))
    order = np.argsort(names, kind="stable")
    for path, part in parts:
        if len(absent := np.setdiff1d(part["labels"], names)):
            raise ValueError(f"{path}: labels: expected names in class_names, got {str(absent[0])!r}")
        part["labels"] = order[np.searchsorted(names, part["labels"], sorter=order)]
        part.setdefault("class_names", names)


def _check(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless a file's features, labels and ``is_test`` are valid; make the last booleans."""
    labels, is_test = arrays["labels"], arrays.get("is_test")
    try:
        check(arrays["features"], labels)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if (labels < 0).any():
        row = int(np.argmax(labels < 0))
        raise ValueError(f"{path}: labels: row {row} has label {labels[row]}; expected 0 or above")
    for name in ("clients", "is_test"):
        if name in arrays and arrays[name].shape != labels.shape:
            wrong = f"expected shape {list(labels.shape)}, got {list(arrays[name].shape)}"
            raise ValueError(f"{path}: {name}: {wrong}")
    if is_test is not None and is_test.dtype.kind == "U":
        if len(strange := np.setdiff1d(is_test, ["train", "test"])):
            raise ValueError(
                f"{path}: is_test: expected booleans or the texts train and test, got {str(strange[0])!r}"
            )
        arrays["is_test"] = is_test == "test"
    elif is_test is not None and is_test.dtype != bool:
        raise ValueError(f"{path}: is_test: expected booleans, got {is_test.dtype}; use is_test.astype(bool)")


def _numbered(clients: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return each example's client number, −1 for none (below 0 or ``""``), and the names of all clients.

    Clients are numbered in the order of their names, those with training examples first.
    """
    named = clients >= 0 if clients.dtype.kind in "iu" else clients != np.zeros((), clients.dtype)
    numbers = np.full(len(clients), -1, np.int32)
    known = np.unique(clients[named & train])
    known = np.concatenate([known, np.setdiff1d(clients[named], known)])
    order = np.argsort(known, kind="stable")
    numbers[named] = order[np.searchsorted(known, clients[named], sorter=order)]
    # Names are only shown, so bytes of any encoding are accepted.
    names = np.char.decode(known, "utf-8", "replace") if known.dtype.kind == "S" else known.astype(str)
    return numbers, tuple(names.tolist())
