"""STSA-E: ridge regression on random features; the Gram matrix is estimated from means of subsets."""

from __future__ import annotations

from typing import Any

from covfree.core.checks import check_strength
from covfree.core.linalg import Scatter
from covfree.core.types import Moments, Scalar
from covfree.estimators import total_gram
from covfree.heads import ridge_head
from covfree.heads.composed import MappedHead
from covfree.methods.fed3r import WITHIN
from covfree.methods.fedncm import CLASS_SUMS
from covfree.methods.method import Method
from covfree.methods.rounds import bound, head_of_moments
from covfree.methods.summaries import send_class_means
from covfree.statistics.feature_maps import relu_features


def _system(ridge: Scalar, moments: Moments, within: Scatter) -> Scatter:
    return total_gram(within, moments).shifted(ridge)


def stsa_e(
    ridge: Scalar = 1600.0, num_features: int = 1250, num_subsets: int = 5, *, seed: int = 0
) -> Method[MappedHead]:
    """Make STSA-E: ridge regression on random ReLU features; clients send class means of random subsets.

    Let s_r = n_r x_r be the sum of the n_r examples in subset r. Class c has K_c subsets, and N_c examples
    whose sum is P_c = N_c μ_c, a column of P. With the estimated Gram matrix

        Ĝ = Σ_c [(N_c − 1)/(K_c − 1) Σ_r s_r s_rᵀ/n_r − (N_c − K_c)/((K_c − 1) N_c) P_c P_cᵀ],

    the head is (Ĝ + λI)⁻¹ P; columns are not scaled. Written out, Ĝ = Σ_c (N_c − 1) Σ̂_c + Σ_c N_c μ_c
    μ_cᵀ: FedCOF's estimate of the scatter within classes, plus the exact scatter of the class means about 0.
    So it is `fedcof` with a ``feature_map``, a ridge head and ``scatter="both"``, except for the scaling of
    columns and the unit of λ. Bytes up: 4·M·D for D features and M subset means.

    K_c counts the subsets of class c. The authors' code has instead K, the number of subsets of all clients,
    even those without the class. In expectation its Σ̂_c is (K_c − 1)/(K − 1) times as large. A class with
    one subset has no scatter, and adds only N_c μ_c μ_cᵀ.

    Args:
        ridge: λ, at least 0. The authors' 10⁶ is for a map without the factor √(2/D) of `relu_features`: here
            it is 10⁶·2/D.
        num_features: D, the number of random features.
        num_subsets: J, the largest number of random subsets of a client's class.
        seed: the seed of the random features.

    Raises:
        ValueError: if a number is out of its range.

    Source: Guan, Zhu, Zhou, Liu, Wang, Luo and Gu (2025), arXiv 2506.01327, STSA-E. The paper's stages, in
    which new classes arrive, can be run with `covfree.collect` over several rounds.
    """
    # `Any` for the type checker: the feature map makes a `MappedHead` of the linear head.
    method: Any = Method(
        check_strength("ridge", ridge),
        "stsa-e",
        send_class_means(num_subsets),
        (CLASS_SUMS, WITHIN),
        _system,
        bound(head_of_moments, function=ridge_head, unit=False),
        feature_map=relu_features(num_features, seed=seed),
    )
    return method
