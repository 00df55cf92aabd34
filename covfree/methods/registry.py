"""The named methods, for the command line, the contract tests and the docs."""

from __future__ import annotations

from typing import Any, Literal

from covfree.core.registries import Entry, Registry
from covfree.core.types import Scalar
from covfree.estimators import Shrinkage
from covfree.methods.fed3r import fed3r
from covfree.methods.fed3r_random import fed3r_random
from covfree.methods.fedcof import fedcof
from covfree.methods.fedncm import fedncm
from covfree.methods.field.afl import afl
from covfree.methods.field.components import fedcof_components
from covfree.methods.field.deepafl import deepafl
from covfree.methods.field.ensemble import ensemble
from covfree.methods.field.fedran import fedran
from covfree.methods.field.fisher import fishermix, proto_hyper
from covfree.methods.field.gaussian import fedcgs, naive_bayes, qda
from covfree.methods.field.safle import safle
from covfree.methods.field.sampled import ccvr, fedpft
from covfree.methods.field.stsa import stsa_e
from covfree.methods.method import Method
from covfree.methods.oracle import fedcof_oracle
from covfree.methods.refine.corrected import corrected
from covfree.methods.refine.refined import refined
from covfree.methods.residuals import fedcof_residuals
from covfree.methods.student import student
from covfree.statistics.feature_maps import relu_features


def _fed3r_within(ridge: Scalar = 1.0, bias: bool = False) -> Method:
    return fed3r(ridge, "within", bias=bias)


def _fedcof_random(shrinkage: Scalar | str | Shrinkage = "auto", num_features: int = 1000) -> Method:
    return fedcof(shrinkage).with_feature_map(relu_features(num_features))


def _fedcgs(shrinkage: Scalar = 0.0, expansion: int | None = None) -> Method[Any]:
    method = fedcgs(shrinkage)
    return method if expansion is None else method.with_feature_map(relu_features(expansion))


def _fedcof_paper(
    shrinkage: Scalar = 1.0, num_subsets: int | None = 1, subset_size: int = 2, bias: bool = False
) -> Method:
    return fedcof(shrinkage, num_subsets, head="ridge", subset_size=subset_size, bias=bias)


def _fedcof_student(shrinkage: Scalar | str | Shrinkage = "auto", prior: Scalar = 1.0) -> Method:
    return fedcof(shrinkage, head=student(prior))


def _fedcof_residuals_student(
    num_directions: int = 8, shrinkage: Scalar | str | Shrinkage = "auto", prior: Scalar = 1.0
) -> Method:
    return fedcof_residuals(num_directions, shrinkage, student(prior))


def _fedcof_diagonal(
    shrinkage: Scalar | str | Shrinkage = "auto", head: Literal["lda", "ridge"] = "lda", bias: bool = False
) -> Method:
    return fedcof_oracle(shrinkage, head, covariance="diagonal", bias=bias)


def _fedcof_spherical(
    shrinkage: Scalar | str | Shrinkage = "auto", head: Literal["lda", "ridge"] = "lda", bias: bool = False
) -> Method:
    return fedcof_oracle(shrinkage, head, covariance="spherical", bias=bias)


def _qda_means(shrinkage: Scalar | str | Shrinkage = "auto") -> Method:
    return qda(shrinkage, covariance="means")


def _fedcof_refined(
    shrinkage: Scalar | str | Shrinkage = "auto", rounds: int = 3, directions: int | None = None
) -> Method:
    return refined(fedcof(shrinkage), rounds, directions)


def _fedcof_corrected(
    shrinkage: Scalar | str | Shrinkage = "auto",
    head: Literal["lda", "ridge", "student"] = "lda",
    rounds: int = 4,
    penalty: Scalar = 0.003,
) -> Method:
    return corrected(fedcof(shrinkage, head=head), rounds, penalty=penalty)


# What clients send; pictures show methods with equal entries in one colour.
_MEANS = "class means"
_MORE = "several means or directions"
_VARIANCES = "means and variances"
_GRAM = "Gram matrices"
_COVARIANCES = "class covariances"
_VIRTUAL = "virtual features"
_HEADS = "heads of clients"
_SUMS = "several rounds of sums"

_REGISTRY: Registry[Entry[Method[Any]]] = Registry(
    {
        "fedncm": Entry("FedNCM", fedncm, _MEANS),
        "fed3r": Entry("Fed3R", fed3r, _GRAM),
        "fed3r-within": Entry("Fed3R, no between-class scatter", _fed3r_within, _GRAM),
        "fed3r-random": Entry("Fed3R-RF, random Fourier features", fed3r_random, _GRAM),
        "afl": Entry("AFL", afl, _GRAM),
        "fedcgs": Entry("FedCGS", _fedcgs, _GRAM),
        "fedcof": Entry("FedCOF (LDA, automatic γ)", fedcof, _MEANS),
        "fedcof-paper": Entry("FedCOF, paper (ridge head, γ = 1)", _fedcof_paper, _MEANS),
        "fedcof-student": Entry("FedCOF, a covariance for each class", _fedcof_student, _MEANS, linear=False),
        "fedcof-residuals": Entry("FedCOF, residual directions", fedcof_residuals, _MORE),
        "fedcof-residuals-student": Entry(
            "Residual directions, a covariance for each class", _fedcof_residuals_student, _MORE, linear=False
        ),
        "fedcof-random": Entry("FedCOF, random ReLU features", _fedcof_random, _MEANS),
        "fedcof-components": Entry("FedCOF, variance components", fedcof_components, _MORE),
        "stsa-e": Entry("STSA-E, random ReLU features", stsa_e, _MORE),
        "fedran": Entry("FedRAN, random ReLU features", fedran, _MORE),
        "fedcof-spherical": Entry("FedCOF, spherical covariances", _fedcof_spherical, _VARIANCES),
        "fedcof-diagonal": Entry("FedCOF, diagonal covariances", _fedcof_diagonal, _VARIANCES),
        "fedcof-oracle": Entry("FedCOF oracle", fedcof_oracle, _COVARIANCES),
        "naive-bayes": Entry("Gaussian naive Bayes", naive_bayes, _VARIANCES, linear=False),
        "qda": Entry("Quadratic discriminant analysis", qda, _COVARIANCES, linear=False),
        "qda-means": Entry("Quadratic, from class means", _qda_means, _MEANS, linear=False),
        "ccvr": Entry("CCVR", ccvr, _VIRTUAL),
        "fishermix": Entry("GH-OFL, FisherMix", fishermix, _VIRTUAL),
        "proto-hyper": Entry("GH-OFL, Proto-Hyper", proto_hyper, _VIRTUAL),
        "fedpft": Entry("FedPFT", fedpft, _VIRTUAL),
        "ensemble": Entry("Ensemble of clients' heads", ensemble, _HEADS),
        "fedcof-refined": Entry("FedCOF, refined (3 rounds)", _fedcof_refined, _SUMS),
        "fedcof-corrected": Entry("FedCOF, softmax (4 rounds)", _fedcof_corrected, _SUMS),
        "deepafl": Entry("DeepAFL (5 layers)", deepafl, _SUMS, linear=False),
        "safle": Entry("SAFLe", safle, _SUMS, linear=False),
    }
)


def registry() -> Registry[Entry[Method[Any]]]:
    """Return a read-only mapping from names to entries; an unknown name raises an error that lists all.

    >>> "fedcof" in registry()
    True
    """
    return _REGISTRY
