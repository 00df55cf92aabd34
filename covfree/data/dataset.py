"""Feature sets: features with labels and perhaps clients, split into a training and a test part."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from covfree.backbones.extractors import fingerprint_of
from covfree.core.array_file import names_in, read_npz
from covfree.core.checks import check, num_classes_of
from covfree.core.columns import READABLE, read_columns, splits_in
from covfree.core.gathered import part_of
from covfree.core.optional import optional
from covfree.core.registries import nearest

StrPath: TypeAlias = str | PathLike[str]
# A function that reads a file's arrays, by name.
Read: TypeAlias = Callable[[Path], dict[str, np.ndarray]]


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
    """
    if str(dataset) == "digits":
        if test is not None:
            raise ValueError("test: expected none with dataset 'digits', which is split here")
        return load_digits(seed=seed)
    path, named = _named(dataset)
    named |= columns or {}
    by_file = dict[Path, dict[str, str]]()
    if test is not None:
        test, theirs = _named(test)
        by_file[Path(test)] = named | theirs

    def read(file: Path) -> dict[str, np.ndarray]:
        return read_columns(file, by_file.get(file, named))

    for name, file in (("dataset", path), ("test", test)):
        if file is None or Path(file).suffix in READABLE or (file and Path(file).is_dir()):
            continue
        digits, near = ("'digits', ", nearest(str(file), ["digits"])) if name == "dataset" else ("", "")
        raise ValueError(
            f"{name}: expected {digits}the path of a file that ends in {', '.join(READABLE)}, or of a folder "
            f"that save_to_disk of Hugging Face's datasets wrote, got {str(file)!r}{near}"
        )
    if (splits := splits_in(Path(path))) is None:
        return _loaded(Path(path), test, seed, read)
    if test is not None:
        raise ValueError(f"test: expected none with {path}, which has a split test")
    return _loaded(*splits, seed, read)._replace(name=Path(path).stem)


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
    return _split("digits", (pixels / 16).astype(np.float32), labels.astype(np.int32), None, seed, 10)


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
    `covfree.core.gathered.Gathered` views, which are indexed like arrays. `covfree.fit` and
    `covfree.evaluate` read large features in blocks. Unless compressed, they stay in the file.

    Returns:
        The feature set. Clients are numbered from 0 by sorted name: first those with training examples, then
        those with test examples only.

    Raises:
        ValueError: naming the file and the array, if something is missing or wrong.
        FileNotFoundError: if there is no such file.
    """
    return _loaded(Path(path), test, seed, read_npz)


def _loaded(path: Path, test: StrPath | None, seed: int, read: Read) -> FeatureSet:
    """Make a feature set from one file, or a training and a test file; ``read`` returns a file's arrays."""
    arrays = _native(read(path))
    other = None if test is None else _native(read(Path(test)))
    parts = [(path, arrays)] + ([] if other is None or test is None else [(Path(test), other)])
    _number_labels(parts)
    for file, part in parts:
        _check(file, part)
    features, labels = arrays["features"], arrays["labels"]
    clients, is_test = arrays.get("clients"), arrays.get("is_test")
    for name, array in (("clients", clients), ("is_test", is_test)):
        if array is not None and array.shape != labels.shape:
            raise ValueError(f"{path}: {name}: expected shape {list(labels.shape)}, got {list(array.shape)}")
    if test is not None and is_test is not None:
        raise ValueError(f"{path}: expected either is_test in the file or a separate test file, got both")
    names = arrays.get("class_names")
    own_test = None
    if other is not None and test is not None:
        if names is not None and not np.array_equal(names, other.get("class_names", names)):
            raise ValueError(f"{test}: class_names: expected the same as in {path}")
        own_test = _in_order(arrays, path, other, Path(test))
        is_test = np.repeat([False, True], [len(labels), len(other["labels"])])
        labels = np.concatenate([labels, other["labels"]])
        if clients is not None:
            theirs = _test_clients(clients, other, Path(test))
            # NumPy converts mixed bytes and text to text, but mixed uint64 and int64 to floats, which are
            # refused below.
            clients = np.concatenate([clients, theirs])
    if is_test is not None and is_test.dtype.kind == "U":
        if len(strange := np.setdiff1d(is_test, ["train", "test"])):
            raise ValueError(
                f"{path}: is_test: expected booleans or the texts train and test, got {str(strange[0])!r}"
            )
        is_test = is_test == "test"
    if is_test is not None and is_test.dtype != bool:
        raise ValueError(f"{path}: is_test: expected booleans, got {is_test.dtype}")
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
    data = _split(str(path), features, labels, clients, seed, num_classes, is_test, own_test)
    made = [_extractor_of(part) for _, part in parts]
    if len(made) == 2 and None not in made and made[0] != made[1]:
        raise ValueError(f"{test}: features: expected those of the extractor of {path}, got another's")
    return data._replace(class_names=None if names is None else names_in(names), extractor=made[0])


