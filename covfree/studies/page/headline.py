"""A study's outcome in a few sentences: the best method, its lead and how certain that is, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite, sqrt
from statistics import fmean, stdev

from covfree.studies.report import gain_of, start_of
from covfree.studies.result import Result
from covfree.studies.table import TableCell, as_bytes, percent, plural

# A method that sends less than the best is mentioned if its accuracy is lower by at most this.
_NEAR = 0.01


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


def ranked(results: Sequence[Result]) -> list[Result]:
    """Return the methods that have an accuracy with all seeds, sorted by accuracy, best first."""
    complete = [result for result in results if not _missing(result, results)]
    return sorted(complete, key=lambda result: -result.accuracy[0])


def headline(results: Sequence[Result], num_tests: int, bytes_name: str, down: bool = False) -> list[str]:
    """Return the sentences on the methods' accuracy and cost in one federation.

    ``num_tests`` is the number of test examples; ``bytes_name`` says which bytes are counted; with ``down``,
    bytes that clients receive are among them.
    """
    order = ranked(results)
    if not order:
        return ["No method has a test accuracy with all seeds."]
    best, *others = order
    share, seeds = percent(*best.accuracy), len(best.runs)
    over = f"over {seeds} seeds" if seeds > 1 else "with one seed"
    if others:
        said, cost = _ahead(best, others[0], share, over), [_cost(best, others, bytes_name, down)]
    else:
        size = as_bytes(best.bytes(down))
        said, cost = [f"{best.title}: {share} % test accuracy {over}, for {size} ({bytes_name})."], []
    return [*said, *_sureness(best, num_tests), *cost, *_left_out(results)]


def gains(results: Sequence[Result], said: Sequence[str]) -> list[str]:
    """Return the headline ``said`` (a list of sentences) with more sentences: what training gained or lost.

    If the best accuracy after training is below the best one before training, the first sentence says so.
    """
    order = ranked(results)
    if not order:
        return list(said)
    best, start = order[0], max(order, key=lambda one: one.mean(start_of))
    before, after, first = start.mean(start_of), best.accuracy[0], []
    gain, *changes = (100 * one.mean(gain_of) for one in order)
    if before > after:
        first = [
            f"No training reaches the best start: {100 * before:.2f} % before any round of {start.title}, "
            f"{100 * after:.2f} % at most after training."
        ]
    change = f"lost {-gain:.2f}" if gain < 0 else f"gained {gain:.2f}"
    own = f"{100 * best.mean(start_of):.2f} %"
    words = [f"From its start of {own}, {best.title} {change} points by training."]
    changed = zip(order[1:], changes, strict=True)
    if lost := [f"{one.title} ({-change:.2f} points)" for one, change in changed if change < 0]:
        words.append(f"Training {'also ' * (gain < 0)}made worse: {', '.join(lost)}.")
    head, *others = said
    return [*first, head, *words, *others]


def _missing(result: Result, results: Sequence[Result]) -> int:
    """Count the seeds of all ``results`` with which the method of ``result`` has no accuracy."""
    seeds = {run.seed for each in results for run in each.runs}
    return len(seeds - {run.seed for run in result.runs if isfinite(run.accuracy)})


def _over(one: Result, other: Result) -> list[float]:
    """Return a method's accuracy minus another's, for each seed that both have."""
    theirs = {run.seed: run.accuracy for run in other.runs}
    return [run.accuracy - theirs[run.seed] for run in one.runs if run.seed in theirs]


def _left_out(results: Sequence[Result]) -> list[str]:
    """Return a sentence on each method that is left out, as it has no accuracy with some seed."""
    seeds = len({run.seed for each in results for run in each.runs})
    return [
        f"{one.title} is left out: with {missing} of {seeds} {plural('seed', seeds)} it has no test accuracy."
        for one in results
        if (missing := _missing(one, results))
    ]


def behind(results: Sequence[Result]) -> list[TableCell]:
    """Return a table cell for each method: its accuracy minus the best method's, in percentage points.

    The cell has mean and standard deviation over seeds; the best method's cell says "best".
    """
    order, cells = ranked(results), []
    for one in results:
        if one not in order:
            cells.append(TableCell("–", float("nan")))
        elif one is order[0]:
            cells.append(TableCell("best", 0.0))
        else:
            apart = _over(one, order[0])
            text = percent(fmean(apart), stdev(apart) if len(apart) > 1 else None)
            cells.append(TableCell(text.replace("-", "−"), fmean(apart)))
    return cells


def over_places(places: Sequence[Sequence[Result]]) -> list[str]:
    """Return a sentence, in a list: which methods are the most accurate, and on how many federations.

    ``places`` has the methods' results for each federation. The sentence says which methods are level with
    the best one (`_at_the_top`), and on how many federations.
    """
    tops = [_at_the_top(order) for each in places if (order := ranked(each))]
    if not tops:
        return ["No method has a test accuracy with all seeds."]
    often = Counter(title for highest, _ in tops for title in highest)
    level: dict[str, list[list[str]]] = {}
    for highest, close in tops:
        # Of methods with the same accuracy, the one that is among the best on most federations comes first.
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


def _at_the_top(order: Sequence[Result]) -> tuple[list[str], list[str]]:
    """Return the titles of the methods that have the highest mean accuracy, as printed, and of those close.

    If only one has the highest, the second best is close if the 95 % interval of their difference contains 0.
    The methods ``order`` are sorted, best first.
    """
    shown = [percent(one.accuracy[0], None) for one in order]
    highest = [one.title for one, share in zip(order, shown, strict=True) if share == shown[0]]
    if len(order) > len(highest) == 1 and (found := interval(_over(order[1], order[0]))) and found[1] >= 0:
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


def _ahead(best: Result, second: Result, share: str, over: str) -> list[str]:
    """Return sentences on which method is best, by how much, and how certain that is.

    ``share`` is the best accuracy as a text, and ``over`` a text such as "over 5 seeds".
    """
    first = f"{best.title} has the highest test accuracy: {share} % {over}."
    apart = _over(best, second)
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
    both = f"{best.title} and {second.title} are {level}: {share} % and {percent(*second.accuracy)} %"
    why = f"{mean:.2f} points, 95 % interval {low} to {high}"
    return [f"{both} test accuracy {over}.", f"The seeds do not tell the two apart (difference {why})."]


def _sureness(best: Result, num_tests: int) -> list[str]:
    """Say how large the best accuracy's standard error over test examples is: a list of one sentence.

    The list is empty without test examples. It is also empty if the seeds' accuracies differ, as their
    standard deviation already shows how large the effect of chance is.
    """
    values, mean = [run.accuracy for run in best.runs], best.accuracy[0]
    if max(values) - min(values) >= 1e-7 or not num_tests:
        return []
    which = "One seed does not" if len(values) == 1 else "Seeds that all give the same do not"
    error = 100 * sqrt(mean * (1 - mean) / num_tests)
    return [
        f"{which} tell how much of this is chance; {num_tests:,} test examples alone make a standard error "
        f"of {error:.2f} points."
    ]


def _cost(best: Result, others: Sequence[Result], bytes_name: str, down: bool) -> str:
    """Return a sentence that compares the bytes of the most accurate method with those of another method.

    The other method is the cheapest of those that take fewer bytes, and are at most a percentage point less
    accurate. If there is none, it is the second most accurate method.
    """
    size, sizes = best.bytes(down), [one.bytes(down) for one in others]
    text = f"{best.title} takes {as_bytes(size)} ({bytes_name})"
    near = [
        (own, one.title)
        for own, one in zip(sizes, others, strict=True)
        if own < size and best.accuracy[0] - one.accuracy[0] <= _NEAR
    ]
    if near:
        cheap, title = min(near, key=lambda each: each[0])
        return f"{text}; {title} comes within a point of it for {as_bytes(cheap)}."
    second = others[0].title
    if 0 < 1.005 * size < sizes[0]:
        return f"{text}, {sizes[0] / size:.3g} times less than {second}."
    if as_bytes(sizes[0]) == as_bytes(size):
        return f"{text}, as much as {second}."
    return f"{text}, {second} {as_bytes(sizes[0])}."
