"""Trained baselines on Fashion-MNIST: one-shot, in rounds, fine-tuned, beside training-free heads.

Run ``python experiments/fashion_mnist.py [--data-dir FOLDER] [--out FOLDER]``. Images come from the folder of
the four IDX files, packed or not; without one from Debian's package dataset-fashion-mnist, else from
TensorFlow Datasets. Some of the 60,000 images are dealt to clients class by class
(`covfree.partitions.dirichlet`), none of fewer than 10. The backbone of the training-free heads is the same
network, trained on those of the other images that are of classes 0 to 4; heads are for all ten classes, and
fine-tuning goes on from it. Accuracy is that of the last round or epoch on all 10,000 test images; no number
was chosen on these.

It writes ``results.json`` as it goes, a record for each method, α and seed, and the same command goes on
where it was stopped. ``--published`` has the sizes of the published experiments: 60,000 images, 5 × 5
kernels, 50 local epochs, 200 epochs of distillation with 30 steps of a generator of width 64, each method's
own batches, 50 rounds of 10 epochs.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from baselines.idx import fashion_mnist
from baselines.study import Federation, Options, Seed
from baselines.ways import CENTRAL, WAYS

import covfree
from covfree.core.atomic import replacing
from covfree.studies.report import environment
from covfree.studies.table import as_bytes

HELP = {
    "images": "images of all clients together",
    "clients": "how many there are",
    "kernel": "height and width of the network's convolutions",
    "local_epochs": "of one-shot methods' local training, of the backbone and of training in one place",
    "rounds": "of training from scratch",
    "round_epochs": "of a client in a round",
    "tuning_rounds": "of fine-tuning",
    "distillation_epochs": "of DENSE and Co-Boosting",
    "generator_steps": "for each batch of made images",
    "generator_width": "channels of the generator's last but one layer",
    "distillation_batch": "images that an epoch makes; None is 256 in DENSE, 128 in Co-Boosting",
    "every": "rounds or epochs from one evaluation to the next",
}
REDUCED = Options(10_000, 10, 3, 20, 10, 1, 5, 24, 20, 16, 64, 2)
PUBLISHED = Options(60_000, 10, 5, 50, 50, 10, 50, 200, 30, 64, None, 10)


def cpu_seconds() -> float:
    """Of this process so far."""
    times = os.times()
    return times.user + times.system


def read(file: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a results file; an error if they are of other settings."""
    if not file.exists():
        return []
    content = json.loads(file.read_text())
    if different := {name for name in settings if content["settings"].get(name) != settings[name]}:
        there = {name: content["settings"].get(name) for name in sorted(different)}
        raise SystemExit(f"--out: {file} is of another run, with {there}; name another folder")
    return content["records"]


def write(file: Path, settings: dict[str, Any], records: Sequence[dict[str, Any]]) -> None:
    """Replace a results file, as a whole or not at all."""
    lines = ",\n".join(json.dumps(record) for record in records)
    head = json.dumps({"settings": settings, "environment": environment()}, indent=1)[:-2]
    with replacing(file) as out:
        out.write(f'{head},\n "records": [\n{lines}\n ]\n}}\n'.encode())


def cells(records: Sequence[dict[str, Any]], method: str, alpha: float | None) -> tuple[str, str]:
    """A method's mean accuracy over the seeds, the least and the greatest, in percent, and its bytes up."""
    found = [r for r in records if (r["method"], r["alpha"]) == (method, alpha)]
    if not found:
        return "", ""
    runs = 100 * np.array([np.mean(r["accuracy"]) for r in found])
    spread = f" ({runs.min():.1f}–{runs.max():.1f})" if len(runs) > 1 else ""
    return f"{runs.mean():.2f}{spread}", as_bytes(float(np.mean([r["bytes_up"] for r in found])))


def table(records: Sequence[dict[str, Any]], alphas: Sequence[float]) -> Iterator[str]:
    """Accuracy by method and α, in groups."""
    # Class means' bytes depend on α.
    yield f"| | {' | '.join(f'α = {alpha:g}' for alpha in alphas)} | bytes up, last α |"
    yield f"|---|{'---|' * (len(alphas) + 1)}"
    for group, names in groupby(WAYS, lambda name: WAYS[name].group):
        if group == CENTRAL:
            continue
        yield f"| **{group}** |{' |' * (len(alphas) + 1)}"
        for name in names:
            found = [cells(records, name, alpha) for alpha in alphas]
            sent = next((sent for _, sent in reversed(found) if sent), "")
            yield f"| {WAYS[name].title} | {' | '.join(accuracy for accuracy, _ in found)} | {sent} |"
    yield f"\nAll images in one place: {cells(records, CENTRAL, None)[0]}"


def measure(options: Options, arguments: argparse.Namespace, records: list[dict[str, Any]]) -> Iterator[None]:
    """Add what is not yet there to the records, one at a time."""
    done = {(record["seed"], record["alpha"], record["method"]) for record in records}
    parts = fashion_mnist(arguments.data_dir)
    for seed in range(arguments.seeds):
        shared = Seed(options, *parts, seed)
        for alpha in arguments.alphas:
            federation = Federation(shared, alpha)
            for method in arguments.methods:
                # What has no clients has no α.
                record = {"seed": seed, "alpha": None if method == CENTRAL else alpha, "method": method}
                if tuple(record.values()) in done:
                    continue
                done.add(tuple(record.values()))
                began, used = time.perf_counter(), cpu_seconds()
                record |= WAYS[method].measure(federation)._asdict()
                record |= {
                    "seconds": round(time.perf_counter() - began, 1),
                    "cpu_seconds": round(cpu_seconds() - used, 1),
                }
                records.append(record)
                shown = f"{100 * np.mean(record['accuracy']):.2f} %, {record['cpu_seconds']:.0f} s of CPU"
                print(f"seed {seed}, α {record['alpha']}, {method}: {shown}", flush=True)
                yield


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the four IDX files")
    parser.add_argument(
        "--out", type=Path, default=Path("experiments/fashion-mnist"), help="folder of the results"
    )
    parser.add_argument("--alphas", type=float, nargs="+", default=(0.05, 0.1, 0.5))
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--methods", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="METHOD")
    parser.add_argument("--published", action="store_true", help="the published sizes, but for those given")
    for field in fields(Options):
        sizes = f"{getattr(REDUCED, field.name)}, or {getattr(PUBLISHED, field.name)} with --published"
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=int, metavar="N", help=f"{HELP[field.name]} ({sizes})")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write and print; draw what there is."""
    from fashion_mnist_plot import pictures

    covfree.limit_lapack_threads()
    arguments = arguments_of(argv)
    sizes = asdict(PUBLISHED if arguments.published else REDUCED)
    given = {name: getattr(arguments, name) for name in sizes if getattr(arguments, name) is not None}
    options = Options(**sizes | given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "results.json"
    records = read(file, asdict(options))
    for _ in measure(options, arguments, records):
        write(file, asdict(options), records)
    print("\n".join(table(records, arguments.alphas)))
    pictures(records, arguments.out)


if __name__ == "__main__":
    main()
