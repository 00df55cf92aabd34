"""Numbers beside printed ones: in the same form, with the difference."""

from __future__ import annotations

import math
import re

NUMBER = re.compile(r"(?P<number>[\d,]*\.?\d+(?:[eE][+-]?\d+)?)(?P<thousand>k)?(?:±(?P<spread>[\d.]+))?")
# What stands where the paper has no number, or has it in a plot alone.
NO_NUMBER = ("–", "plot")


def is_printed(text: str) -> bool:
    """Whether a text is a number as papers print them, or says that there is none."""
    return text in NO_NUMBER or NUMBER.fullmatch(text) is not None


def in_form_of(printed: str, value: float, spread: float | None = None) -> tuple[str, str]:
    """A number with the digits of a printed one, and its difference from that; ``=`` if there is none.

    A spread is shown too, if there is one. Of a number that is printed with an exponent, the difference is a
    factor.

    >>> in_form_of("41.5±0.1", 41.27)
    ('41.3', '−0.2')
    >>> in_form_of("57k", 57353.6), in_form_of("1.53E-05", 1.53e-5), in_form_of("2.0E-06", 1e-6)
    (('57k', '='), ('1.53E-05', '='), ('1.0E-06', '×0.5'))
    """
    match = NUMBER.fullmatch(printed)
    if match is None:
        form = ".1E" if 0 < abs(value) < 0.01 else ".2f"
        return format(value, form) + ("" if spread is None else f"±{spread:{form}}"), ""
    number, thousand = match["number"].replace(",", ""), match["thousand"] or ""
    value = value / 1e3 if thousand else value
    digits = _digits(number)
    if "e" in number.lower():
        shown = f"{value:.{digits}E}"
        factor = "" if float(number) == 0 else f"×{value / float(number):.2g}"
        return shown, "=" if float(shown) == float(number) else factor
    shown = f"{value:.{digits}f}"
    apart = float(shown) - float(number)
    difference = "=" if abs(apart) < 0.5 * 10**-digits else f"{apart:+.{digits}f}".replace("-", "−")
    return shown + ("" if spread is None else f"±{spread:.{digits}f}") + thousand, difference


def is_cut(printed: str, value: float) -> bool:
    """Whether a printed number is this one with its further digits cut off, where rounding gives another.

    >>> is_cut("109.6", 109.68), is_cut("109.7", 109.68), is_cut("128k", 128961.7)
    (True, False, True)
    """
    match = NUMBER.fullmatch(printed)
    # What has a spread was measured: no digits of it were cut off.
    if match is None or match["spread"] is not None or "e" in match["number"].lower():
        return False
    if not math.isfinite(value) or in_form_of(printed, value)[1] == "=":
        return False
    number = match["number"].replace(",", "")
    scale = 10 ** _digits(number) / (1e3 if match["thousand"] else 1)
    return int(value * scale) == round(float(number) * 10 ** _digits(number))


def _digits(number: str) -> int:
    """Digits behind the point."""
    return len(number.lower().partition("e")[0].partition(".")[2])
