"""What experiments share: data sets, how they are spread over clients, and what was measured of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.io import wavfile
from scipy.signal import stft

from covfree.data import load_digits, load_texts
from covfree.data.partitions import inner_dirichlet

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
    train, test = np.asarray(data.train_features), np.asarray(data.test_features)
    return Data(train, data.train_labels, test, data.test_labels)


def stored(path: Path) -> Data:
    """Features of a file with ``is_test``."""
    with np.load(path) as file:
        if missing := {"features", "labels", "is_test"}.difference(file):
            raise ValueError(f"{path}: expected features, labels and is_test, got no {' and '.join(missing)}")
        features, labels, test = file["features"].astype(np.float32), file["labels"], file["is_test"] > 0
    return Data(features[~test], labels[~test], features[test], labels[test])


class Recording(NamedTuple):
    """A spoken digit: samples from −1 to 1, their rate, and what the name of its file says."""

    sound: np.ndarray
    rate: int
    digit: int
    speaker: str
    number: int


def recordings(folder: Path) -> Iterator[Recording]:
    """Files ``digit_speaker_number.wav`` of 16 bits, in the order of their names."""
    for path in sorted(folder.glob("*.wav")):
        digit, speaker, number = path.stem.split("_")
        rate, sound = wavfile.read(path)
        yield Recording(sound / 2**15, rate, int(digit), speaker, int(number))


def at_times(bands: np.ndarray, number: int) -> np.ndarray:
    """``[bands, times]`` at so many times from the first to the last, flat, band by band."""
    times = np.linspace(0, bands.shape[1] - 1, number)
    return np.concatenate([np.interp(times, np.arange(len(band)), band) for band in bands])


def powers(recording: Recording) -> np.ndarray:
    """``[frequencies, times]``: windows of 256 samples, every 128."""
    return np.abs(stft(recording.sound, recording.rate, nperseg=256, noverlap=128)[2]) ** 2


def speech(folder: Path) -> Data:
    """Log energies of recordings in 24 bands at 16 times; indices below 5 are for tests."""
    spoken = list(recordings(folder))
    bands = [
        np.stack([band.mean(0) for band in np.array_split(np.log(powers(each) + 1e-8), 24)])
        for each in spoken
    ]
    x, y = np.array([at_times(each, 16) for each in bands], np.float32), np.array([r.digit for r in spoken])
    held = np.array([each.number < 5 for each in spoken])
    owners = np.unique([each.speaker for each in spoken], return_inverse=True)[1]
    return Data(x[~held], y[~held], x[held], y[held], owners[~held])


def texts(folder: Path) -> Data:
    """Sentences and intents of CLINC150: 300 leading directions of the frequencies of words and pairs."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    read = load_texts(folder / "data_full.json")
    test = read.is_test if read.is_test is not None else np.zeros(len(read), bool)
    sentences = np.array(read.texts, object)
    words = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
    leading = TruncatedSVD(300, random_state=0)
    features = leading.fit_transform(words.fit_transform(sentences[~test]))
    held = leading.transform(words.transform(sentences[test]))
    return Data(features.astype(np.float32), read.labels[~test], held.astype(np.float32), read.labels[test])


def shifted(data: Data, clients: np.ndarray, seed: int) -> Data:
    """With the features of each client moved by a vector of its own; test examples are at random clients."""
    rng = np.random.default_rng([2, seed])
    offsets = SHIFT * data.features.std() * rng.normal(size=(int(clients.max()) + 1, data.features.shape[1]))
    visited = rng.integers(0, len(offsets), len(data.test_labels))
    moved = (data.features + offsets[clients], data.test_features + offsets[visited])
    return data._replace(features=moved[0].astype(np.float32), test_features=moved[1].astype(np.float32))


