"""The folder that a command writes: its settings, checks before it is resumed, files of trained models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import covfree
from covfree.core import interrupts
from covfree.core.atomic import remove_abandoned, replacing
from covfree.data import FeatureSet
from covfree.studies.origin import origin_of

_NAME, RUNS = "settings.json", "runs.jsonl"
# For each command, patterns of files that no other command writes.
_WRITTEN = {
    "compare": (_NAME, RUNS, "accuracy_vs_bytes.*"),
    "finetune": (f"*-seed*/{_NAME}", "accuracy.*"),
    "partition": ("partition.*",),
    "personalise": (f"personal/{_NAME}",),
}
_FILES = (".png", ".pdf", ".svg", ".csv", ".html", ".tex", ".json", ".md")


def make_folder(out: Path | None, command: str) -> None:
    """Make a command's folder; raise ValueError if it is a file or has files of another command."""
    if out is None:
        return
    if out.suffix in _FILES and not out.is_dir():
        table = "" if command == "partition" else "; a table is printed: --format csv > table.csv"
        page = "; --report names a page" if command in ("compare", "finetune") else ""
        raise ValueError(f"--out: expected a folder, got {str(out)!r}{table}{page}")
    for other, patterns in _WRITTEN.items():
        found = [path for pattern in patterns for path in sorted(out.glob(pattern)) if other != command]
        if found:
            raise ValueError(
                f"--out: {out} holds files of covfree {other}, such as {found[0].relative_to(out)}; give "
                f"covfree {command} a folder of its own"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: cannot make the folder {out} ({error.strerror})") from error
    if command != "partition":
        interrupts.advice = "; the same command with --resume goes on"


def holds_trainings(out: Path) -> bool:
    """Return whether a folder has subfolders of runs of ``covfree finetune``."""
    return any(out.glob(_WRITTEN["finetune"][0]))


def check_settings(folder: Path, settings: Mapping[str, Any], resume: bool) -> None:
    """Raise ValueError if a folder has runs, unless they are resumed with their own settings and version."""
    earlier = read_settings(folder, "version")
    if earlier is None:
        return
    number = (folder / RUNS).read_bytes().count(b"\n") if (folder / RUNS).exists() else 1
    held, them = ("a run", "it") if number < 2 else (f"{number} runs", "them")
    if not resume:
        raise ValueError(
            f"--out: {folder} holds {held}; --resume goes on with {them}, or give another folder"
        )
    if earlier["version"] != covfree.__version__:
        # A table must not mix the numbers of two versions.
        raise ValueError(
            f"--resume: {folder} holds {held} of covfree {earlier['version']}, got {covfree.__version__}; "
            "give another folder"
        )
    theirs = earlier["settings"]
    for name in sorted({*settings, *theirs}):
        if theirs.get(name) != settings.get(name):
            raise ValueError(
                f"--resume: {folder} holds {held} with --{name.replace('_', '-')} "
                f"{_shown(theirs.get(name))}, got {_shown(settings.get(name))}"
            )


def check_data(folder: Path, contents: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Raise ValueError if runs in the folder used data of the same name with other or unknown contents.

    ``contents`` has a digest of each data set, by name; ``files`` says from which files they come, or "".
    """
    earlier = read_settings(folder, "data")
    if earlier is None and (folder / RUNS).exists():
        raise ValueError(
            f"--out: {folder} holds {RUNS} without settings.json, which says what the runs are of; "
            f"give another folder"
        )
    for name, now in contents.items():
        if earlier is not None and earlier["data"].get(name) != now:
            where = "" if files[name] in ("", name) else f" ({files[name]})"
            raise ValueError(
                f"--resume: {folder} holds runs on other contents of {name}{where}; give another folder"
            )


def write_settings(folder: Path, settings: Mapping[str, Any], **more: Any) -> None:
    """Write the runs' settings, and further entries ``more``, into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"settings": dict(settings), "version": covfree.__version__, **more}
    # Write atomically, so that a run killed here can be started again.
    with replacing(folder / _NAME) as draft:
        draft.write((json.dumps(content, indent=2) + "\n").encode())


def read_settings(folder: Path, *names: str) -> dict[str, Any] | None:
    """Read the settings and the named entries that `write_settings` wrote; None if there is no file."""
    file = folder / _NAME
    if not file.exists():
        return None
    try:
        earlier = json.loads(file.read_text(encoding="utf-8"))
        return {name: earlier[name] for name in ("settings", *names)}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--resume: {file}: expected the settings of a run ({error})") from error


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "its default" if value is None else str(value)


def save_result(folder: Path, result: Any, data: FeatureSet, seed: int) -> None:
    """Save the trained head, and a network's parameters or prompts, as .npz files.

    NumPy can read the files without covfree.
    """
    # Imported here so that studies of closed forms do not need optax.
    from covfree.finetune import NetworkMap

    remove_abandoned(folder)
    head = result
    if hasattr(result, "trained"):
        # The head uses features that depend on these prompts, so it has no file of its own.
        head, kept = result.trained["head"], np.asarray(result.frozen["kept"])
        arrays = {"prompts": np.asarray(result.trained["prompts"])[kept]}
        arrays |= {"weight": np.asarray(head.weight), "bias": np.asarray(head.bias)}
        with replacing(folder / "prompts.npz") as file:
            np.savez(file, **arrays)
        return
    if isinstance(getattr(result, "feature_map", None), NetworkMap):
        from flax.traverse_util import flatten_dict

        params, head = result.feature_map.params, result.head
        arrays: Any = {name: np.asarray(leaf) for name, leaf in flatten_dict(params, sep="/").items()}
        with replacing(folder / "backbone.npz") as file:
            np.savez(file, **arrays)
    dim = data.train_features.shape[1]
    origin = origin_of(data, seed)
    covfree.save_head(head, folder / "head.npz", class_names=data.class_names, dim=dim, origin=origin)
