"""Describe privacy promises; compute the ε of several noisy releases, by zero-concentrated DP."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from covfree.core.checks import check_above_zero, check_choice
from covfree.core.optional import optional

Unit: TypeAlias = Literal["example", "client"]
Noise: TypeAlias = Literal["central", "distributed", "local"]
Neighbours: TypeAlias = Literal["add_remove", "replace_one"]


@dataclass(frozen=True)
class Release:
    """One noisy release of data; `spent` computes the ε of several releases together.

    Attributes:
        name: what was released.
        rho: Δ²/2σ², the ρ of zero-concentrated differential privacy, with Δ the sensitivity and σ the
            standard deviation of the noise.
        real: True for Gaussian noise on the reals (in floating point), for which the conversion to (ε, δ) is
            exact; False for the discrete Gaussian.
    """

    name: str
    rho: float
    real: bool = False

    def __post_init__(self) -> None:
        check_above_zero("rho", self.rho)


# Added to the text of a promise with distributed noise, unless masks are known to hide single uploads.
UNMASKED = "a server that sees single uploads is not bound: secure sums (covfree.secure) must hide them"


@dataclass(frozen=True)
class Promise:
    """The privacy promise of a private method.

    Attributes:
        epsilon: ε of all the method's releases together.
        delta: δ.
        unit: what is hidden: one ``"example"``, or all examples of one ``"client"``.
        neighbours: ``"add_remove"`` hides whether the unit is present, ``"replace_one"`` hides its values.
        noise: who adds the noise: ``"central"``, ``"distributed"`` or ``"local"``, as in `private`.
        honest: for distributed noise, the number of clients that surely take part and add their noise; else
            None.
        releases: the noisy releases that ``epsilon`` covers.
    """

    epsilon: float
    delta: float
    unit: Unit
    neighbours: Neighbours
    noise: Noise
    honest: int | None
    releases: tuple[Release, ...]

    @property
    def hidden(self) -> str:
        """A text that says what the promise hides, such as "whether one example was there at all"."""
        whose = "one example" if self.unit == "example" else "all examples of one client"
        verb = "were there at all" if self.neighbours == "add_remove" else "were others"
        if self.unit == "example":
            verb = verb.replace("were", "was").replace("others", "another")
        return f"whether {whose} {verb}"

    @property
    def against(self) -> str:
        """A text that says against whom the promise holds, and under which conditions."""
        return {
            "central": "everyone who sees the noisy sums or the head; not the server, which sees each upload",
            "distributed": f"everyone who sees only the sum of uploads, {self._if_honest}; {UNMASKED}",
            "local": "everyone, also the server, which sees each client's noisy upload",
        }[self.noise]

    @property
    def _if_honest(self) -> str:
        number = self.honest or 1
        if number == 1:
            return (
                "if at least 1 client adds its noise and does not tell it (from this one nothing is hidden)"
            )
        # A client knows the noise that it adds, so to it the noise in the sum has less variance.
        known = [replace(each, rho=each.rho * number / (number - 1)) for each in self.releases]
        return (
            f"if at least {number} clients add their noise and do not tell it (each of "
            f"them knows its own: from it with ε = {spent(known, self.delta):.4g})"
        )

    def __str__(self) -> str:
        # Only the simulations `private_rounds` and `private_training` add noise that is no integer.
        simulated = any(each.real for each in self.releases)
        only = "in a simulation only, as JAX's generator protects nobody, " if simulated else ""
        text = f"{only}hides {self.hidden} from {self.against}"
        return f"ε = {self.epsilon:.4g}, δ = {self.delta:.3g}: {text}."


def spent(releases: Iterable[Release | Promise], delta: float) -> float:
    """Return the ε that all releases from the same data spend together, for one δ.

    The releases' ρ (`Release.rho`) add up, even if a later release was chosen because of an earlier one. If
    all noise is a Gaussian on the reals, ε is exact (Balle and Wang 2018). Otherwise ε is a bound by Rényi
    divergences of many orders (Canonne, Kamath and Steinke 2020), 4 to 13 % above the exact ε.

    Args:
        releases: releases or promises; all promises must have the same ``unit`` and ``neighbours``.
        delta: δ in (0, 1).

    Returns:
        ε; 0 without releases.

    Raises:
        ValueError: if promises differ in ``unit`` or ``neighbours``, or ε is not finite.

    >>> one = Release("class sums", rho=0.02)
    >>> round(spent([one], 1e-6), 2), round(spent([one] * 4, 1e-6), 2)
    (0.9, 1.9)
    """
    check_delta(delta)
    if not isinstance(releases, Iterable):
        raise TypeError(f"releases: expected a list of promises or releases, got {type(releases).__name__}")
    flat: list[Release] = []
    hidden: set[str] = set()
    for each in releases:
        if isinstance(each, Promise):
            flat.extend(each.releases)
            hidden.add(f"unit={each.unit!r}, neighbours={each.neighbours!r}")
        else:
            flat.append(each)
    if len(hidden) > 1:
        raise ValueError(f"releases: expected promises of one kind, got {' and '.join(sorted(hidden))}")
    if not flat:
        return 0.0
    rho = sum(each.rho for each in flat)
    epsilon = _epsilon(rho, delta, all(each.real for each in flat))
    if not math.isfinite(epsilon):
        raise ValueError(f"releases: expected a sum of ρ whose ε is finite, got {rho:g}")
    return epsilon


def rho_for(epsilon: float, delta: float, *, real: bool = False) -> float:
    """Return the largest ρ, summed over all releases (`Release.rho`), that spends at most ``epsilon`` at δ.

    ``real`` says whether all noise is a Gaussian on the reals, see `Release`.

    Raises:
        ValueError: if ``epsilon`` is too small for this δ.
    """
    check_above_zero("epsilon", epsilon)
    check_delta(delta)
    low, high = 1e-12, epsilon + 1.0
    while _epsilon(high, delta, real) <= epsilon:  # for a large δ, ρ may be above ε + 1
        high *= 2
    for _ in range(100):
        middle = math.sqrt(low * high)
        if _epsilon(middle, delta, real) <= epsilon:
            low = middle
        else:
            high = middle
    if (least := _epsilon(low, delta, real)) > epsilon:
        raise ValueError(f"epsilon: expected at least {least:.2g} at delta={delta}, got {epsilon!r}")
    return low


def check_delta(delta: Any) -> None:
    """Raise ValueError unless δ is in (0, 1)."""
    check_above_zero("delta", delta)
    if not delta < 1:
        raise ValueError(f"delta: expected a number below 1, got {delta!r}")


def check_promise(unit: Any, neighbours: Any, noise: Any) -> None:
    """Raise ValueError unless the unit, neighbours and noise of a `Promise` are valid choices."""
    check_choice("unit", unit, ("example", "client"))
    check_choice("neighbours", neighbours, ("add_remove", "replace_one"))
    check_choice("noise", noise, ("central", "distributed", "local"))


def _epsilon(rho: float, delta: float, real: bool) -> float:
    accounting = optional("dp_accounting", "privacy")
    if real:
        return float(accounting.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta))
    accountant = optional("dp_accounting.rdp", "privacy").RdpAccountant(_orders(rho, delta))
    accountant.compose(accounting.ZCDpEvent(rho))
    return float(accountant.get_epsilon(delta))


def _orders(rho: float, delta: float) -> Sequence[float]:
    """Return orders of Rényi divergence around 1 + √(log(1/δ)/ρ), which is close to the best order."""
    best = math.sqrt(-math.log(delta) / rho)
    return [1 + best * 2 ** (step / 50) for step in range(-100, 51)]
