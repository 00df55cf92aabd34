"""Spoken digits with speakers as clients: five are trained on, the sixth, whom nobody has heard, is the test.

Run ``python experiments/speech.py recordings --out experiments/speech`` (needs ``librosa``). Features are
log-mel energies, 40 bands at 16 times, or 1,000 random ReLU features of these. They stay as they are, or are
prepared in one of the ways in `PREPARED`, for which nobody needs to know the classes of the test speaker's
recordings (each speaker says each digit equally often here: a speaker's mean over unequal classes would carry
them away). With ``--features FILE.npz`` it also writes the log-mel features, their labels and clients for
``covfree compare --dataset``; the test are the recordings 0 to 4 of each digit and speaker then.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from compared import compared, head_of_table, row
from data_sets import Data, Recording, at_times, powers, recordings

import covfree
from covfree import alignment
from covfree.core.optional import optional

BANDS, TIMES, RANDOM = 40, 16, 1000
RANK = 32  # of the subspace that speakers are aligned in, as in alignment.py
DEPTH = 80.0  # decibels below a recording's loudest that are told apart


def log_mel(recording: Recording, mel: np.ndarray) -> np.ndarray:
    """Decibels below the loudest in each band, at equal distances in time; from −2 to 2."""
    decibels = 10 * np.log10(np.maximum(mel @ powers(recording), 1e-12))
    return at_times(np.maximum(decibels - decibels.max(), -DEPTH), TIMES) / (DEPTH / 4) + 2


class Spoken(NamedTuple):
    """Features of all recordings, their digits and speakers, and the speaker who is the test."""

    features: np.ndarray
    digits: np.ndarray
    speakers: np.ndarray
    held: int


def as_they_are(spoken: Spoken) -> np.ndarray:
    """No alignment."""
    return spoken.features


def centred(spoken: Spoken) -> np.ndarray:
    """Less the mean of the speaker's features."""
    result = spoken.features.copy()
    for speaker in np.unique(spoken.speakers):
        result[spoken.speakers == speaker] -= spoken.features[spoken.speakers == speaker].mean(0)
    return result


def aligned(spoken: Spoken) -> np.ndarray:
    """Moved to the Gaussian that the training speakers share; the test speaker makes a map to it too."""
    features, held = jnp.asarray(spoken.features), spoken.speakers == spoken.held
    rows = covfree.summarise(covfree.fedncm(), features[~held], spoken.digits[~held], spoken.speakers[~held])
    basis = alignment.principal_basis(rows, RANK)
    maps = covfree.align(features[~held], spoken.speakers[~held], basis)
    own = alignment.client_gaussian(features[held], basis)
    result = spoken.features.copy()
    result[~held] = maps(features[~held], spoken.speakers[~held])
    result[held] = alignment.affine_map(own, maps.target, basis)(features[held])
    return result


def centred_and_aligned(spoken: Spoken) -> np.ndarray:
    """Less the speaker's mean in all directions, then aligned."""
    return aligned(spoken._replace(features=centred(spoken)))


PREPARED: dict[str, Callable[[Spoken], np.ndarray]] = {
    "as they are": as_they_are,
    "centred by speaker": centred,
    "aligned": aligned,
    "centred and aligned": centred_and_aligned,
}


def without(
    spoken: Spoken, mapped: bool, prepare: Callable[[Spoken], np.ndarray], seed: int
) -> tuple[Data, np.ndarray]:
    """The federation of all speakers but one, who is the test."""
    if mapped:
        features = np.asarray(covfree.relu_features(RANDOM, seed=seed)(spoken.features))
        spoken = spoken._replace(features=features)
    features, digits, test = prepare(spoken), spoken.digits, spoken.speakers == spoken.held
    data = Data(features[~test], digits[~test], features[test], digits[test])
    return data, np.unique(spoken.speakers[~test], return_inverse=True)[1]


def main() -> None:
    """Print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=Path, help="folder of digit_speaker_number.wav")
    parser.add_argument("--seeds", type=int, default=3, help="of random features and subset means")
    parser.add_argument("--features", type=Path, help=".npz file to write features to")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    spoken = list(recordings(arguments.recordings))
    mel = optional("librosa.filters", "experiments").mel(sr=spoken[0].rate, n_fft=256, n_mels=BANDS)
    features = np.array([log_mel(each, mel) for each in spoken], np.float32)
    digits = np.array([each.digit for each in spoken])
    names, speakers = np.unique([each.speaker for each in spoken], return_inverse=True)
    if arguments.features is not None:
        np.savez(
            arguments.features,
            features=features,
            labels=digits,
            clients=names[speakers],
            is_test=np.array([each.number < 5 for each in spoken]),
            class_names=[str(digit) for digit in range(10)],
        )
    kinds = {f"log-mel, {len(features[0])}": False, f"random ReLU, {RANDOM}": True}

    def federations() -> Iterator[tuple[str, Callable[[int], tuple[Data, np.ndarray]]]]:
        for kind, mapped in kinds.items():
            for way, prepare in PREPARED.items():
                for held, name in enumerate(names):
                    make = partial(without, Spoken(features, digits, speakers, held), mapped, prepare)
                    yield f"{kind}, {way}: {name}", make

    results = compared(federations(), arguments.seeds, arguments.out / "results.json")
    print(head_of_table("mean of six speakers"))
    for kind in kinds:
        for way in PREPARED:
            groups = [results[f"{kind}, {way}: {name}"] for name in names]
            # Over seeds, of the mean over speakers.
            means = [
                {method: float(np.mean([run[method] for run in runs])) for method in runs[0]}
                for runs in zip(*groups, strict=True)
            ]
            print(row(f"{kind}, {way}", means))
    print(f"\n{head_of_table('speaker left out')}")
    for name, runs in results.items():
        print(row(name, runs))


if __name__ == "__main__":
    main()
