"""Prompt tuning of a frozen vision transformer, beside FedCOF's head on the same transformer.

Run ``python experiments/prompt_tuning.py --dataset FOLDER --out FOLDER``, where the data set's folder has
the IDX files of Fashion-MNIST. A small transformer (patches of 7 pixels) is trained first, on 3,000 images of
each of the first five classes. It is frozen then, and a federation with 300 other images of each of all ten
classes trains prompts and a head.

With ``--backbone vit_b_32 --weights FILE --dataset tfds:cifar100`` (or a folder of images, or what else
`covfree.data.load_images` takes) it is the published experiment (FedCOF, Table 4): 100 clients, 10 in each of
120 rounds, 5 epochs, a pool of 20 prompts of which an image reads 10. Options change single numbers of both.

It writes ``results.json`` as it goes and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import flax.traverse_util as trees
import jax
import jax.numpy as jnp
import numpy as np
import optax
from baselines.idx import fashion_mnist
from prompt_tuning_plot import plot, table
from prompting import ALGORITHMS, Keys, Training, accuracy, in_batches, prompted

import covfree
from covfree import finetune, rounds
from covfree.backbones import BACKBONES, Backbone, Preprocessing, Spec, backbone
from covfree.backbones.preprocess import crop, normalise
from covfree.data import load_images
from covfree.data.partitions import inner_dirichlet
from covfree.studies.plots.style import save_for_pages

_LEVELS = Preprocessing(28, 28, "bilinear", (73.0, 73.0, 73.0), (90.0, 90.0, 90.0))
_SIZE = {"patch": 7, "size": 28, "dim": 64, "depth": 4, "heads": 4}
SMALL = Spec("small", 64, _LEVELS, 0, ("timm",), "trained by this script", "vit", _SIZE, any_size=False)

PRETRAINING = {"epochs": 10, "rate": 1e-3, "batch": 128, "images": 3000, "classes": 5}
# Of each class of the small federation: to train and to test on.
IMAGES, TESTS = 300, 300


class Setting(NamedTuple):
    """The numbers of a federation and of its training."""

    clients: int
    drawn: int
    rounds: int
    epochs: int
    batch: int
    rate: float
    prompts: int = 20
    top: int = 10
    alpha: float = 0.1
    mu: float = 0.01
    every: int = 5


SETTINGS = {True: Setting(20, 10, 20, 1, 16, 3e-3), False: Setting(100, 10, 120, 5, 16, 1e-4)}


class Data(NamedTuple):
    """Images in grey levels, to train and to test on."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def in_colour(images: np.ndarray) -> np.ndarray:
    """Grey images with three channels."""
    return np.repeat(images, 3, axis=3)


def of_each_class(labels: np.ndarray, classes: int, first: int, number: int) -> np.ndarray:
    """Places of so many examples of each class, from the first so many on."""
    return np.concatenate([np.flatnonzero(labels == c)[first : first + number] for c in range(classes)])


