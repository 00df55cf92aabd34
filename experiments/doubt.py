"""Ten attacks by a fifth of the sites, three defences and four methods.

Run ``python experiments/doubt.py caltech101-efficientnet_lite0.npz clinc150 recordings``; each argument may
be missing. Federations: the digits with 20 and 100 sites, 20 sites in four domains, and the given data. For
each attack it prints the bad sites found, the honest ones left out, and the test accuracy in percent:
undefended / rows clipped / failing sites left out / both / bad sites known. Means of 3 seeds. Below it names
the attacks that win. ``--out`` keeps all runs.

Bad sites lie in their class means. The matrix that Fed3R adds is that of their true examples: clipping has
no use for it, and leaving a site out takes it away too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from data_sets import Data, digits, shifted, speech, stored, texts

import covfree
from covfree.data.partitions import dirichlet, inner_dirichlet
from covfree.studies.plots.sites import plot_sites
from covfree.studies.plots.style import save

SEEDS, BAD = 3, 0.2
METHODS = {name: covfree.methods.registry()[name].make() for name in ("fedcof", "fedcof-student", "fedncm")}
FED3R, DEFENCES = covfree.fed3r(), ("undefended", "clipped", "left out", "both", "known")
CLIP = ("clipped", "both")
# An attack wins if FedCOF, failing sites left out, is so many points below that with the bad sites known.
WINS = 1.0
Table = tuple[np.ndarray, np.ndarray, np.ndarray]


class Site(NamedTuple):
    """A bad site's examples, and what all bad sites know: C, the class that they agreed on, their draws."""

    features: np.ndarray
    labels: np.ndarray
    classes: int
    centres: np.ndarray
    rng: np.random.Generator


def table(features: np.ndarray, labels: np.ndarray) -> Table:
    """Means, counts and labels of the classes that are there."""
    known, place, count = np.unique(labels, return_inverse=True, return_counts=True)
    total = np.eye(len(known), dtype=np.float32)[:, place] @ features
    return (total / count[:, None]).astype(np.float32), count, known


def relabelled(site: Site, labels: np.ndarray) -> Table:
    """An honest summary of false labels."""
    return table(site.features, labels)


def swapped(site: Site) -> Table:
    """The site's two largest classes change places."""
    first, second = np.argsort(np.bincount(site.labels, minlength=site.classes))[-2:]
    order = np.arange(site.classes)
    order[[first, second]] = second, first
    return relabelled(site, order[site.labels])


def louder(site: Site) -> Table:
    """Means × −2.5, counts × 5."""
    mean, count, label = table(site.features, site.labels)
    return -2.5 * mean, 5 * count, label


@cache
def turn(dim: int) -> np.ndarray:
    """A random rotation."""
    return np.linalg.qr(np.random.default_rng(7).normal(size=(dim, dim)))[0].astype(np.float32)


def rotated(site: Site) -> Table:
    """Features turned: the backbone of another."""
    return table((site.features @ turn(site.features.shape[1])).astype(np.float32), site.labels)


def rescaled(site: Site) -> Table:
    """Each feature has another unit: other preprocessing."""
    unit = np.random.default_rng(8).uniform(0.3, 1.7, site.features.shape[1])
    return table((site.features * unit).astype(np.float32), site.labels)


def nudged(site: Site, share: float) -> Table:
    """Each class mean moved towards the next class."""
    mean, count, label = table(site.features, site.labels)
    step = site.centres[(label + 1) % site.classes] - site.centres[label]
    return (mean + share * step).astype(np.float32), count, label


def colluding(site: Site) -> Table:
    """All bad sites put class 0 where class 1 is, with three times the usual count."""
    mean, count, label = table(site.features, site.labels)
    at = np.flatnonzero(label == 0)
    if not len(at):
        at = np.array([len(label)])
        mean, count, label = np.r_[mean, mean[:1]], np.r_[count, 1], np.r_[label, 0]
    mean[at], count[at] = site.centres[1], max(1, 3 * int(np.median(count)))
    return mean, count, label


def huge(site: Site) -> Table:
    """Values a hundred times too large."""
    mean, count, label = table(site.features, site.labels)
    return 100 * mean, count, label


