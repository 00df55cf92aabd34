"""Attack a federation's uploads, single and summed, with and without noise, and report what is found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Integer

import covfree.privacy.attacks as attacks
from covfree.core.checks import check, check_integer, check_positive
from covfree.core.sums import add_by_group
from covfree.core.types import AnyArray
from covfree.methods import fedncm
from covfree.privacy.accounting import Noise
from covfree.privacy.discrete import RandomBytes
from covfree.privacy.mechanism import private
from covfree.privacy.uploads import Grid

# In re-identification, the attacker chooses among this many candidates, exactly one of whom is in the sum. An
# attack on a sum scores at most this many members, and as many non-members.
_CANDIDATES = 10
# The attacker adds this share of the covariance's mean eigenvalue to its diagonal, to make it invertible.
_LOADING = 0.01
# If fewer members or fewer non-members than this are scored, the table leaves out the attack's success.
_FEWEST = 20
# An attack uses at most this many sums, each of one class of one sender.
_MOST_SUMS = 300


class Finding(NamedTuple):
    """What attacks find in one kind of upload.

    Attributes:
        name: the kind of upload that the attacker sees.
        auc: area under the ROC curve of the membership attack, which scores how likely an example is in a
            sum; 0.5 is chance. Examples that are in the sum are members.
        found: share of the members found at 1 % false positives.
        single: share of the sums that consist of one example, and so reveal it; NaN with noise.
        named: share of the sums for which the most likely of 10 candidates, one of them a member, is the
            member; chance is 0.1. NaN if no class has so many candidates.
        presence: AUC of inferring from a count whether a sender (a client, a group or all clients together)
            has a class; NaN if each has all classes.
        difference: relative error with which the attacker computes one client's sums, by subtracting the
            sums over all other clients from the sums over all clients; NaN unless these are seen.
        sums: number of class sums attacked. All scores from one sum share its noise, so the AUC from few sums
            depends on the draw of the noise.
        members: scores of members, for plots.
        others: scores of non-members.
    """

    name: str
    auc: float
    found: float
    single: float
    named: float
    presence: float
    difference: float
    sums: int
    members: Float[np.ndarray, " members"]
    others: Float[np.ndarray, " others"]


@dataclass(frozen=True)
class Audit:
    """How much attacks on a federation's uploads reveal about its examples; ``str`` makes a Markdown table.

    Attributes:
        findings: for each kind of upload that an attacker may see, the attacks' success.
        epsilon: ε of the uploads with noise.
        delta: δ of the uploads with noise.
    """

    findings: tuple[Finding, ...]
    epsilon: float
    delta: float

    def __str__(self) -> str:
        lines = [
            "| What is seen | sums; members, others | membership AUC | found at 1 % false positives"
            " | of one example | named among 10 | class present, AUC | a client by difference |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for each in self.findings:
            difference = "–" if np.isnan(each.difference) else f"error {100 * each.difference:.3g} %"
            presence = "–" if np.isnan(each.presence) else f"{each.presence:.2f}"
            single, named = (
                "–" if np.isnan(share) else f"{100 * share:.0f} %" for share in (each.single, each.named)
            )
            tried = len(each.members), len(each.others)
            few, shares = "too few | too few", f"{each.auc:.3f} | {100 * each.found:.1f} %"
            lines.append(
                f"| {each.name} | {each.sums:,}; {tried[0]:,}, {tried[1]:,} "
                f"| {few if min(tried) < _FEWEST else shares} | {single} "
                f"| {named} | {presence} | {difference} |"
            )
        return "\n".join(lines)


class _World(NamedTuple):
    """The data of an attack.

    Attributes:
        features: [members, dim] of the members, which are the federation's examples.
        labels: the members' classes.
        owners: the members' clients.
        outside: [non-members, dim] features of non-members.
        outside_labels: the non-members' classes.
        centres: [classes, dim] the mean of each class, which the attacker knows.
        covariance: the covariance within classes, which the attacker knows.
    """

    features: np.ndarray
    labels: np.ndarray
    owners: np.ndarray
    outside: np.ndarray
    outside_labels: np.ndarray
    centres: np.ndarray
    covariance: np.ndarray


def audit(
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
    *,
    epsilon: float,
    delta: float,
    clip: float,
    group: int = 10,
    seed: int = 0,
    random_bytes: RandomBytes = os.urandom,
) -> Audit:
    """Report what attacks find in the class sums of single clients, of groups of clients, and of all clients.

    The sums of single clients and of all clients are attacked without noise and with noise that hides one
    example (`covfree.privacy.private` of FedNCM): local noise for single clients, central noise for all.
    One third of the examples is the federation (the members), and one third stays out of it (the
    non-members). From the last third the attacker knows each class's mean and the covariance within classes:
    more than most attackers know.

    Args:
        features: [examples, dim].
        labels: their classes; below 0 is padding.
        clients: the client of each example; below 0 is padding.
        epsilon: ε of the noisy uploads.
        delta: δ of the noisy uploads.
        clip: bound on the features' norm.
        group: the number of clients in a group; groups are attacked only if there are more clients than that.
        seed: the seed of the split and of the groups.
        random_bytes: source of the noise.

    Raises:
        ValueError: if there are too few examples, or only one client, whose sums are the sum of all.

    Source: docs/privacy.md.
    """
    check(features, labels, clients)
    check_positive("group", group)
    check_integer("seed", seed, 0)
    world = _split(np.asarray(features, np.float64), np.asarray(labels), np.asarray(clients), seed)
    rng = np.random.default_rng(seed)
    senders = np.unique(world.owners)
    if len(senders) < 2:
        raise ValueError("clients: expected at least 2 with examples, got 1, whose sums are the sum of all")
    places = np.searchsorted(senders, world.owners)
    groups = rng.permutation(len(senders)) // group
    each, everyone = np.arange(len(senders)), np.zeros(len(senders), int)
    findings = []
    kinds: tuple[tuple[str, Noise | None, np.ndarray], ...] = (
        ("each client's sums", None, each),
        (f"sums of groups of {group} clients", None, groups),
        ("the sum of all clients", None, everyone),
        ("each client's sums, local noise", "local", each),
        ("the sum of all, central noise", "central", everyone),
    )
    for name, noise, sender in kinds:
        if sender is groups and group >= len(senders):
            continue
        made = private(fedncm(), epsilon=epsilon, delta=delta, clip=clip, noise=noise or "central")
        grid, draws = made.grids[0]["sums"], random_bytes if noise else None
        seen = _seen(grid, world, sender[places], draws)
        difference = _difference(grid, world, places, draws) if sender is everyone else float("nan")
        findings.append(_attacked(name, seen, world, difference, rng))
    return Audit(tuple(findings), epsilon, delta)


class _Seen(NamedTuple):
    """What the attacker observes in one kind of upload.

    Attributes:
        sums: [senders, classes, dim] class sums, with the noise, if any. A sender is a client, a group, or
            all clients together.
        counts: [senders, classes] the number of examples in each sum, also with the noise.
        sender: [members] for each member, an example, the index of the sender whose sums include it.
        deviation: the standard deviation of the noise in each entry of the sums; 0 without noise.
    """

    sums: np.ndarray
    counts: np.ndarray
    sender: np.ndarray
    deviation: float


def _split(features: np.ndarray, labels: np.ndarray, clients: np.ndarray, seed: int) -> _World:
    kept = np.flatnonzero((labels >= 0) & (clients >= 0))
    part = np.random.default_rng(seed).permutation(len(kept)) % 3
    inside, outside, known = (kept[part == number] for number in range(3))
    number = int(labels[kept].max(initial=-1)) + 1
    counts = np.bincount(labels[known], minlength=number)
    if not len(inside) or len(known) <= number:
        raise ValueError(
            f"features: expected more than {3 * number} examples of {number} classes, got {len(kept)}"
        )
    centres = add_by_group(features[known], labels[known], number) / np.maximum(counts, 1)[:, None]
    residual = features[known] - centres[labels[known]]
    covariance = residual.T @ residual / max(len(known) - (counts > 0).sum(), 1)
    covariance += _LOADING * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return _World(
        features[inside],
        labels[inside],
        clients[inside],
        features[outside],
        labels[outside],
        centres,
        covariance,
    )


def _seen(grid: Grid, world: _World, sender: np.ndarray, draws: RandomBytes | None) -> _Seen:
    """Sum each sender's features by class, and add noise from ``draws``, unless it is None."""
    many, number = int(sender.max(initial=0)) + 1, len(world.centres)
    # Treat each sender's classes as separate classes, so that one call sums for all senders.
    upload = grid.upload(world.features, sender * number + world.labels, many * number)
    deviation = 0.0
    if draws is not None:
        upload, deviation = grid.noised(upload, 1, draws), grid.deviation(1) * grid.clip
    values = upload.values.reshape(many, number, -1)
    sums = values[..., :-2] * grid.step * grid.clip
    return _Seen(sums, values[..., -2] * grid.count_step, sender, deviation)


