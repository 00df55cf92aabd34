"""Keep features of images or texts in a file, so that they are computed only once.

Until all features are computed, a folder next to the feature file contains their bytes, and a small state
file that says how many examples are finished. The state file is replaced atomically after each `append`, so
that a later process can continue, even if this one is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from covfree.backbones.extractors import Extractor
from covfree.core.atomic import replacing
from covfree.data.dataset import StrPath
from covfree.data.feature_file import differences, locked, read_feature_file, rewrite, write_file
from covfree.data.image_set import ImageSet
from covfree.data.labelled import LabelledSet, few
from covfree.data.texts import TextSet

# A callback that gets the number of finished examples and the number of all examples.
Progress = Callable[[int, int], None]
# The arguments of `FeatureWriter.append`, piece by piece.
Pieces: TypeAlias = Generator[tuple[np.ndarray, Mapping[int, str]], None, None]


class Extracted(NamedTuple):
    """The result of `extract_features` or `encode_texts`.

    Attributes:
        path: the file.
        computed: the number of examples that this call processed, including any that it left out.
        skipped: the reason for each example that was left out, by its id.
    """

    path: Path
    computed: int
    skipped: dict[str, str]


def keep(
    examples: ImageSet | TextSet,
    kind: str,
    extractor: Extractor,
    compute: Callable[[int], Pieces],
    *,
    out: StrPath,
    dtype: str,
    on_damaged: str = "stop",
    progress: Progress | None = None,
) -> Extracted:
    """Write the features of ``examples`` to the file ``out``; return an `Extracted`, which names the file.

    A finished file is reused, and an unfinished one is continued. ``compute(start)`` yields the features of
    the examples from number ``start`` on. The file also gets the labels, clients and split of ``examples``.
    Its key has the fingerprint of ``examples`` under ``kind``, "images" or "texts".

    Raises:
        ValueError: if a finished file is of other ``examples``, another ``extractor`` or ``dtype``, if no
            example could be read, or if examples are left out and ``on_damaged`` is "stop".
    """
    path, total = Path(out), len(examples)
    key = {kind: examples.fingerprint, **extractor.key, "dtype": dtype}
    tell = progress or (lambda done, total: None)
    if path.exists():
        tell(total, total)
        return Extracted(path, 0, _reuse(path, key, examples, on_damaged))
    identities, size = examples.identities or (), extractor.num_features
    with FeatureWriter(path, key, num_features=size, dtype=dtype, identities=identities) as writer:
        begun = writer.done
        _check_skipped(f"{path}.partial", [examples.ids[i] for i in writer.skipped], on_damaged)
        tell(begun, total)
        # Close the iterator if an error ends the loop, as its threads decode ahead.
        with closing(compute(begun)) as pieces:
            for features, skipped in pieces:
                writer.append(features, skipped)
                tell(writer.done, total)
        if len(writer.skipped) == total:
            first = next(iter(writer.skipped.values()))
            raise ValueError(f"images: none of the {total} images of {examples.name} can be read ({first})")
        skipped = {examples.ids[i]: reason for i, reason in writer.skipped.items()}
        writer.finish(_arrays(examples, skipped))
    return Extracted(path, total - begun, skipped)


def _reuse(path: Path, key: Mapping[str, Any], examples: LabelledSet, on_damaged: str) -> dict[str, str]:
    """Check that a finished file has features of ``examples``, and give it their labels, clients and split.

    Returns the reason for each example without features, by its id. Raises a ValueError as `keep` does.
    """
    file = read_feature_file(path)
    if differing := differences(file.key, key):
        of_files = examples.identities is not None and all(each.startswith("images: ") for each in differing)
        told = (
            f": names, sizes or modification times of images in {examples.name} changed" if of_files else ""
        )
        raise ValueError(
            f"{path}: holds features of something else ({'; '.join(differing)}){told}; remove it or write to "
            "another file to extract again, or give it as a file of features as it is"
        )
    ids, reasons = (file.arrays.get(f"skipped_{name}", np.array([], str)) for name in ("ids", "reasons"))
    skipped = dict(zip(ids.tolist(), reasons.tolist(), strict=True))
    _check_skipped(str(path), list(skipped), on_damaged)
    arrays, count = _arrays(examples, skipped), len(file.features)
    if len(arrays["labels"]) != count:
        raise ValueError(
            f"{path}: expected features of {len(arrays['labels'])} examples, got {count}; remove it"
        )
    if not _same(arrays, file.arrays):
        # Release the memory map before the file is replaced.
        del file
        rewrite(path, arrays)
    return skipped


def _same(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> bool:
    # Files of earlier drafts have these two more; they need not be written anew.
    if set(ours) != set(theirs) - {"kept_images", "skipped_identities"}:
        return False
    pairs = [(ours[name], theirs[name]) for name in ours]
    return all(a.dtype.kind == b.dtype.kind and np.array_equal(a, b) for a, b in pairs)


def _check_skipped(place: str, ids: list[str], on_damaged: str) -> None:
    if ids and on_damaged == "stop":
        raise ValueError(
            f"{place}: leaves out {len(ids)} images that could not be read ({few(ids)}); remove it to read "
            "them again, or take it as it is by on_damaged 'skip'"
        )


def _arrays(examples: LabelledSet, skipped: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return, by name, a feature file's arrays other than the features.

    ``skipped`` maps the ids of examples without features to the reasons; these examples get no label.
    """
    kept = np.array([name not in skipped for name in examples.ids], bool)
    arrays = {
        "labels": np.asarray(examples.labels)[kept].astype(np.int32),
        "ids": np.array(examples.ids, str)[kept],
        "class_names": np.array(examples.class_names, str),
        "skipped_ids": np.array(list(skipped), str),
        "skipped_reasons": np.array(list(skipped.values()), str),
    }
    if examples.clients is not None:
        arrays["clients"] = np.asarray(examples.clients)[kept]
    if examples.is_test is not None:
        arrays["is_test"] = np.asarray(examples.is_test, bool)[kept]
    return arrays