def small_transformer(folder: Path, file: Path) -> tuple[Backbone, Any, Data]:
    """The small transformer, trained unless the file has it, and the federation's images."""
    found, tests = fashion_mnist(folder)
    network = backbone(SMALL)
    about = PRETRAINING
    seen = of_each_class(found.labels, about["classes"], 0, about["images"])
    own = of_each_class(found.labels, 10, about["images"], IMAGES)
    test = of_each_class(tests.labels, 10, 0, TESTS)
    data = Data(
        in_colour(found.images[own]),
        found.labels[own],
        in_colour(tests.images[test]),
        tests.labels[test],
    )
    if file.exists():
        with np.load(file) as stored:
            return network, trees.unflatten_dict(dict(stored), sep="/"), data
    head = finetune.random_head(64, about["classes"], key=jax.random.key(1))
    params = network.init(jax.random.key(0))
    model = finetune.network_model(network, params, head, preprocessing=_LEVELS)
    # One client with all examples: plain training.
    steps = about["epochs"] * -(-len(seen) // about["batch"])
    adam = optax.adam(optax.cosine_decay_schedule(about["rate"], steps))
    training = finetune.fedavg(model, adam, epochs=about["epochs"], batch_size=about["batch"])
    run = rounds.run(
        training,
        in_colour(found.images[seen]),
        found.labels[seen],
        np.zeros(len(seen), int),
        key=jax.random.key(2),
        rounds=1,
    )
    params, head = run.result.feature_map.params, run.result.head
    known = data.test_labels < about["classes"]
    features = features_of(network, params, data.test_images[known])
    right = float(covfree.evaluate(head, features, data.test_labels[known]))
    print(f"the transformer on its own classes: {right:.4f}", file=sys.stderr, flush=True)
    np.savez(file, **jax.device_get(trees.flatten_dict(params, sep="/")))
    return network, params, data


def published(name: str, source: str, weights: Path | None) -> tuple[Backbone, Any, Data]:
    """A backbone of the table with its weights, and a data set cropped for it."""
    network = backbone(name)
    params = network.load(weights)
    found = load_images(source)
    if found.is_test is None:
        raise SystemExit(f"--dataset: expected one with examples to test on, got {source}")
    images = np.stack([crop(found.read(i), network.spec.preprocessing) for i in range(len(found))])
    test = found.is_test
    return network, params, Data(images[~test], found.labels[~test], images[test], found.labels[test])


def features_of(network: Backbone, params: Any, images: np.ndarray) -> np.ndarray:
    """Features without prompts."""
    levels = network.spec.preprocessing
    return in_batches(jax.jit(lambda batch: network.apply(params, normalise(batch, levels))), images)


def run_seed(
    network: Backbone,
    params: Any,
    data: Data,
    features: Any,
    setting: Setting,
    seed: int,
    runs: Any,
    save: Any,
) -> None:
    """Every method on one federation; those that ``runs`` has already are left out."""
    classes = int(data.labels.max()) + 1
    clients = inner_dirichlet(data.labels, setting.clients, setting.alpha, seed=seed)
    train, test = features
    method = covfree.fedcof()
    sent = covfree.sent_bytes(method, data.labels, clients, dim=network.num_features).statistics
    head: Any = covfree.fit(method, train, data.labels, clients)
    found = 100 * float(covfree.evaluate(head, test, data.test_labels))
    runs.setdefault("FedCOF", {})[str(seed)] = [{"accuracy": found, "bytes": sent}]
    soft = covfree.with_temperature(head, covfree.calibrate_temperature(head, train, data.labels))
    keys = Keys.of(seed)
    start = finetune.random_head(network.num_features, classes, key=keys.head)
    training = Training(setting.rate, setting.epochs, setting.batch, setting.mu)

    def model(head: Any) -> finetune.Model:
        return prompted(
            network,
            params,
            head,
            prompts=setting.prompts,
            top=setting.top,
            preprocessing=network.spec.preprocessing,
            key=keys.prompts,
        )

    algorithms = {
        "FedAvg, head alone": lambda: ALGORITHMS["fedavg"](finetune.linear_model(start), training),
        "FedAvg-PT": lambda: ALGORITHMS["fedavg"](model(start), training),
        "FedProx-PT": lambda: ALGORITHMS["fedprox"](model(start), training),
        "PFPT": lambda: ALGORITHMS["pfpt"](model(start), training),
        "FedAvg-PT from FedCOF": lambda: ALGORITHMS["fedavg"](model(soft), training),
    }
    for name, make in algorithms.items():
        if str(seed) in runs.setdefault(name, {}):
            continue
        on_features = name == "FedAvg, head alone"
        held = test if on_features else data.test_images
        run = rounds.run(
            make(),
            train if on_features else data.images,
            data.labels,
            clients,
            key=keys.rounds,
            rounds=setting.rounds,
            participation=setting.drawn,
            evaluate=rounds.Evaluation(
                lambda found, held=held, on=on_features: {
                    "accuracy": 100
                    * accuracy(finetune.linear_model(found) if on else found, held, data.test_labels)
                },
                every=setting.every,
            ),
        )
        before = sent if name == "FedAvg-PT from FedCOF" else 0
        passed = before + np.cumsum([record["bytes_up"] + record["bytes_down"] for record in run.history])
        kept = ("round", "accuracy", "loss", "prompts", "seconds")
        runs[name][str(seed)] = [
            {part: record[part] for part in kept if part in record} | {"bytes": int(so_far)}
            for record, so_far in zip(run.history, passed, strict=True)
        ]
        save()
        print(f"seed {seed}, {name}: {runs[name][str(seed)][-1]}", file=sys.stderr, flush=True)
    save()


def main() -> None:
    """Run what is not there yet, print a table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--backbone", default="small", help=f"small, or of {', '.join(BACKBONES)}")
    parser.add_argument("--weights", type=Path, help="of a backbone that is not small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    for name, default in Setting._field_defaults.items():
        parser.add_argument(f"--{name}", type=type(default))
    for name in ("clients", "drawn", "rounds", "epochs", "batch", "rate"):
        parser.add_argument(f"--{name}", type=float if name == "rate" else int)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    small = arguments.backbone == "small"
    given = {name: getattr(arguments, name) for name in Setting._fields}
    setting = SETTINGS[small]._replace(**{name: x for name, x in given.items() if x is not None})
    if small:
        network, params, data = small_transformer(Path(arguments.dataset), arguments.out / "small.npz")
    else:
        network, params, data = published(arguments.backbone, arguments.dataset, arguments.weights)
    features = tuple(features_of(network, params, images) for images in (data.images, data.test_images))
    about = {"dataset": arguments.dataset, "backbone": arguments.backbone, **setting._asdict()}
    file = arguments.out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {"setting": about, "runs": {}}
    if results["setting"] != about:
        raise SystemExit(f"--out: {file} is of another setting: {results['setting']}")

    def save() -> None:
        file.write_text(json.dumps(results) + "\n")

    params = jax.tree.map(jnp.asarray, params)
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        run_seed(network, params, data, features, setting, seed, results["runs"], save)
    print(table(results["runs"]))
    save_for_pages(lambda width: plot(results["runs"], width), arguments.out / "accuracy.png")


if __name__ == "__main__":
    main()