def _extractor_of(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return the fingerprint of the network that made a file's features; None if the file does not say it."""
    key = arrays.get("key")
    try:
        made = None if key is None or key.dtype.kind != "U" else json.loads(key.item())
    except ValueError:
        return None
    return fingerprint_of(made) if isinstance(made, dict) and "weights" in made else None


def _native(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert arrays to this machine's byte order."""
    return {
        name: own if own.dtype.isnative else own.astype(own.dtype.newbyteorder("="))
        for name, own in arrays.items()
    }


def _in_order(
    arrays: dict[str, np.ndarray], path: Path, other: dict[str, np.ndarray], test: Path
) -> np.ndarray:
    """Return the test features, with columns in the training file's order if both files name them."""
    features, dim = other["features"], arrays["features"].shape[1]
    names, theirs = (np.ravel(part.get("feature_names", [])).tolist() for part in (arrays, other))
    if len(names) == dim and len(theirs) == features.shape[1]:
        if wrong := sorted(set(names) ^ set(theirs)):
            place = "lacks" if wrong[0] in names else "has also"
            raise ValueError(f"{test}: features: expected the columns of {path}, but it {place} {wrong[0]!r}")
        return features if names == theirs else features[:, [theirs.index(name) for name in names]]
    if features.shape[1] != dim:
        raise ValueError(f"{test}: features: expected dim {dim} as in {path}, got {features.shape[1]}")
    return features


def _number_labels(parts: list[tuple[Path, dict[str, np.ndarray]]]) -> None:
    """Replace text labels in the files' arrays, in place, by class numbers.

    A label's number is its index in ``class_names`` if a file has this array, else among the sorted labels.
    """
    labels = [part["labels"] for _, part in parts if "labels" in part]
    if not labels or any(own.dtype.kind != "U" or own.ndim != 1 for own in labels):
        return
    given = [names_in(part["class_names"]) for _, part in parts if "class_names" in part]
    for path, part in parts if not given else []:
        part["labels"] = np.char.strip(part["labels"])
        if (empty := part["labels"] == "").any():
            row = int(empty.argmax())
            raise ValueError(f"{path}: labels: expected a label for each example, got none in row {row}")
    labels = [part["labels"] for _, part in parts if "labels" in part]
    names = np.array(given[0]) if given else np.unique(np.concatenate(labels))
    order = np.argsort(names, kind="stable")
    for path, part in parts:
        if len(absent := np.setdiff1d(part["labels"], names)):
            raise ValueError(f"{path}: labels: expected names in class_names, got {str(absent[0])!r}")
        part["labels"] = order[np.searchsorted(names, part["labels"], sorter=order)]
        part.setdefault("class_names", names)


def _check(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless a file's arrays include valid features and labels."""
    missing = [name for name in ("features", "labels") if name not in arrays]
    if missing:
        raise ValueError(f"{path}: expected arrays features and labels, got {sorted(arrays)}")
    try:
        check(arrays["features"], arrays["labels"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if (arrays["labels"] < 0).any():
        row = int(np.argmax(arrays["labels"] < 0))
        raise ValueError(f"{path}: labels: row {row} has label {arrays['labels'][row]}; expected 0 or above")


def _split(
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    clients: np.ndarray | None,
    seed: int,
    num_classes: int,
    is_test: np.ndarray | None = None,
    own_test: np.ndarray | None = None,
) -> FeatureSet:
    """Make a `FeatureSet` of arrays; its test part is the examples where ``is_test`` is True.

    If ``is_test`` is None, the test part is drawn with ``seed``. If ``own_test`` is given, it has the test
    features, and ``features`` only the training features. Then ``labels``, ``clients`` and ``is_test`` have
    the entries for ``features`` first, followed by those for ``own_test``.
    """
    fixed_split = is_test is not None
    if is_test is None:
        is_test = held_out(labels, seed)
    train = ~is_test
    if not train.any() or not is_test.any():
        raise ValueError(
            f"{name}: expected examples in both parts, got {train.sum()} to train and {is_test.sum()} to test"
            + ("" if fixed_split else "; there are too few of each class to keep some for the test")
        )
    owners, client_names = (None, None) if clients is None else _numbered(clients, train)
    return FeatureSet(
        name=Path(name).stem,
        train_features=part_of(features, train[: len(features)]),
        train_labels=labels[train].astype(np.int32),
        test_features=(
            part_of(features, is_test) if own_test is None else part_of(own_test, is_test[len(features) :])
        ),
        test_labels=labels[is_test].astype(np.int32),
        num_classes=num_classes,
        clients=None if owners is None else owners[train],
        fixed_split=fixed_split,
        test_clients=None if owners is None or (owners[is_test] < 0).all() else owners[is_test],
        client_names=client_names,
    )


def _numbered(clients: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number clients from 0 in the order of their names, those with training examples first.

    An example without a client (below 0, or ``""``) gets −1. Returns the numbers, and the clients' names.
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


def _test_clients(clients: np.ndarray, other: dict[str, np.ndarray], path: Path) -> np.ndarray:
    """Return each test example's client.

    If the test file has no clients, it is ``""`` if the training file's ``clients`` are texts, else −1.
    """
    count = len(other["labels"])
    theirs = other.get("clients")
    if theirs is None:
        return np.full(count, "") if clients.dtype.kind in "SU" else np.full(count, -1, np.int8)
    if theirs.shape != (count,) or theirs.dtype.kind not in ("iu" if clients.dtype.kind in "iu" else "SU"):
        raise ValueError(
            f"{path}: clients: expected shape {[count]} and the kind of {clients.dtype}, as in the training "
            f"file, got {theirs.dtype}{list(theirs.shape)}"
        )
    return theirs


def held_out(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return a mask [examples] of the test part: a random third of each class, rounded down."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_test = np.zeros(len(labels), bool)
    is_test[order] = rank < np.repeat(sizes // 3, sizes)
    return is_test
