"""The data that experiments share: digits, stored features, speech, texts; and a shift of clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.io import wavfile
from scipy.signal import stft

from covfree.data import load_digits, load_texts

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
