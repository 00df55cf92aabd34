"""Words of a command, and the texts that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What may stand between the signs of a word, or lack: spaces, dashes and the like.
_BETWEEN = r"(?:[^\w.=]|_)*"


def are_named(texts: Iterable[str], words: Iterable[str]) -> bool:
    """Whether each word begins a word of some text. Case, spaces and dashes do not count; numbers are whole.

    Raises:
        ValueError: if a word has no letter and no digit.

    >>> are_named(["SqueezeNet 1.1"], ["squeezenet"]), are_named(["Fed-LP, MB"], ["mb"])
    (True, True)
    >>> are_named(["CIFAR-100"], ["cifar10"]), are_named(["alpha=0.05"], ["alpha=0"])
    (False, False)
    """
    kept = list(texts)
    return all(any(pattern.search(text.lower()) for text in kept) for pattern in map(_pattern, words))


def _pattern(word: str) -> re.Pattern[str]:
    signs = re.sub(r"[^\w.=]|_", "", word.lower())
    if not re.search(r"\w", signs):
        raise ValueError(f"expected words with a letter or a digit, got {word!r}")
    # Not within a word or a number, and a number to its end.
    before, after = r"(?<![^\W_])(?<!\d\.)", r"(?!\.?\d)" if signs[-1].isdigit() else ""
    return re.compile(before + _BETWEEN.join(map(re.escape, signs)) + after)
