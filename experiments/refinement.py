"""Refinement beside other ways from class means to the exact head: accuracy by rounds and by bytes.

Run ``python experiments/refinement.py [--features FILE.npz] [--speech FOLDER] [--out FOLDER]``. Federations
are the digits, and the files given, over 10, 30 and 100 clients, with and without a shift of each client's
features; of speech also the speakers. Ways are FedCOF and its refinement, variance components, residual
sketches, Fed3R, the exact covariance, and FedAvg and FedAdam from FedCOF's head: all clients in each round,
the better of two rates *on the test examples*, in their favour. Bytes are those of all clients.
"""

from __future__ import annotations

import argparse
import json
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import covfree
from covfree import finetune, rounds
from covfree.data import load_digits
from covfree.federation import inner_dirichlet

ROUNDS = 4
RATES = {"FedAvg": (0.1, 0.3), "FedAdam": (0.003, 0.01)}
SHIFT = 0.5  # in deviations of all features


class Data(NamedTuple):
    """Examples to train and to test on; clients if the data has its own."""

    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    clients: np.ndarray | None = None


def digits(seed: int) -> Data:
    """Pixels of the digits."""
    data = load_digits(seed=seed)
    return Data(data.train_features, data.train_labels, data.test_features, data.test_labels)


def stored(path: Path) -> Data:
    """Features of a file with ``is_test``."""
    with np.load(path) as file:
        features, labels, test = file["features"].astype(np.float32), file["labels"], file["is_test"] > 0
    return Data(features[~test], labels[~test], features[test], labels[test])


def speech(folder: Path) -> Data:
    """Log energies of ``digit_speaker_index.wav`` in 24 bands at 16 times; indices below 5 are for tests."""
    from scipy.signal import stft

    features, digit, speaker, test = [], [], [], []
    for path in sorted(folder.glob("*.wav")):
        said, who, index = path.stem.split("_")
        with wave.open(str(path)) as file:
            sound = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 2**15
        power = np.abs(stft(sound, file.getframerate(), nperseg=256, noverlap=128)[2]) ** 2
        bands = np.stack([band.mean(0) for band in np.array_split(np.log(power + 1e-8), 24)])
        times = np.linspace(0, bands.shape[1] - 1, 16)
        features.append(np.concatenate([np.interp(times, np.arange(len(band)), band) for band in bands]))
        digit.append(int(said))
        speaker.append(who)
        test.append(int(index) < 5)
    x, y, held = np.array(features, np.float32), np.array(digit), np.array(test)
    owners = np.unique(speaker, return_inverse=True)[1]
    return Data(x[~held], y[~held], x[held], y[held], owners[~held])


