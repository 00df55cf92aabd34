"""Image sets by name or path; images of named federations, whose tables list each client's images."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np

from covfree.core.array_file import read_npz
from covfree.data.dataset import StrPath
from covfree.data.folders import image_folder, of_files, scan
from covfree.data.from_tfds import tfds
from covfree.data.image_set import ImageSet, image_arrays, image_formats
from covfree.data.labelled import Example, by_number, labelled, read_table

_PREFIX = "tfds:"
_SPLITS = "http://storage.googleapis.com/gresearch/federated-vision-datasets/"
# What belongs in the folder of each federation: files and folders, and what to download.
_CONTENT = {
    "femnist": (
        ("train", "test"),
        "what LEAF writes by data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 -t sample",
    ),
    "landmarks-user-160k": (
        ("federated_train.csv", "test.csv", "train"),
        f"the tables of {_SPLITS}landmarks-user-160k.zip, and Google Landmarks v2's folder train/",
    ),
    "inaturalist-user-120k": (
        ("federated_train_user_120k.csv", "test.csv", "train_val_images"),
        f"the tables of {_SPLITS}inaturalist-user-120k.zip, and train_val_images/ of iNaturalist 2017",
    ),
}
# The names that `federation` accepts.
FEDERATIONS = tuple(_CONTENT)


def load_images(source: StrPath) -> ImageSet:
    """Return an image set, opened by its name or path.

    Args:
        source: a folder, see `image_folder`; ``"tfds:NAME"``, see `tfds`; a federation's name, see
            `federation`; or an ``.npz`` file, see below. To pass more arguments to one of the functions
            named here, call that function directly.

    An ``.npz`` file holds ``images`` (uint8 ``[n, height, width, 3]`` or ``[n, height, width]``) and ``labels
    [n]``, and optionally ``clients [n]``, ``is_test [n]`` and ``class_names [C]``, see `image_arrays`.
    Everything is read into memory.

    Raises:
        ValueError: if the source is none of these, or does not contain what is expected.
        FileNotFoundError: if there is no such file or folder.
    """
    name = str(source)
    if name.startswith(_PREFIX):
        return tfds(name.removeprefix(_PREFIX))
    if name in FEDERATIONS:
        return federation(name)
    path = Path(source)
    if path.is_dir():
        return image_folder(path)
    if path.suffix == ".npz":
        return _load_npz(path)
    if path.exists():
        raise ValueError(f"{path}: expected a folder of images or an .npz file, got another file")
    raise FileNotFoundError(
        f"{path}: no such file or folder; expected a folder of images, an .npz file, tfds:NAME "
        f"or {', '.join(FEDERATIONS)}"
    )


def _load_npz(path: Path) -> ImageSet:
    arrays = read_npz(path)
    if not {"images", "labels"} <= set(arrays):
        raise ValueError(f"{path}: expected arrays images and labels, got {sorted(arrays)}")
    known = ("images", "labels", "clients", "is_test", "class_names")
    try:
        return image_arrays(**{name: arrays[name] for name in known if name in arrays}, name=path.stem)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def federation(name: str, *, data_dir: StrPath | None = None) -> ImageSet:
    """Open the image set of a named federation, with the clients and the test part that papers use.

    Args:
        name: ``"femnist"``, ``"landmarks-user-160k"`` or ``"inaturalist-user-120k"``.
        data_dir: the folder that contains a folder of this name; by default ``$COVFREE_DATA``, or
            ``covfree-data`` in the home folder. Nothing is downloaded: if the folder is missing, the error
            says what belongs in it.

    Raises:
        ValueError: if the name is unknown, or a file does not contain what is expected.
        FileNotFoundError: if something is missing.

    Source: Caldas et al. (2018), LEAF; Hsu, Qi and Brown (2020), Federated visual classification with
    real-world data distribution.
    """
    if name not in FEDERATIONS:
        raise ValueError(f"name: expected one of {', '.join(FEDERATIONS)}, got {name!r}")
    above = data_dir or os.environ.get("COVFREE_DATA") or Path.home() / "covfree-data"
    root = Path(above) / name
    content, download = _CONTENT[name]
    if missing := [each for each in content if not (root / each).exists()]:
        raise FileNotFoundError(
            f"{name}: expected {' and '.join(missing)} in {root} (the folder above is $COVFREE_DATA); "
            f"put there {download}"
        )
    if name == "femnist":
        return leaf_images(root)
    train, test, images = (root / each for each in content)
    return image_table(images, train, test)


def image_table(
    folder: StrPath,
    train: StrPath,
    test: StrPath | None = None,
    *,
    client_column: str = "user_id",
    image_column: str = "image_id",
    label_column: str = "class",
) -> ImageSet:
    """Open images whose clients and classes are listed in tables (``.csv``, or ``.tsv`` with tabs).

    Args:
        folder: the folder of the images, at any depth.
        train: the table of the training images: a line of column names, then one line for each image.
        test: the table of the test images, which needs no clients.
        client_column: the column of the image's client.
        image_column: the column of the file name, with or without its extension.
        label_column: the column of the class.

    Returns:
        The image set, in the order of the tables. Files that are in no table are ignored silently. Classes
        are sorted, as numbers if all consist of digits. The fingerprint is computed as by `image_folder`.

    Raises:
        ValueError: if a column is missing, a value is empty, or two files or lines have the same name.
        FileNotFoundError: if a table or an image is missing.
    """
    columns, examples = [image_column, label_column, client_column], list[Example]()
    for table, split in ((train, "train"), (test, "test")):
        if table is None:
            continue
        needed = columns if split == "train" else columns[:2]
        try:
            lines = list(read_table(Path(table), needed, columns, ragged=True))
            if not lines:
                raise ValueError("expected a line for each image, got none")
            for place, values in lines:
                if empty := [column for column in needed if not values[column]]:
                    raise ValueError(f"{place} has no {empty[0]!r}")
                examples.append(Example(*(values.get(column, "") for column in columns), split=split))
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{table}: {error}") from error
    found, paths = scan(Path(folder)), dict[str, str]()
    wanted = {example.id for example in examples}
    for path in found.files:
        stem, extension = os.path.splitext(os.path.basename(path))
        if extension.lower() in image_formats():
            for key in {stem, stem + extension} & wanted:
                if key in paths:
                    raise ValueError(f"{folder}: two files are image {key!r}: {paths[key]} and {path}")
                paths[key] = path
    absent = sorted(wanted - set(paths))
    if absent:
        raise FileNotFoundError(
            f"{folder}: {len(absent)} of {len(wanted)} images of the tables are missing: {absent[0]!r}, ..."
        )
    examples = [example._replace(id=paths[example.id]) for example in examples]
    class_names = by_number({example.label for example in examples})
    _, fields = labelled(folder, "images", examples, class_names)
    return of_files(Path(folder), Path(train).resolve().parent.name, found, fields)


def leaf_images(folder: StrPath) -> ImageSet:
    """Open images that LEAF's scripts wrote as JSON files in the folders ``train`` and ``test``.

    Each file has ``users``, and ``user_data`` with ``x`` and ``y`` for each user. ``x`` has square images of
    one channel in [0, 1], row by row; ``y`` has labels from 0. Everything is read into memory.

    Raises:
        ValueError: if a file is not of this form; the message names the file.
        FileNotFoundError: if there is no file.
    """
    pixels, labels, clients, is_test = [], [], [], []
    for part in ("train", "test"):
        files = sorted((Path(folder) / part).glob("*.json"))
        if not files:
            raise FileNotFoundError(f"{Path(folder) / part}: expected JSON files of LEAF, found none")
        for file in files:
            for user, x, y in _users(file):
                pixels.append(x)
                labels.append(y)
                clients += [user] * len(y)
                is_test += [part == "test"] * len(y)
    images = np.concatenate(pixels)
    return image_arrays(
        images,
        np.concatenate(labels),
        clients=np.array(clients),
        is_test=np.array(is_test),
        name=Path(folder).resolve().name,
    )


def _users(file: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Read a file of LEAF; return name, grey levels [n, side, side] and labels of each user with examples."""
    try:
        content = json.loads(file.read_bytes())
        found = [(user, content["user_data"][user]) for user in content["users"]]
        arrays = [
            (user, np.asarray(own["x"], float), np.asarray(own["y"])) for user, own in found if own["y"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: expected LEAF's users and user_data with x and y ({error!r})") from error
    users = []
    for user, x, y in arrays:
        side = round(x.shape[-1] ** 0.5) if x.ndim == 2 else 0
        if x.shape != (len(y), side * side) or not (x >= 0).all() or not (x <= 1).all():
            raise ValueError(
                f"{file}: user {user!r}: expected x of {len(y)} square images in [0, 1], got {list(x.shape)}"
            )
        levels = np.rint(255 * x).astype(np.uint8)
        users.append((str(user), levels.reshape(-1, side, side), y))
    return users