class Federation(NamedTuple):
    """How a data set is spread: over so many clients by Dirichlet's law, or as its own clients are (None)."""

    number: int | None
    alpha: float = 0.1
    moved: bool = False

    @property
    def title(self) -> str:
        """What tables call it."""
        if self.number is None:
            return "its own clients"
        return f"{self.number} clients, α = {self.alpha}{', shift' * self.moved}"

    def spread(self, data: Data, seed: int) -> tuple[Data, np.ndarray]:
        """Examples, and the client of each to train on."""
        if self.number is None:
            assert data.clients is not None
            return data, data.clients
        clients = inner_dirichlet(data.labels, self.number, self.alpha, seed=seed)
        return (shifted(data, clients, seed) if self.moved else data), clients


def options(description: str | None, seeds: int | None = None) -> argparse.ArgumentParser:
    """A parser of what `datasets` reads and, with a number of seeds, of what `kept_runs` does."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--features", type=Path, help=".npz file with features, labels and is_test")
    parser.add_argument("--speech", type=Path, help="folder of recordings digit_speaker_index.wav")
    parser.add_argument("--texts", type=Path, help="folder with data_full.json of CLINC150")
    parser.add_argument("--sentences", type=Path, help="the same through all-MiniLM-L6-v2: covfree extract's")
    parser.add_argument("--only", default="", help="part of the name of the federations to run")
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds)
    return parser


def datasets(arguments: argparse.Namespace) -> dict[str, Callable[[int], Data]]:
    """Each data set, given a seed of its split."""
    found: dict[str, Callable[[int], Data]] = {"digits": digits}
    if arguments.features is not None:
        found["Caltech-101"] = cache(lambda seed: stored(arguments.features))
    if arguments.speech is not None:
        found["speech"] = cache(lambda seed: speech(arguments.speech))
    if arguments.texts is not None:
        found["texts"] = cache(lambda seed: texts(arguments.texts))
    if arguments.sentences is not None:
        found["sentences"] = cache(lambda seed: stored(arguments.sentences))
    return found


def kept_runs(
    arguments: argparse.Namespace,
    federations: Sequence[Federation],
    measure: Callable[[Data, np.ndarray, int], Any],
    file: Path,
) -> dict[str, list[Any]]:
    """Measure what a JSON file lacks, from data, clients and seed, and write it there as it goes.

    Clients that a data set brings along are a federation of one seed.
    """
    results = json.loads(file.read_text()) if file.exists() else {}
    for name, load in datasets(arguments).items():
        own = [Federation(None)] if load(0).clients is not None else []
        for federation in (*federations, *own):
            title = f"{name}, {federation.title}"
            if arguments.only not in title:
                continue
            runs = results.setdefault(title, [])
            for seed in range(len(runs), arguments.seeds if federation.number else 1):
                runs.append(measure(*federation.spread(load(seed), seed), seed))
                file.write_text(json.dumps(results) + "\n")
                print(f"{title}, seed {seed}", file=sys.stderr, flush=True)
            # Of so many compiled functions a process has no room for all.
            jax.clear_caches()
    return {name: runs for name, runs in results.items() if runs}


def markdown(titles: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table with a name before each row."""
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in rows.items())])


def gains(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """In Markdown: a figure's mean over seeds; what the others gain on it, with the least; means of all."""
    rows, means = {}, []
    for name, runs in results.items():
        figures = np.array([list(run.values()) for run in runs])
        gain = figures[:, 1:] - figures[:, :1]
        means.append(gain.mean(0))
        cells = [f"{m:+.1f} ({low:+.1f})" for m, low in zip(gain.mean(0), gain.min(0), strict=True)]
        rows[name] = [f"{figures[:, 0].mean():.1f}", *cells]
    rows["mean"] = ["", *(f"{each:+.2f}" for each in np.mean(means, 0))]
    # Signs as they are set in text; what is rounded to 0 has none.
    table = markdown(list(next(iter(results.values()))[0]), rows)
    return re.sub(r"[+-](0\.0\b)", r"\1", table).replace("| -", "| −").replace("(-", "(−")