ATTACKS: dict[str, Callable[[Site], Table]] = {
    "labels shifted by one": lambda s: relabelled(s, (s.labels + 1) % s.classes),
    "two classes swapped": swapped,
    "random labels": lambda s: relabelled(s, s.rng.integers(0, s.classes, len(s.labels))),
    "means × −2.5, counts × 5": louder,
    "features rotated": rotated,
    "other preprocessing": rescaled,
    "moved 70 % to the next class": lambda s: nudged(s, 0.7),
    "moved 45 % to the next class": lambda s: nudged(s, 0.45),
    "colluders on one class": colluding,
    "huge values": huge,
}

# Those of a picture, by the sites 0, 1, ….
SHOWN = (
    "labels shifted by one",
    "two classes swapped",
    "random labels",
    "features rotated",
    "moved 70 % to the next class",
)


def domains(seed: int) -> tuple[Data, np.ndarray]:
    """The digits: 20 sites of all classes in four domains, each with a gain and a gamma of its own."""
    data, rng = digits(seed), np.random.default_rng([9, seed])
    sites = rng.integers(0, 20, len(data.labels))
    gamma, gain = rng.uniform(0.5, 2, 4), rng.uniform(0.6, 1.6, (4, 64))

    def seen(x: np.ndarray, domain: np.ndarray) -> np.ndarray:
        return (gain[domain] * np.clip(x, 0, None) ** gamma[domain][:, None]).astype(np.float32)

    test = rng.integers(0, 4, len(data.test_labels))
    return data._replace(
        features=seen(data.features, sites % 4), test_features=seen(data.test_features, test)
    ), sites


def federations(paths: list[Path], seed: int) -> Iterator[tuple[str, Data, np.ndarray]]:
    """Data and the site of each example."""
    data = digits(seed)
    for number in (20, 100):
        yield f"digits, {number}", data, inner_dirichlet(data.labels, number, 0.5, seed=seed)
    yield "digits, 4 domains, 20", *domains(seed)
    for path in paths:
        if path.suffix == ".npz":
            data = stored(path)
            yield f"{path.stem[:10]}, 100", data, inner_dirichlet(data.labels, 100, 0.5, seed=seed)
        elif (path / "data_full.json").exists():
            data = texts(path)
            yield "texts, 50", data, inner_dirichlet(data.labels, 50, 0.5, seed=seed)
        else:
            data = speech(path)
            assert data.clients is not None
            yield "speech, 6 speakers", data, data.clients


def accuracy(method: Any, message: covfree.Message, data: Data, classes: int) -> float:
    """Test accuracy in %; 0 of no finite head."""
    try:
        head: Any = covfree.solve_message(method, message, num_classes=classes)
    except ValueError:
        return 0.0
    return 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))


def heads(
    rows: covfree.Rows, sites: np.ndarray, out: Mapping[str, Collection[Any]], data: Data, classes: int
) -> Iterator[tuple[str, float]]:
    """Accuracy by method and defence; ``out`` has the sites that a defence leaves out."""
    for defence in DEFENCES:
        gone = list(out.get(defence, ()))
        count = np.where(np.isin(np.asarray(rows.client), gone), 0, rows.count).astype(np.float32)
        kept = replace(rows, count=count)
        if defence in CLIP:
            kept = covfree.clip_sites(kept, num_classes=classes)
        for name, method in METHODS.items():
            yield f"{name}, {defence}", accuracy(method, covfree.Message(kept), data, classes)
        if defence not in CLIP:
            true = data.features[(sites >= 0) & ~np.isin(sites, gone)].astype(np.float64)
            message = covfree.Message(kept, (true.T @ true).astype(np.float32))
            yield f"fed3r, {defence}", accuracy(FED3R, message, data, classes)


def rows_of(data: Data, sites: np.ndarray, attacks: Mapping[int, str], rng: Any) -> covfree.Rows:
    """The rows of all sites, of which some attack, each in its way."""
    classes, parts = int(data.labels.max()) + 1, []
    centres = np.stack([data.features[data.labels == c].mean(0) for c in range(classes)])
    for k in np.unique(sites[sites >= 0]).tolist():
        own = Site(data.features[sites == k], data.labels[sites == k], classes, centres, rng)
        made = ATTACKS[attacks[k]](own) if k in attacks else table(own.features, own.labels)
        parts.append((*made, np.full(len(made[1]), k, np.int32)))
    mean, count, label, site = (np.concatenate(column) for column in zip(*parts, strict=True))
    return covfree.Rows(mean.astype(np.float32), count.astype(np.float32), label.astype(np.int32), site)


