"""Options by names that they do not have here, such as those of papers and of other tools."""

from __future__ import annotations

import re

# For a name, what is meant, whichever the command has.
_MEANT = {
    **dict.fromkeys(("gamma", "γ", "shrink", "covariance-shrinkage"), ("shrinkage",)),
    **dict.fromkeys(("lambda", "λ", "reg", "regularization", "regularisation", "l2"), ("ridge",)),
    **dict.fromkeys(("beta", "concentration", "dirichlet", "dirichlet-alpha"), ("alpha",)),
    **dict.fromkeys(("epsilon", "ε", "eps", "dp", "dp-epsilon"), ("noise",)),
    **dict.fromkeys(("model", "arch", "architecture", "net"), ("backbone",)),
    **dict.fromkeys(("optimizer", "optimiser", "strategy", "aggregation"), ("algorithm",)),
    **dict.fromkeys(("lr", "learning-rate"), ("client-lr",)),
    **dict.fromkeys(("fraction", "fraction-fit", "sample-rate"), ("participation",)),
    **dict.fromkeys(("method", "methods", "algorithm", "init"), ("methods", "method", "init")),
    **dict.fromkeys(("features", "data", "file"), ("dataset", "images")),
    **dict.fromkeys(("seed", "seeds", "repeats", "trials"), ("seeds", "seed")),
    **dict.fromkeys(("output", "output-dir", "save", "dir"), ("out",)),
    **dict.fromkeys(("k", "num-clients", "n-clients"), ("clients",)),
    **dict.fromkeys(("subsets", "num-means"), ("num-subsets",)),
    **dict.fromkeys(("continue", "restart"), ("resume",)),
}

# What the parser says of a value that is none of the choices.
_CHOICE = re.compile(r"Invalid value for '(--[\w-]+)': (?:Value error, )?('.*') is not one of (.*?)\.?")


def parser_message(error: Exception) -> str:
    """What the argument parser says; of an option by another name, which one is meant."""
    message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    choice = _CHOICE.fullmatch(message)
    if choice is not None:
        option, came, choices = choice[1], choice[2], choice[3].replace("'", "")
        return f"{option}: expected one of {choices}, got {came}"
    given = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if given is None or context is None or not hasattr(error, "possibilities"):
        return message
    known = {option for parameter in context.command.params for option in parameter.opts}
    for meant in _MEANT.get(given.lstrip("-").lower(), ()):
        if f"--{meant}" in known:
            return f"No such option: {given}. Did you mean --{meant}?"
    return message
