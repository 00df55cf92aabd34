"""A study's outcome in a few sentences: the best method, its lead and how certain that is, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from statistics import fmean, stdev
from types import MappingProxyType
from typing import NamedTuple

from covfree.studies.table import TableCell, as_bytes, percent

# A method that sends less than the best is mentioned if its accuracy is lower by at most this.
_NEAR = 0.01


class Scored(NamedTuple):
    """A method's accuracies and bytes on a federation.

    Attributes:
        title: the method's title.
        accuracy: test accuracy by seed.
        bytes: bytes that all clients send. If some method's clients receive bytes before the head, the bytes
            that clients receive are included for every method.
        starts: accuracy before training, by seed; empty for a method in closed form.
    """

    title: str
    accuracy: Mapping[int, float]
    bytes: float
    starts: Mapping[int, float] = MappingProxyType({})

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds."""
        return fmean(self.accuracy.values())

    @property
    def gain(self) -> float:
        """Mean gain by training in percentage points; negative if training lost."""
        return 100 * fmean(self.accuracy[seed] - start for seed, start in self.starts.items())

    def over(self, other: Scored) -> list[float]:
        """Return this method's accuracy minus another's, for each seed that both methods have."""
        seeds = [seed for seed in self.accuracy if seed in other.accuracy]
        return [self.accuracy[seed] - other.accuracy[seed] for seed in seeds]


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean of ``differences``, by Student's t.

    Return None if there is only one difference, or if all are equal.

    Equal differences, as with a fixed split and the data's own clients, say nothing about chance.

    >>> low, high = interval([0.01, 0.02, 0.03])
    >>> print(f"{low:.4f} {high:.4f}")
    -0.0048 0.0448
    """
    from scipy.stats import t

    # Differences of float32 accuracies count as equal if they differ only by rounding.
    if len(differences) < 2 or max(differences) - min(differences) < 1e-7:
        return None
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / sqrt(len(differences))
    return fmean(differences) - half, fmean(differences) + half


def ranked(scored: Sequence[Scored]) -> list[Scored]:
    """Return the methods sorted by accuracy, best first, without those whose mean accuracy is NaN."""
    return sorted((one for one in scored if isfinite(one.mean)), key=lambda one: -one.mean)


def headline(scored: Sequence[Scored], num_tests: int, bytes_name: str) -> list[str]:
    """Return the sentences on the methods' accuracy and cost in one federation.

    ``num_tests`` is the number of test examples; ``bytes_name`` says which bytes are counted.
    """
    order = ranked(scored)
    if not order:
        return ["No method has a test accuracy with all seeds."]
    best, *others = order
    seeds = len(best.accuracy)
    share = percent(best.mean, stdev(best.accuracy.values()) if seeds > 1 else None)
    over = f"over {seeds} seeds" if seeds > 1 else "with one seed"
    if others:
        said, cost = _ahead(best, others[0], share, over), [_cost(best, others, bytes_name)]
    else:
        text = f"{best.title}: {share} % test accuracy {over}, for {as_bytes(best.bytes)} ({bytes_name})."
        said, cost = [text], []
    return [*said, *_sureness(best, num_tests), *cost, *_left_out(scored)]


def gains(scored: Sequence[Scored], said: Sequence[str]) -> list[str]:
    """Return the headline ``said`` (a list of sentences) with more sentences: what training gained or lost.

    ``scored`` has each method's accuracies before and after training. If the best accuracy after training is
    below the best one before training, the first sentence says so.
    """
    order = ranked(scored)
    if not order:
        return list(said)
    best, start = order[0], max(order, key=lambda one: fmean(one.starts.values()))
    before = fmean(start.starts.values())
    first, own = [], fmean(best.starts.values())
    if before > best.mean:
        first = [
            f"No training reaches the best start: {100 * before:.2f} % before any round of {start.title}, "
            f"{100 * best.mean:.2f} % at most after training."
        ]
    change = f"lost {-best.gain:.2f}" if best.gain < 0 else f"gained {best.gain:.2f}"
    words = [f"From its start of {100 * own:.2f} %, {best.title} {change} points by training."]
    if lost := [one for one in order[1:] if one.gain < 0]:
        each = ", ".join(f"{one.title} ({-one.gain:.2f} points)" for one in lost)
        words.append(
            f"Training also made worse: {each}." if best.gain < 0 else f"Training made worse: {each}."
        )
    head, *others = said
    return [*first, head, *words, *others]


def _left_out(scored: Sequence[Scored]) -> list[str]:
    """Say of each method without a mean accuracy (NaN) that it is left out, and why: one sentence each."""
    lost = [one for one in scored if not isfinite(one.mean)]
    return [
        f"{one.title} is left out: with {sum(not isfinite(x) for x in one.accuracy.values())} of "
        f"{len(one.accuracy)} {'seed' if len(one.accuracy) == 1 else 'seeds'} it has no test accuracy."
        for one in lost
    ]


def behind(scored: Sequence[Scored]) -> list[TableCell]:
    """Return a table cell for each method: its accuracy minus the best method's, in percentage points.

    The cell has mean and standard deviation over seeds; the best method's cell says "best".
    """
    order, cells = ranked(scored), []
    for one in scored:
        if one is (order[0] if order else None):
            cells.append(TableCell("best", 0.0))
            continue
        apart = one.over(order[0]) if order else []
        if not apart or not isfinite(fmean(apart)):
            cells.append(TableCell("–", float("nan")))
            continue
        text = percent(fmean(apart), stdev(apart) if len(apart) > 1 else None)
        cells.append(TableCell(text.replace("-", "−"), fmean(apart)))
    return cells


def over_places(places: Sequence[Sequence[Scored]]) -> list[str]:
    """Return a sentence, in a list: which methods are the most accurate, and on how many federations.

    ``places`` has the methods' `Scored` for each federation. The sentence says which methods are level with
    the best one (`_at_the_top`), and on how many federations.
    """
    tops = [_at_the_top(order) for each in places if (order := ranked(each))]
    if not tops:
        return ["No method has a test accuracy with all seeds."]
    often = Counter(title for highest, _ in tops for title in highest)
    level: dict[str, list[list[str]]] = {}
    for highest, close in tops:
        # Of methods with the same accuracy, the one that has the highest one most often comes first.
        first = max(highest, key=lambda title: often[title])
        level.setdefault(first, []).append([title for title in highest + close if title != first])
    (title, among), *others = sorted(level.items(), key=lambda one: -len(one[1]))
    total, number = len(tops), len(among)
    every = "both" if total == 2 else f"all {total}"
    of = every if number == total else f"{number} of {total}"
    tied = [bool(titles) for each in level.values() for titles in each]
    words = [f"{title} has the highest {'mean ' * any(tied)}test accuracy on {of} federations{_level(among)}"]
    words += [f"{other} on {len(each)}{_level(each)}" for other, each in others]
    return [f"{'No method is surely the best: ' * all(tied)}{', '.join(words)}."]


def _at_the_top(order: Sequence[Scored]) -> tuple[list[str], list[str]]:
    """Return the titles of the methods that have the highest mean accuracy, as printed, and of those close.

    If only one has the highest, the second best is close if the 95 % interval of their difference contains 0.
    The methods ``order`` are sorted, best first.
    """
    best = percent(order[0].mean, None)
    highest = [one.title for one in order if percent(one.mean, None) == best]
    if len(order) > len(highest) == 1 and (found := interval(order[1].over(order[0]))) and found[1] >= 0:
        return highest, [order[1].title]
    return highest, []


def _level(among: Sequence[Sequence[str]]) -> str:
    """Say in parentheses with which titles of ``among`` a method is level, and on how many federations."""
    rivals = Counter(title for titles in among for title in titles)
    if not rivals:
        return ""
    if len(rivals) > 2:
        return f" (level with others on {sum(map(bool, among))})"
    return f" (level with {' and '.join(f'{title} on {number}' for title, number in rivals.items())})"


def _ahead(best: Scored, second: Scored, share: str, over: str) -> list[str]:
    """Return sentences on which method is best, by how much, and how certain that is.

    ``share`` is the best accuracy as a text, and ``over`` a text such as "over 5 seeds".
    """
    first = f"{best.title} has the highest test accuracy: {share} % {over}."
    apart = best.over(second)
    if not apart:
        return [first]
    found, mean = interval(apart), 100 * fmean(apart)
    if found is None:
        by = f"It is {mean:.2f} points above" if round(mean, 2) else "It has the same accuracy as"
        return [first, f"{by} {second.title}."]
    low, high = (f"{100 * each:.2f}".replace("-", "−") for each in found)
    if found[0] > 0:
        wins = f"and it is higher with {sum(each > 0 for each in apart)} of {len(apart)} seeds"
        sure = f"95 % interval {low} to {high}, {wins}"
        return [first, f"It is {mean:.2f} points above {second.title} ({sure})."]
    level = "level at the top" if len(apart) > 2 else "not told apart by 2 seeds"
    other = percent(second.mean, stdev(second.accuracy.values()) if len(second.accuracy) > 1 else None)
    both = f"{best.title} and {second.title} are {level}: {share} % and {other} %"
    why = f"{mean:.2f} points, 95 % interval {low} to {high}"
    return [f"{both} test accuracy {over}.", f"The seeds do not tell the two apart (difference {why})."]


def _sureness(best: Scored, num_tests: int) -> list[str]:
    """Say how large the best accuracy's standard error over test examples is: a list of one sentence.

    The list is empty without test examples. It is also empty if the seeds' accuracies differ, as their
    standard deviation already shows how large the effect of chance is.
    """
    values = best.accuracy.values()
    if max(values) - min(values) >= 1e-7 or not num_tests:
        return []
    which = "One seed does not" if len(values) == 1 else "Seeds that all give the same do not"
    error = 100 * sqrt(best.mean * (1 - best.mean) / num_tests)
    return [
        f"{which} tell how much of this is chance; {num_tests:,} test examples alone make a standard error "
        f"of {error:.2f} points."
    ]


def _cost(best: Scored, others: Sequence[Scored], bytes_name: str) -> str:
    """Return a sentence that compares the bytes of the most accurate method with those of another method.

    The other method is the cheapest of those that take fewer bytes, and are at most a percentage point less
    accurate. If there is none, it is the second most accurate method.
    """
    text = f"{best.title} takes {as_bytes(best.bytes)} ({bytes_name})"
    near = [one for one in others if one.bytes < best.bytes and best.mean - one.mean <= _NEAR]
    if near:
        cheap = min(near, key=lambda one: one.bytes)
        return f"{text}; {cheap.title} comes within a point of it for {as_bytes(cheap.bytes)}."
    second = others[0]
    if 0 < 1.005 * best.bytes < second.bytes:
        return f"{text}, {second.bytes / best.bytes:.3g} times less than {second.title}."
    size = as_bytes(second.bytes)
    if size == as_bytes(best.bytes):
        return f"{text}, as much as {second.title}."
    return f"{text}, {second.title} {size}."