def measured(data: Data, sites: np.ndarray, attack: str | None, seed: int, solve: bool) -> dict[str, Any]:
    """One attack on one federation."""
    rng, classes = np.random.default_rng([3, seed]), int(data.labels.max()) + 1
    names = np.unique(sites[sites >= 0])
    bad = set(rng.permutation(names)[: round(BAD * len(names))].tolist()) if attack else set[int]()
    rows = rows_of(data, sites, dict.fromkeys(bad, attack or ""), rng)
    failed = covfree.diagnose_sites(rows, num_classes=classes).failed
    found: dict[str, Any] = {
        "bad": len(bad),
        "found": len(bad & set(failed)),
        "honest": len(names) - len(bad),
        "false": len(set(failed) - bad),
        "reasons": {str(k): text for k, text in failed.items()},
    }
    if solve:
        found |= heads(
            rows, sites, {"left out": set(failed), "both": set(failed), "known": bad}, data, classes
        )
    return found


def honest() -> None:
    """Print how many sites of honest federations of the digits are left out."""
    false = total = 0
    for seed in range(10, 16):
        data = digits(seed)
        cases = [
            (data, law(data.labels, number, alpha, seed=seed))
            for number in (5, 6, 10, 20, 50, 100, 300)
            for alpha in (0.05, 0.3, 100)
            for law in (inner_dirichlet, dirichlet)
        ]
        owners = np.random.default_rng(seed).integers(0, 8, len(data.labels))
        for each, sites in [*cases, domains(seed), (shifted(data, owners, seed), owners)]:
            run = measured(each, sites, None, seed, False)
            false, total = false + run["false"], total + run["honest"]
    print(f"{false} of {total} honest sites left out")


def show(runs: list[dict[str, Any]]) -> None:
    """Print the table, and the attacks that win."""
    titles = [] if "fedcof, known" not in runs[0] else [*METHODS, "fed3r"]
    print(" | ".join(["| federation | attack | found | honest left out", *titles]) + " |")
    print("|---" * (4 + len(titles)) + "|")
    won = list[str]()
    for name in dict.fromkeys(run["federation"] for run in runs):
        for attack in ("none", *ATTACKS):
            own = [run for run in runs if run["federation"] == name and run["attack"] == attack]
            sums = {key: sum(run[key] for run in own) for key in ("bad", "found", "honest", "false")}
            mean = {key: float(np.mean([run[key] for run in own])) for key in own[0] if ", " in key}
            cells = [f"{sums['found']}/{sums['bad']}", f"{sums['false']}/{sums['honest']}"]
            for title in titles:
                figures = (mean.get(f"{title}, {defence}") for defence in DEFENCES)
                cells.append(" / ".join("–" if each is None else f"{each:.1f}" for each in figures))
            print(" | ".join([f"| {name} | {attack}", *cells]) + " |")
            if titles and (lost := mean["fedcof, known"] - mean["fedcof, left out"]) > WINS:
                won.append(f"- {name}: {attack}, {lost:.1f} points")
    if titles:
        print("\nAttacks that win:\n\n" + "\n".join(won or ["none"]))


def draw(path: Path) -> None:
    """Draw the digits' 20 sites, of which the first ones attack, each in its own way."""
    data = digits(0)
    sites = inner_dirichlet(data.labels, 20, 0.5, seed=0)
    rows = rows_of(data, sites, dict(enumerate(SHOWN)), np.random.default_rng(3))
    save(plot_sites(covfree.diagnose_sites(rows, num_classes=10)), path)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="*", help="a file of features, CLINC150, recordings")
    parser.add_argument("--out", type=Path, help="a JSON file for all runs")
    parser.add_argument(
        "--picture", type=Path, help="only a picture of the digits' sites, some of which attack"
    )
    parser.add_argument("--no-heads", action="store_true", help="only who is found")
    parser.add_argument("--honest", action="store_true", help="only honest federations of the digits, many")
    chosen = parser.parse_args()
    if chosen.honest:
        return honest()
    if chosen.picture:
        return draw(chosen.picture)
    covfree.limit_lapack_threads()
    runs = list[dict[str, Any]]()
    for seed in range(SEEDS):
        for name, data, sites in federations(chosen.data, seed):
            for attack in (None, *ATTACKS):
                run = measured(data, sites, attack, seed, not chosen.no_heads)
                runs.append({"federation": name, "attack": attack or "none", "seed": seed, **run})
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n")
    show(runs)


if __name__ == "__main__":
    main()
