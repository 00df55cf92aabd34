r"""Theory of the covariance estimators that ``estimator_variance.py`` measures, and their federations.

*What is drawn.* A federation is fixed: K clients of n examples each, their classes by Dirichlet draws with α,
and the mean m_kc of each client's class, about the class's with covariance τ²Σ (client shift). Features are
Gaussian, m_kc + N(0, Σ), and drawn anew each time, as are the deals to subsets.

*What is estimated.* The within-class covariance of all examples, client shift included, as a head needs it:
with D_c = Σ_k n_kc (m_kc − m_c)(m_kc − m_c)ᵀ and A = Σ_c a_c = Σ_c (N_c − 1),

    T = Σ + Σ_c D_c / A        (Σ without client shift)

All errors are over ‖T‖²_F: bias ‖EΣ̂ − T‖², variance E‖Σ̂ − EΣ̂‖², and their sum, the mean squared error.

*Theory.* Rows √n_r (x_r − m_c) of class c are independent with law N(√n_r (m_r − m_c), Σ), so every
scatter of rows about a mean is S = ZᵀPZ, Z = M + G with G of iid rows N(0, Σ) and P a projection of
rank ν: a Wishart matrix with ν degrees of freedom, off centre by D = MᵀPM. Write S − ES as (GᵀPG − νΣ) +
MᵀPG + GᵀPM. Odd moments of G vanish, so the first is uncorrelated with the rest, and by Isserlis' theorem

    E‖GᵀPG − νΣ‖² = ν V,  V = ‖Σ‖² + (tr Σ)²        E‖MᵀPG + GᵀPM‖² = 2 (tr D tr Σ + tr DΣ)

All estimators are Σ̂ = Σ_j w_j S_j of independent S_j, with mean Σ_j w_j (ν_j Σ + D_j) and variance
Σ_j w_j² (ν_j V + 2 (tr D_j tr Σ + tr D_j Σ)). With K_c rows and k_c clients of class c:

- exact (all examples): w = 1/A, ν = N_c − 1, D_c. Without shift the variance is V/A.
- eq. 5, J subsets: w = a_c/(A ν_c), ν_c = K_c − 1, D_c: the off-centre part is multiplied by a_c/ν_c, and
  D_c/ν_c is the bias of FedCOF's eq. 22 (`covfree.shift_bias`). One class: V/(K_c − 1).
- pooled: w = 1/Σ_c ν_c.
- components, J subsets: between clients w = 1/A, ν = k_c − 1, D_c; inside them, where there is no shift,
  w = (1 + w_c)/A, ν = Σ_k (J_kc − 1), w_c = (N_c − K_c)/ν. The two are independent, as P's are orthogonal.

A class that shows no spread (ν = 0) adds nothing hidden, which is the bias seen at small α.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from covfree.data.partitions import inner_dirichlet

CLASSES = 3
Kind = Literal["eq. 5", "pooled", "components", "exact"]


class Estimator(NamedTuple):
    """A kind, and its number of subsets J."""

    kind: Kind
    number: int = 1

    @property
    def name(self) -> str:
        """As in the legend."""
        symbol = {"eq. 5": "J", "components": "J"}.get(self.kind)
        kind = "eq. 5, pooled" if self.kind == "pooled" else self.kind
        return kind if symbol is None else f"{kind}, {symbol} = {self.number}"


@dataclass(frozen=True)
class Setting:
    """K clients, n examples each, d, α, and τ in units of Σ's roots."""

    clients: int = 20
    examples: int = 60
    dim: int = 16
    alpha: float = 1.0
    shift: float = 0.1


class Federation(NamedTuple):
    """What stays the same from draw to draw."""

    labels: np.ndarray
    clients: np.ndarray
    counts: np.ndarray
    means: np.ndarray
    covariance: np.ndarray

    @property
    def spreads(self) -> np.ndarray:
        """D_c of each class."""
        totals = np.maximum(self.counts.sum(0), 1)
        centre = np.einsum("kc,kcd->cd", self.counts, self.means) / totals[:, None]
        away = self.means - centre
        return np.einsum("kc,kcd,kce->cde", self.counts, away, away)

    @property
    def degrees(self) -> np.ndarray:
        """a_c = N_c − 1, 0 for an absent class."""
        return np.maximum(self.counts.sum(0) - 1, 0)

    @property
    def target(self) -> np.ndarray:
        """T, the expected within-class covariance of all examples."""
        return self.covariance + self.spreads.sum(0) / self.degrees.sum()


def make_federation(setting: Setting, seed: int = 0) -> Federation:
    """Fix the clients' classes and means, and a covariance of falling eigenvalues."""
    size = setting.clients * setting.examples
    labels = (np.arange(size) % CLASSES).astype(np.int32)
    clients = inner_dirichlet(labels, setting.clients, setting.alpha, filling="interleaved", seed=seed)
    counts = np.zeros((setting.clients, CLASSES))
    np.add.at(counts, (clients, labels), 1)
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(setting.dim, setting.dim)))[0]
    covariance = (turn / np.sqrt(np.arange(1, setting.dim + 1))) @ turn.T
    moved = rng.normal(size=(setting.clients, CLASSES, setting.dim)) @ np.linalg.cholesky(covariance).T
    means = 2 * rng.normal(size=(CLASSES, setting.dim)) + setting.shift * moved
    return Federation(labels, clients, counts, means, covariance)


class Part(NamedTuple):
    """w_j S_j, a Wishart matrix off centre by D_j."""

    weight: float
    degrees: float
    spread: np.ndarray | float = 0.0


def parts(estimator: Estimator, federation: Federation) -> list[Part]:
    """The independent scatters of which an estimate is made."""
    kind, number = estimator
    counts, all_degrees = federation.counts, federation.degrees.sum()
    rows = np.where(counts > 0, np.clip(counts // 2, 1, number), 0)
    seen = np.maximum(rows.sum(0) - 1, 0)
    found: list[Part] = []
    for c, spread in enumerate(federation.spreads):
        held, clients = counts[:, c].sum(), (counts[:, c] > 0).sum()
        if kind == "exact":
            found.append(Part(1 / all_degrees, federation.degrees[c], spread))
        elif kind == "pooled":
            found.append(Part(1 / seen.sum(), seen[c], spread))
        elif kind == "eq. 5":
            found.append(Part(federation.degrees[c] / all_degrees / max(seen[c], 1), seen[c], spread))
        else:
            found.append(Part(1 / all_degrees, max(clients - 1, 0), spread))
        if kind == "components":
            inside = rows[:, c].sum() - clients
            hidden = (held - rows[:, c].sum()) / max(inside, 1)
            found.append(Part((1 + hidden) / all_degrees, inside))
    return found


def theory(estimator: Estimator, federation: Federation) -> tuple[np.ndarray, float]:
    """Mean and total variance of an estimate; see the head of this file."""
    sigma = federation.covariance
    square, trace = float(np.sum(sigma**2)), float(np.trace(sigma))
    mean, variance = np.zeros_like(sigma), 0.0
    for weight, degrees, spread in parts(estimator, federation):
        off = np.broadcast_to(spread, sigma.shape)
        mean += weight * (degrees * sigma + off)
        noise = degrees * (square + trace**2) + 2 * (np.trace(off) * trace + np.sum(off * sigma))
        variance += weight**2 * float(noise)
    return mean, variance
