"""Make methods from texts such as ``fedcof:shrinkage=0.1``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from itertools import product
from typing import Any, NamedTuple, cast

from covfree.core.registries import nearest
from covfree.methods import Method, registry
from covfree.methods.selecting import select
from covfree.statistics.transforms import count_noise
from covfree.studies.federation import several
from covfree.studies.known import JOINT, alternatives, entry_of, failure, is_own
from covfree.studies.names import parsed


class Variant(NamedTuple):
    """A method with its arguments set, and its title.

    Attributes:
        title: the method's title in tables.
        method: the method.
    """

    title: str
    method: Method


def variants(names: Iterable[str], numbers: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Variant]:
    """Make methods from their names: one for each combination of the values in ``numbers`` that it accepts.

    Args:
        names: names of methods (see `entry_of`), perhaps with numbers: ``"fedcof:shrinkage=0.1:head=ridge"``.
            A name ``"fedcof-or-fedncm"`` is a method in which the clients choose one of the two, see
            `covfree.select`. Such methods come last.
        numbers: values of arguments, by name. A method takes those that it accepts and its name does not set.

    Returns:
        The methods by name. A name contains arguments that have more than one value, or that ``names`` set.

    Raises:
        TypeError: if ``names`` is one text.
        ValueError: if a name is unknown or given twice, a method refuses a value, or no method accepts one of
            the arguments in ``numbers``.

    >>> list(variants(["fedncm", "fedcof"], {"shrinkage": [0.1, 1.0]}))
    ['fedncm', 'fedcof:shrinkage=0.1', 'fedcof:shrinkage=1.0']
    """
    several("names", names, "names of methods")
    asked, numbers = [alternatives(name) for name in names], numbers or {}
    plain = [name for name, *others in asked if not others]
    found = _single(plain, numbers) if plain or not asked else {}
    for several_names in asked:
        if len(several_names) > 1:
            choice = chosen_of(_single(several_names, numbers, all_taken=not plain))
            if choice.keys() & found:
                raise ValueError(f"methods: expected different names, got {JOINT.join(several_names)} twice")
            found |= choice
    return found


def chosen_of(variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """Make the method in which clients choose among ``variants``; return it in a dict, by its name.

    The name joins those of the variants, as in ``fedcof-or-fedncm``.
    """
    name = JOINT.join(variants)
    try:
        method = select([each.method for each in variants.values()])
    except ValueError as error:
        raise ValueError(f"methods: {name}: {error}") from error
    return {name: Variant(f"Clients' choice: {', '.join(variants)}", method)}


def _single(
    names: Sequence[str], numbers: Mapping[str, Sequence[Any]], *, all_taken: bool = True
) -> dict[str, Variant]:
    """Make methods from their names, such as ``fedcof:shrinkage=0.1``; return them by name.

    ``numbers`` has values of arguments that names do not set: with ``{"shrinkage": [0.1, 1.0]}``, the name
    ``fedcof`` gives two methods. A name gives one method for each combination of the values that it takes.
    Raise ValueError if a name sets an unknown argument; with ``all_taken``, also if none of the methods takes
    an argument in ``numbers``.
    """
    found = dict[str, Variant]()
    made: dict[str, tuple[str, dict[str, Any]]] = {}
    asked = [
        parsed(text, f"methods: expected a number such as {text.partition(':')[0]}:shrinkage=0.1")
        for text in names
    ]
    known = {**registry(), **{name: entry_of(name) for name, _ in asked}}
    every = sorted({each for name, _ in asked for each in known[name].accepts})

    def instead(number: str, takes: Iterable[str]) -> str:
        takers = [name for name, entry in known.items() if number in entry.accepts]
        # Tables write γ for the shrinkage.
        also = "; did you mean shrinkage?" * (number in ("gamma", "γ") and "shrinkage" in takes)
        return (f"; methods that take it: {', '.join(takers)}" if takers else nearest(number, takes)) + also

    for name, own in asked:
        for number in own:
            if number not in (accepts := sorted(known[name].accepts)):
                takes = ", ".join(accepts) or "no number"
                raise ValueError(f"methods: {name} takes {takes}, got {number}{instead(number, accepts)}")
    for number in numbers:
        if all_taken and number not in every:
            which = f"{asked[0][0]} does not take it" if len(asked) == 1 else "none of the methods takes it"
            listed = f"; expected some of {', '.join(every)}" if every else ""
            raise ValueError(f"{number}: {which}{listed}{instead(number, every)}")
    for name, own in asked:
        entry = known[name]
        common = {k: v for k, v in numbers.items() if k in entry.accepts and k not in own}
        swept = {k for k, v in common.items() if len(v) > 1}
        for values in product(*common.values()):
            given = {**dict(zip(common, values, strict=True)), **own}
            shown = [f"{k}={v}" for k, v in given.items() if k in swept or k in own]
            key = ":".join([name, *shown])
            if key in found:
                raise ValueError(f"methods: expected different names, got {key} twice")
            # Compare values, not texts, as 1 and 1.0 are the same number.
            for other, its in made.items():
                if its == (name, given):
                    raise ValueError(
                        f"methods: expected different methods, got {other} and {key}, which are the same"
                    )
            made[key] = name, given
            title, defaults, _ = entry.title.partition(" (")
            words = [f"{k}={v}" for k, v in given.items()] if defaults else shown
            try:
                method = _of_user(name, entry.make, given) if is_own(name) else entry.make(**given)
            except (TypeError, ValueError) as error:
                plain = not own or is_own(name)
                raise ValueError(str(error) if plain else f"methods: {key}: {error}") from error
            shown_as = f"{title} ({', '.join(words)})" if words else entry.title
            # Show the name if the title is taken, as functions of two files may have the same title.
            taken = any(shown_as == each.title for each in found.values())
            found[key] = Variant(key if taken else shown_as, method)
    if not found:
        raise ValueError("methods: expected names of methods, got none")
    return found


def _of_user(name: str, make: Any, given: Mapping[str, Any]) -> Method:
    """Return the method that a user's function makes; turn any error in it into a ValueError."""
    key = ":".join([name, *(f"{number}={value}" for number, value in given.items())])
    for number, argument in signature(make).parameters.items():
        if argument.annotation in (int, float, "int", "float") and isinstance(given.get(number), str):
            text = f"expected a number for {number}, as its annotation says, got {given[number]!r}"
            raise ValueError(f"methods: {key}: {text}")
    try:
        method = make(**given)
    except Exception as error:
        raise ValueError(f"methods: {key}: {failure(error)}") from error
    if not isinstance(method, Method):
        got = type(method).__name__
        raise ValueError(f"methods: {name}: expected the function to return a method, got a {got}")
    return method


def with_noise(variants: Mapping[str, Variant], noise: str) -> dict[str, Variant]:
    """Return the methods with noise on the counts that clients send.

    ``noise`` names a distribution and its ε, such as ``laplace:1``.
    """
    kind, _, epsilon = noise.partition(":")
    try:
        number = float(epsilon)
    except ValueError:
        raise ValueError(f"noise: expected a law and a number such as laplace:1, got {noise!r}") from None
    try:
        transform = count_noise(cast(Any, kind), number)
    except ValueError as error:
        raise ValueError(f"noise: {error}") from error
    noisy = {}
    for name, variant in variants.items():
        try:
            noisy[name] = variant._replace(method=variant.method.with_transforms(transform))
        except ValueError as error:
            raise ValueError(f"noise: {name}: {str(error).removeprefix('transforms: ')}") from error
    return noisy
