"""Keep features of images or texts in a file, so that they are computed only once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from covfree.data.dataset import StrPath
from covfree.data.feature_file import differences, read_feature_file, rewrite
from covfree.data.feature_writer import FeatureWriter
from covfree.data.labelled import LabelledSet, few

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
    examples: LabelledSet,
    key: Mapping[str, Any],
    compute: Callable[[int], Pieces],
    *,
    out: StrPath,
    num_features: int,
    dtype: str,
    on_damaged: str = "stop",
    progress: Progress | None = None,
) -> Extracted:
    """Write the features of ``examples`` to the file ``out``; return an `Extracted`, which names the file.

    A finished file is reused, and an unfinished one is continued. ``compute(start)`` yields the features of
    the examples from number ``start`` on. The file also gets the labels, clients and split of ``examples``.
    ``key`` says what the features are computed from, see `FeatureWriter`.

    Raises:
        ValueError: if a finished file does not fit ``key`` or ``examples``, if no example could be read,
            or if examples are left out and ``on_damaged`` is "stop".
    """
    path, total = Path(out), len(examples)
    tell = progress or (lambda done, total: None)
    if path.exists():
        tell(total, total)
        return Extracted(path, 0, _reuse(path, key, examples, on_damaged))
    sizes = {"num_examples": total, "num_features": num_features, "dtype": dtype}
    with FeatureWriter(path, key, **sizes, identities=examples.identities or ()) as writer:
        begun = writer.done
        _check_skipped(f"{path}.partial", [examples.ids[i] for i in writer.skipped], on_damaged)
        tell(begun, total)
        # Close it if an error ends the loop: its threads decode ahead.
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
    if set(ours) != set(theirs):
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
