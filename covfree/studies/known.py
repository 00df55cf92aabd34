"""Methods by name: covfree's own, those of installed packages, and functions in a user's file."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax

from covfree.core.checks import own_place
from covfree.core.registries import Entry, nearest
from covfree.methods import Method, registry

# Packages register methods in this group of entry points: ``name = "package.module:function"``.
GROUP = "covfree.methods"
# The family of functions that are not covfree's: what clients send depends on the methods that they return.
_FAMILY = "other"
# Joins the names of methods among which clients choose one: ``fedcof-or-fedcof-student``.
JOINT = "-or-"
# Errors that a method may raise; they are shown by their messages alone. Any other error in covfree's methods
# is a bug.
FAILURES = (ValueError, FloatingPointError, MemoryError, jax.errors.JaxRuntimeError)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def entry_of(name: str) -> Entry[Method]:
    """Return the `Entry` of a method: of covfree, of an installed package, or a function in a user's file."""
    if name in registry():
        return registry()[name]
    if ".py:" in name:
        return _entry(name, function_of(name), name.partition(".py:")[2])
    if name.endswith(".py"):
        raise ValueError(f"methods: expected a function of the file, such as {name}:my_method, got {name!r}")
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = [*registry(), *sorted(found)]
        raise ValueError(
            f"methods: unknown method {name!r}; expected some of {', '.join(known)}, or mine.py:function"
            f"{nearest(name, known)}"
        )
    return _entry(name, found[name].load())


def is_own(name: str) -> bool:
    """Return whether a name contains a user's or another package's method, one that is not covfree's.

    This is so for ``fedcof:shrinkage=1-or-mine``, because of ``mine``.
    """
    return any(each.partition(":")[0] not in registry() for each in alternatives(name))


def failure(error: Exception, *, brief: bool = False) -> str:
    """Return an error as text: its type, its message, and its place in a user's code, if it has one.

    The type is left out if it is ValueError. With ``brief``, it is left out if it is in `FAILURES`, and only
    the message's first line is taken, as jax's are long.
    """
    message = str(error).partition("\n")[0] if brief else str(error)
    kind = "" if isinstance(error, FAILURES if brief else ValueError) else f"{type(error).__name__}: "
    return f"{kind}{message}{own_place(error)}"


def sees_no_covariance(name: str, clients: int) -> str:
    """Return a note if a method such as FedCOF sees no covariance, as there is only one client; else "".

    ``name`` is the method's name, perhaps with arguments. With one client, a class has a single mean.
    """
    stem = name.partition(":")[0]
    takes_spread = stem in registry() and registry()[stem].family == registry()["fedcof"].family
    if clients != 1 or not takes_spread or stem == "fedncm":
        return ""
    return (
        "FedCOF sees no covariance at one client, which sends one mean of each class: its head is a "
        "nearest-mean classifier, unless num_subsets is 2 or more."
    )


def like(method: Method[Any]) -> str:
    """Return the name of a registered method whose clients send the same as those of ``method``.

    If there is none, as for a method in which clients choose among several, return the method's own name.
    """

    def sent(one: Method[Any]) -> Any:
        return one.summary.name, one.summary.matrices, one.one_shot

    def unlike(name: str) -> tuple[bool, bool, int]:
        one = made[name]
        rounds = abs(len(one.rounds) - len(method.rounds))
        return one.summary != method.summary, one.name != method.name, rounds

    made = {name: entry.make() for name, entry in registry().items()}
    alike = [name for name, one in made.items() if sent(one) == sent(method)]
    return min(alike, key=unlike, default=method.name)


def alternatives(name: str) -> list[str]:
    """Return the names of the methods among which clients choose; [name] if there is no choice.

    ``-or-`` separates the names, as in ``fedcof-or-fedcof-student``, unless it belongs to the name of one
    method, as in ``my-or-dir/mine.py:function``. If no part of ``name`` is a known method, it is one name:
    in Python a method may have any.
    """
    found, parts, some = list[str](), name.split(JOINT), False
    known = {*registry(), *entry_points(group=GROUP).names} if JOINT in name else set[str]()
    while parts:
        begun = (JOINT.join(parts[:end]) for end in range(1, len(parts) + 1))
        whole = (each for each in begun if ".py:" in each or each.partition(":")[0].strip() in known)
        one = next(whole, None)
        some |= one is not None
        found.append(parts[0] if one is None else one)
        del parts[: found[-1].count(JOINT) + 1]
    return found if some else [name]


def _entry(name: str, make: Any, title: str | None = None) -> Entry[Method]:
    if not callable(make):
        got = type(make).__name__
        raise ValueError(f"methods: {name}: expected a function that returns a method, got a {got}")
    for argument in inspect.signature(make).parameters.values():
        if argument.default is argument.empty and argument.kind not in _OPEN:
            text = f"expected a default for every argument, got none for {argument.name}"
            raise ValueError(f"methods: {name}: {text}")
    # The function's result is checked when the function is called.
    unchecked: Any = make
    return Entry(title or name, unchecked, _FAMILY)


def function_of(name: str, option: str = "methods") -> Any:
    """Return the function named by ``mine.py:function``; errors begin with ``option``.

    The file is imported once, with its folder in ``sys.path``.
    """
    stem, in_file, function = name.partition(".py:")
    if not in_file:
        raise ValueError(f"{option}: expected a function of a file, such as mine.py:function, got {name!r}")
    path = Path(f"{stem}.py")
    if not path.is_file():
        raise ValueError(f"{option}: expected a Python file, got {str(path)!r}, which is not there")
    module = "covfree_user_" + re.sub(r"\W", "_", str(path.resolve()))
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None
        assert spec.loader is not None  # as the name ends in .py
        sys.path.insert(0, str(path.resolve().parent))
        sys.modules[module] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[module])
        except BaseException as error:
            del sys.modules[module]
            if isinstance(error, Exception):
                raise ValueError(f"{option}: {path}: {failure(error)}") from error
            raise
    found = vars(sys.modules[module])
    if function not in found:
        names = [
            each
            for each, value in found.items()
            if callable(value) and getattr(value, "__module__", "") == module
        ]
        raise ValueError(
            f"{option}: expected a function of {path}: {', '.join(names) or 'it has none'}; got {function!r}"
        )
    return found[function]