_scores = jax.jit(attacks.membership_scores)


def _attacked(name: str, seen: _Seen, world: _World, difference: float, rng: np.random.Generator) -> Finding:
    pairs, sizes = np.unique(np.c_[seen.sender, world.labels], axis=0, return_counts=True)
    scores = list(_scored(pairs, seen, world, rng))
    if not scores:
        raise ValueError("labels: expected classes with examples in two of the three parts, got none")
    rivals = _CANDIDATES - 1
    named = [own[0] > others[:rivals].max() for own, others in scores if len(others) >= rivals]
    inside, outside = (np.concatenate(part) for part in zip(*scores, strict=True))
    held = np.zeros(seen.counts.shape, bool)
    held[tuple(pairs.T)] = True
    presence = float("nan") if held.all() else float(attacks.auc(seen.counts[held], seen.counts[~held]))
    return Finding(
        name,
        float(attacks.auc(inside, outside)),
        float(attacks.found_at(inside, outside)),
        float("nan") if seen.deviation else float((sizes == 1).mean()),
        float(np.mean(named)) if named else float("nan"),
        presence,
        difference,
        len(scores),
        inside,
        outside,
    )


def _scored(
    pairs: np.ndarray, seen: _Seen, world: _World, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Attack up to 300 class sums, of random ``pairs`` of sender and class; yield two score arrays for each.

    The first has the scores of members, at most 10 examples in the sum. The second has the scores of
    non-members, at most 10 examples of the same class that are in no sum. The higher an example's score, the
    more likely the attacker thinks that it is a member.
    """
    dim = len(world.covariance)
    scale = np.sqrt(np.trace(world.covariance) / dim) or 1.0
    spread = world.covariance / scale**2
    for sender, label in rng.permutation(pairs)[:_MOST_SUMS]:
        own = np.flatnonzero((seen.sender == sender) & (world.labels == label))
        strangers = np.flatnonzero(world.outside_labels == label)
        if not len(strangers):
            continue
        own, strangers = rng.permutation(own)[:_CANDIDATES], rng.permutation(strangers)[:_CANDIDATES]
        # Pad to one size, so that the function is compiled only once.
        shown = np.concatenate([world.features[own], world.outside[strangers]]) - world.centres[label]
        padded = np.pad(shown, [(0, 2 * _CANDIDATES - len(shown)), (0, 0)])
        count = max(float(seen.counts[sender, label]), 1.0)
        total = seen.sums[sender, label] - count * world.centres[label]
        # Centre and scale before converting to float32: a mean far from 0 would leave few bits for the rest.
        given = padded / scale, total / scale, count, np.zeros(dim), spread, seen.deviation / scale
        score = np.asarray(_scores(*map(np.float32, given)))
        yield score[: len(own)], score[len(own) : len(shown)]


def _difference(grid: Grid, world: _World, places: np.ndarray, draws: RandomBytes | None) -> float:
    """Estimate client 0's class sums as the sums of all clients minus the sums of all other clients.

    Return the relative error. ``places`` has the client of each example; noise comes from ``draws``, unless
    it is None.
    """
    totals = []
    for kept in (np.ones(len(places), bool), places != 0):
        part = world._replace(features=world.features[kept], labels=world.labels[kept])
        totals.append(_seen(grid, part, np.zeros(kept.sum(), int), draws).sums[0])
    own = places == 0
    truth = add_by_group(world.features[own], world.labels[own], len(world.centres))
    return float(np.linalg.norm(totals[0] - totals[1] - truth) / max(np.linalg.norm(truth), 1e-30))