def texts(folder: Path) -> Data:
    """Sentences and intents of CLINC150: 300 leading directions of the frequencies of words and pairs."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    parts = json.loads((folder / "data_full.json").read_text())
    (train, intents), (test, others) = (zip(*parts[name], strict=True) for name in ("train", "test"))
    words = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
    leading = TruncatedSVD(300, random_state=0)
    features = leading.fit_transform(words.fit_transform(train))
    names, labels = np.unique(intents, return_inverse=True)
    held = leading.transform(words.transform(test))
    return Data(features.astype(np.float32), labels, held.astype(np.float32), np.searchsorted(names, others))


def shifted(data: Data, clients: np.ndarray, seed: int) -> Data:
    """With the features of each client moved by a vector of its own; test examples are at random clients."""
    rng = np.random.default_rng([2, seed])
    offsets = SHIFT * data.features.std() * rng.normal(size=(int(clients.max()) + 1, data.features.shape[1]))
    visited = rng.integers(0, len(offsets), len(data.test_labels))
    moved = (data.features + offsets[clients], data.test_features + offsets[visited])
    return data._replace(features=moved[0].astype(np.float32), test_features=moved[1].astype(np.float32))


def federations(arguments: argparse.Namespace, seed: int) -> Iterator[tuple[str, Data, np.ndarray]]:
    """Names, examples and their clients."""
    sets = {"digits": digits(seed)}
    if arguments.features is not None:
        sets[arguments.features.stem] = stored(arguments.features)
    if arguments.speech is not None:
        sets["speech"] = speech(arguments.speech)
    for name, data in sets.items():
        # Of so many compiled functions a process has no room for all.
        jax.clear_caches()
        for number in (10, 30, 100):
            for alpha, moved in ((0.1, False), (0.5, True), (0.1, True)):
                clients = inner_dirichlet(data.labels, number, alpha, seed=seed)
                title = f"{name}, {number} clients, α = {alpha}{', shift' * moved}"
                yield title, shifted(data, clients, seed) if moved else data, clients
        if data.clients is not None and seed == 0:
            yield f"{name}, its own clients", data, data.clients


def measured(
    data: Data, clients: np.ndarray, seed: int, training: int
) -> dict[str, list[tuple[int, int, float]]]:
    """Of each way its points: rounds, bytes both ways, accuracy in %."""
    train, dim, key = (data.features, data.labels, clients), data.features.shape[1], jax.random.key(seed)
    found: dict[str, list[tuple[int, int, float]]] = {}

    def accuracy(head: Any) -> float:
        return 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))

    def point(method: Any, number: int) -> tuple[int, int, float]:
        up = covfree.sent_bytes(method, data.labels, clients, dim=dim).total
        down = covfree.received_bytes(method, data.labels, clients, dim=dim)
        return number, up + down, accuracy(covfree.fit(method, *train, key=key))

    fedcof = covfree.fedcof()
    found["FedCOF"] = [point(fedcof, 1)]
    found["refined"] = found["FedCOF"] + [
        point(covfree.refined(fedcof, number), 1 + number) for number in range(1, ROUNDS + 1)
    ]
    found["components"] = [point(covfree.fedcof_components(), 1)]
    found["sketches"] = [point(covfree.fedcof_sketches(number), 1) for number in (1, 8)]
    found["Fed3R"] = [point(covfree.fed3r(), 1)]
    found["exact covariance"] = [point(covfree.fedcof_oracle(), 1)]
    if not training:
        return found
    head: Any = covfree.fit(fedcof, *train)
    head = covfree.with_temperature(head, covfree.calibrate_temperature(head, *train[:2]))
    for name, make in (("FedAvg", finetune.fedavg), ("FedAdam", finetune.fedadam)):
        runs = []
        for rate in RATES[name]:
            options: Any = {"client": rate} if name == "FedAvg" else {"client": 0.1, "server_lr": rate}
            run = rounds.run(
                make(finetune.linear_model(head), **options),
                *train,
                key=key,
                rounds=training,
                evaluate=lambda head: {"accuracy": accuracy(head)},
            )
            sent = found["FedCOF"][0][1] + np.cumsum([r["bytes_up"] + r["bytes_down"] for r in run.history])
            runs.append(
                [(2 + r["round"], int(b), r["accuracy"]) for r, b in zip(run.history, sent, strict=True)]
            )
        found[name] = found["FedCOF"] + max(runs, key=lambda points: max(p[2] for p in points))
    return found


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Mean accuracies in Markdown."""
    ways = [
        ("FedCOF", "FedCOF", 0),
        *((f"+{number} round{'s' * (number > 1)}", "refined", number) for number in (1, 2, 3)),
        ("exact", "exact covariance", 0),
        ("Fed3R", "Fed3R", 0),
        ("components", "components", 0),
        ("8 sketches", "sketches", 1),
        ("FedAvg", "FedAvg", -1),
        ("FedAdam", "FedAdam", -1),
    ]
    ways = [way for way in ways if way[1] in next(iter(results.values()))[0]]
    lines = [f"| | {' | '.join(title for title, *_ in ways)} |", "|---" * (len(ways) + 1) + "|"]
    for name, runs in results.items():
        cells = [f"{np.mean([run[way][index][2] for run in runs]):.1f}" for _, way, index in ways]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all federations, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, help=".npz file with features, labels and is_test")
    parser.add_argument("--speech", type=Path, help="folder of recordings digit_speaker_index.wav")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--training", type=int, default=20, help="rounds of FedAvg and FedAdam; 0 for none")
    parser.add_argument("--out", type=Path, help="folder for results.json")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in range(arguments.seeds):
        for name, data, clients in federations(arguments, seed):
            results.setdefault(name, []).append(measured(data, clients, seed, arguments.training))
            print(
                seed,
                name,
                {way: round(points[-1][2], 2) for way, points in results[name][-1].items()},
                flush=True,
            )
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / "results.json").write_text(json.dumps(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
