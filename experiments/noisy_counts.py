"""The counts of one client, and what it sends of them under noise (FedCOF, Figure 7).

Run ``python experiments/noisy_counts.py --dataset digits --epsilon 0.1 --out FOLDER``. The client is the one
with most classes. Bars are its counts n; dots and lines are the mean and the standard deviation of
ñ = max(n + σ, 0) over seeds of the noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.data import load
from covfree.statistics.transforms import count_noise
from covfree.studies import Federation
from covfree.studies.plots import style as figures

LAWS = ("uniform", "laplace")


def client_counts(labels: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return the counts of each class, ``[classes]``, of the client with most classes."""
    counts = np.zeros((clients.max() + 1, labels.max() + 1), np.int32)
    kept = clients >= 0
    np.add.at(counts, (clients[kept], labels[kept]), 1)
    return counts[(counts > 0).sum(1).argmax()]


def sent(counts: np.ndarray, law: str, epsilon: float, seeds: int) -> np.ndarray:
    """Return the noisy counts, ``[seeds, classes]``."""
    rows = covfree.Rows(jnp.zeros((len(counts), 1)), jnp.asarray(counts), jnp.arange(len(counts)))
    noise = count_noise(law, epsilon)  # pyright: ignore[reportArgumentType]
    return np.stack([noise(rows, key=jax.random.key(seed)).count for seed in range(seeds)])


def draw(counts: np.ndarray, epsilon: float, seeds: int, name: str) -> Any:
    """Draw a panel for each law, with classes in the order of their counts."""
    order = np.argsort(-counts, kind="stable")[: (counts > 0).sum()]
    places = np.arange(len(order))
    figure = figures.new_figure(figures.PAGE, 2.4)
    figures.set_title(figure, f"{name}: {len(order)} classes of a client, ε = {epsilon:g}, {seeds} seeds")
    for axes, law in zip(figure.subplots(1, len(LAWS), sharey=True), LAWS, strict=True):
        noisy = sent(counts, law, epsilon, seeds)[:, order]
        axes.bar(places, counts[order], color=figures.SKY, label="counts")
        axes.errorbar(
            *(places, noisy.mean(0), noisy.std(0)),
            fmt="o", markersize=3, linewidth=0.8, color=figures.VERMILLION, label="sent",
        )  # fmt: skip
        axes.set_title(f"{law.capitalize()} noise", loc="left")
        axes.set_xlabel("classes, by their counts")
        axes.set_xticks([])
        axes.set_ylim(bottom=0)
    figure.axes[0].set_ylabel("examples")
    figure.axes[0].legend()
    return figure


def main() -> None:
    """Draw the picture into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--epsilon", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = load(options.dataset, seed=0)
    clients = Federation(options.clients, "inner_dirichlet", options.alpha).assign(data, 0)
    counts = client_counts(np.asarray(data.train_labels), np.asarray(clients))
    options.out.mkdir(parents=True, exist_ok=True)
    with figures.style():
        picture = draw(counts, options.epsilon, options.seeds, data.name)
        figures.save_all(picture, options.out / "noisy_counts")


if __name__ == "__main__":
    main()
