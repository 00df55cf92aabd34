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


def parser_message(error: Exception) -> str:
    """What the argument parser says; of an option by another name, which one is meant."""
    choice = re.fullmatch(
        r"Invalid value for '(--[\w-]+)': (?:Value error, )?('.*') is not one of (.*?)\.?",
        error.format_message(),  # pyright: ignore[reportAttributeAccessIssue]
    )
    if choice is not None:
        option, came, choices = choice.groups()
        return f"{option}: expected one of {choices.replace(chr(39), '')}, got {came}"
    message, given = error.format_message(), getattr(error, "option_name", None)  # pyright: ignore[reportAttributeAccessIssue]
    context = getattr(error, "ctx", None)
    if given is None or context is None or not hasattr(error, "possibilities"):
        return message
    known = {option for parameter in context.command.params for option in parameter.opts}
    for meant in _MEANT.get(given.lstrip("-").lower(), ()):
        if f"--{meant}" in known:
            return f"No such option: {given}. Did you mean --{meant}?"
    return message
