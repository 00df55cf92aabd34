"""The picture of the idea: clients' class means, times the roots of their counts, spread as examples do.

python docs/figures/covariance_from_means.py --out docs/figures/covariance_from_means.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import covfree
from covfree.studies.plots import style as figures

CLIENTS = 100
COVARIANCE = np.array([[1.6, 0.9], [0.9, 0.8]])
WIDTH, HEIGHT = 4.2, 3.3  # of the panels, from the centre


def one_class(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Examples of one class and whose they are; each client's mean and count. Clients differ in size."""
    rng = np.random.default_rng(seed)
    counts = rng.geometric(0.04, CLIENTS) + 1
    clients = np.repeat(np.arange(CLIENTS), counts)
    examples = rng.multivariate_normal(np.zeros(2), COVARIANCE, len(clients)).astype(np.float32)
    means, counts = covfree.class_means(examples, clients, CLIENTS)  # of clients, as if they were classes
    return examples, clients, np.asarray(means), np.asarray(counts)


def ellipse(covariance: np.ndarray) -> np.ndarray:
    """Points two standard deviations from the centre, in every direction, [2, points]."""
    angle = np.linspace(0, 2 * np.pi, 200)
    return 2 * np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])


def draw(path: Path, seed: int = 0) -> np.ndarray:
    """Draw the three panels, as PNG, PDF and SVG, and give the estimated covariance."""
    examples, clients, means, counts = one_class(seed)
    estimated = np.asarray(covfree.estimate_covariance(means, counts))
    mean = counts @ means / counts.sum()
    scaled = np.sqrt(counts)[:, None] * (means - mean)
    # A small, a middling and a large client in colours, the others in grey.
    shown = np.argsort(counts)[[CLIENTS // 10, CLIENTS // 2, CLIENTS - CLIENTS // 10]]
    with figures.style():
        figure = figures.new_figure(figures.PHONE, 1.65)
        hold, send, see = figure.subplots(1, 3, sharex=True, sharey=True)
        for axes, points, size in ((hold, examples, 2), (send, means, 6), (see, scaled, 6)):
            owner = clients if axes is hold else np.arange(CLIENTS)
            axes.scatter(*points.T, s=size, color="0.75", edgecolor="none")
            for client, colour in zip(shown, (figures.GREEN, figures.PURPLE, figures.BLUE), strict=True):
                axes.scatter(*points[owner == client].T, s=size + 4, color=colour, edgecolor="none")
            (true,) = axes.plot(*ellipse(COVARIANCE), color=figures.BLACK, linestyle=(0, (4, 2)))
            axes.set(
                xlim=(-WIDTH, WIDTH), ylim=(-HEIGHT, HEIGHT), xticks=[], yticks=[], aspect="equal", anchor="S"
            )
        hold.set_title(f"{CLIENTS} clients hold\ndata, 3 in colour;")
        send.set_title("each sends its\nmean and count n;")
        see.set_title("stretched by √n,\nthey spread like data")
        (estimate,) = see.plot(*ellipse(estimated), color=figures.VERMILLION)
        true.set_label("covariance of the data")
        estimate.set_label("the server's estimate")
        figure.legend(handles=[true, estimate], loc="outside lower center", ncols=2, handlelength=1.5)
        figures.save_all(figure, path)
    return estimated


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the picture and print both covariances."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("covariance_from_means.png"))
    estimated = draw(parser.parse_args(arguments).out)
    print(f"true {COVARIANCE.tolist()}, estimated {np.round(estimated.astype(float), 2).tolist()}")


if __name__ == "__main__":
    main()