class FeatureWriter:
    """Writes a feature file piece by piece; continues where an earlier writer stopped or was killed.

    Attributes:
        done: the number of examples whose features, or reasons for having none, are on disk.
        skipped: the reason for each finished example without features, by its index.
    """

    done: int
    skipped: dict[int, str]

    def __init__(
        self,
        path: StrPath,
        key: Mapping[str, Any],
        *,
        num_features: int,
        dtype: str,
        identities: Sequence[str] = (),
    ) -> None:
        """Open what an earlier writer left in the folder ``<path>.partial``, or start from the beginning.

        Args:
            path: the file, ``.npz``; an existing file stays until the new one is complete.
            key: what the features are computed from, as JSON values.
            num_features: d, the number of features.
            dtype: ``"float16"`` or ``"float32"``, the data type in the file.
            identities: for each example, a string that distinguishes it from others; none if unknown. With
                identities, an earlier writer's pieces are continued even if ``key["images"]`` differs, as
                long as the finished examples are the same: a damaged image may have been removed.

        A ValueError is raised if the folder holds pieces of something else, a BlockingIOError if another
        process is writing the file.
        """
        self._path = Path(path)
        if self._path.suffix != ".npz":
            raise ValueError(f"path: expected the path of an .npz file, got {str(path)!r}")
        self._about: dict[str, Any] = {"key": key, "num_features": num_features}
        self._num_features, self._dtype = num_features, np.dtype(dtype)
        self._folder = self._path.with_name(f"{self._path.name}.partial")
        self._identities = identities
        self._lock = locked(self._folder)
        try:
            self._resume()
        except BaseException:
            self._lock.close()
            raise

    def append(self, features: np.ndarray, skipped: Mapping[int, str]) -> None:
        """Write the next features to disk; after this call, they survive a kill of the process.

        Args:
            features: [rows, d], the features of the next ``rows + len(skipped)`` examples, without those in
                ``skipped``.
            skipped: the reason for each example without features, by its index.
        """
        stop = self.done + len(features) + len(skipped)
        with np.errstate(over="ignore"):
            rows = np.asarray(features, self._dtype)
        bad = ~np.isfinite(rows)
        if bad.any():
            row, place = np.argwhere(bad)[0].tolist()
            example = [example for example in range(self.done, stop) if example not in skipped][row]
            raise ValueError(
                f"features: example {example} has {features[row, place]} at position {place}; "
                f"expected finite numbers that {self._dtype} can hold"
            )
        # Seek: an earlier call may have failed half-way, e.g. on a full disk.
        self._data.seek(self._size)
        self._data.write(rows.tobytes())
        self._data.flush()
        os.fsync(self._data.fileno())
        skipped, digest = {**self.skipped, **skipped}, self._digest.copy()
        digest.update(_lines(self._identities[self.done : stop]))
        state = {"about": self._about, "done": stop, "skipped": skipped, "kept": digest.hexdigest()}
        with replacing(self._folder / "state.json") as file:
            file.write(json.dumps(state).encode())
        self.done, self.skipped, self._digest = stop, skipped, digest

    def finish(self, arrays: Mapping[str, np.ndarray]) -> Path:
        """Write the file, with other ``arrays`` beside the features, atomically; remove the folder."""
        shape = (self.done - len(self.skipped), self._num_features)

        def write_features(member: Any) -> None:
            try:
                features = np.memmap(self._data, self._dtype, "r", shape=shape)
            except ValueError as error:
                raise OSError(f"{self._folder}: is damaged; remove it to start anew") from error
            np.lib.format.write_array(member, features)

        write_file(self._path, self._about["key"], arrays, write_features)
        # The state file goes first, as it must not outlive the features that it describes.
        (self._folder / "state.json").unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        return self._path

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._data.close()
        self._lock.close()

    @property
    def _size(self) -> int:
        """The number of bytes of the finished examples' features."""
        return (self.done - len(self.skipped)) * self._num_features * self._dtype.itemsize

    def _resume(self) -> None:
        """Continue an earlier writer's work if there is any, or start from the beginning."""
        path = self._folder / "state.json"
        begun = {"about": self._about, "done": 0, "skipped": {}}
        state = json.loads(path.read_bytes()) if path.exists() else begun
        self.done = state["done"]
        self.skipped = {int(example): reason for example, reason in state["skipped"].items()}
        # A hash of the finished examples' identities.
        self._digest = hashlib.sha256(_lines(self._identities[: self.done]))
        # Compare only these entries, as earlier versions of covfree wrote more.
        theirs = {name: state["about"][name] for name in self._about}
        if differing := differences(theirs, self._about):
            self._check_finished(state, differing)
        (self._folder / "features").touch()
        self._data = (self._folder / "features").open("r+b")

    def _check_finished(self, state: Mapping[str, Any], differing: list[str]) -> None:
        """Raise a ValueError unless only unfinished images differ from those of the writer of ``state``."""
        told, other = "", ", or write to another file"
        if self._identities and all(each.startswith("key.images: ") for each in differing):
            if state.get("kept") == self._digest.hexdigest():
                return
            told, other = ": names, sizes or modification times of finished images changed", ""
        raise ValueError(
            f"{self._folder}: was begun with something else ({'; '.join(differing)}){told}; remove it to "
            f"start anew{other}"
        )


def _lines(identities: Sequence[str]) -> bytes:
    return "".join(f"{each}\n" for each in identities).encode()
