"""The named methods: what the command line compares, the contract tests test and the docs list."""

from __future__ import annotations

from typing import Any

from covfree.core.registries import Entry, Registry
from covfree.core.types import Scalar
from covfree.estimators import Shrinkage
from covfree.methods.fed3r import fed3r
from covfree.methods.fedcof import HeadChoice, fedcof, fedcof_oracle
from covfree.methods.fedncm import fedncm
from covfree.methods.field.afl import afl
from covfree.methods.field.ensemble import ensemble
from covfree.methods.field.fedran import fedran
from covfree.methods.field.fisher import fishermix, proto_hyper
from covfree.methods.field.gaussian import fedcgs, naive_bayes, qda
from covfree.methods.field.sampled import ccvr, fedpft
from covfree.methods.field.stsa import stsa_e
from covfree.methods.method import Method
from covfree.methods.shifted import fedcof_components, fedcof_residuals
from covfree.statistics.feature_maps import fourier_features, relu_features


def _fed3r_within(ridge: Scalar = 1.0) -> Method:
    return fed3r(ridge, "within")


def _fed3r_random(ridge: Scalar = 0.01, num_features: int = 1000, sigma: Scalar = 1.0) -> Method:
    return fed3r(ridge, feature_map=fourier_features(num_features, sigma=sigma))


def _fedcof_random(shrinkage: Scalar | str | Shrinkage = "auto", num_features: int = 1000) -> Method:
    return fedcof(shrinkage, feature_map=relu_features(num_features))


def _fedcof_paper() -> Method:
    return fedcof(shrinkage=1.0, head="ridge")


def _fedcof_diagonal(shrinkage: Scalar | str | Shrinkage = "auto", head: HeadChoice = "lda") -> Method:
    return fedcof_oracle(shrinkage, head, covariance="diagonal")


def _fedcof_spherical(shrinkage: Scalar | str | Shrinkage = "auto", head: HeadChoice = "lda") -> Method:
    return fedcof_oracle(shrinkage, head, covariance="spherical")


def _qda_means(shrinkage: Scalar | str | Shrinkage = "auto") -> Method:
    return qda(shrinkage, covariance="means")


_REGISTRY: Registry[Entry[Method[Any]]] = Registry(
    {
        "fedncm": Entry("FedNCM", fedncm),
        "fed3r": Entry("Fed3R", fed3r, frozenset({"ridge"})),
        "fed3r-within": Entry("Fed3R, no between-class scatter", _fed3r_within, frozenset({"ridge"})),
        "fed3r-random": Entry(
            "Fed3R-RF, random Fourier features", _fed3r_random, frozenset({"ridge", "num_features", "sigma"})
        ),
        "afl": Entry("AFL", afl, frozenset({"ridge"})),
        "fedcgs": Entry("FedCGS", fedcgs),
        "fedcof": Entry(
            "FedCOF (LDA, automatic γ)",
            fedcof,
            frozenset({"shrinkage", "num_subsets", "subset_size", "head", "scatter"}),
        ),
        "fedcof-paper": Entry("FedCOF, paper (ridge head, γ = 1)", _fedcof_paper),
        "fedcof-components": Entry(
            "FedCOF, variance components",
            fedcof_components,
            frozenset({"shrinkage", "num_subsets", "subset_size"}),
        ),
        "fedcof-residuals": Entry(
            "FedCOF, residual directions", fedcof_residuals, frozenset({"shrinkage", "num_directions"})
        ),
        "fedcof-random": Entry(
            "FedCOF, random ReLU features", _fedcof_random, frozenset({"shrinkage", "num_features"})
        ),
        "stsa-e": Entry(
            "STSA-E, random ReLU features", stsa_e, frozenset({"ridge", "num_subsets", "num_features"})
        ),
        "fedran": Entry(
            "FedRAN, random ReLU features", fedran, frozenset({"ridge", "num_directions", "num_features"})
        ),
        "fedcof-spherical": Entry(
            "FedCOF, spherical covariances", _fedcof_spherical, frozenset({"shrinkage", "head"})
        ),
        "fedcof-diagonal": Entry(
            "FedCOF, diagonal covariances", _fedcof_diagonal, frozenset({"shrinkage", "head"})
        ),
        "fedcof-oracle": Entry("FedCOF oracle", fedcof_oracle, frozenset({"shrinkage", "head"})),
        "naive-bayes": Entry("Gaussian naive Bayes", naive_bayes),
        "qda": Entry("Quadratic discriminant analysis", qda, frozenset({"shrinkage"})),
        "qda-means": Entry("Quadratic, from class means", _qda_means, frozenset({"shrinkage"})),
        "ccvr": Entry("CCVR", ccvr),
        "fishermix": Entry("GH-OFL, FisherMix", fishermix, frozenset({"shrinkage"})),
        "proto-hyper": Entry("GH-OFL, Proto-Hyper", proto_hyper, frozenset({"shrinkage"})),
        "fedpft": Entry("FedPFT", fedpft, frozenset({"num_components"})),
        "ensemble": Entry("Ensemble of clients' heads", ensemble),
    }
)


def registry() -> Registry[Entry[Method[Any]]]:
    """Every named method; a read-only mapping, in which an unknown name is an error that lists the known.

    >>> "fedcof" in registry()
    True
    """
    return _REGISTRY
