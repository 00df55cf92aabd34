"""CCVR and FedPFT: the server draws virtual features from Gaussians and trains a linear head on them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_positive, check_seed, check_share, check_strength
from covfree.core.sums import Table
from covfree.core.types import LinearHead, Moments, Rows, Scalar
from covfree.heads.softmax import softmax_head
from covfree.heads.virtual import sample_rows
from covfree.heads.virtual_descent import descended_head
from covfree.methods.fedncm import CLASS_SUMS
from covfree.methods.field.gaussian import CLASS_SCATTERS, scatters_merge
from covfree.methods.method import Method
from covfree.methods.rounds import Round, bound
from covfree.methods.summaries import send_mixtures
from covfree.methods.summary import class_covariance_matrices

# Defaults of heads that are trained on all draws at once: the number of virtual features, and the penalty.
_SAMPLES, _L2 = 10_000, 1e-3


class _Numbers(NamedTuple):
    """What ``vmap`` may sweep: the seed of the virtual features, and the weight of the head's penalty."""

    seed: Scalar
    l2: Scalar


class _Descent(NamedTuple):
    """Hyperparameters of a head that is trained by gradient descent on virtual features.

    ``vmap`` may sweep them.
    """

    seed: Scalar
    learning_rate: Scalar
    momentum: Scalar


def _trained(numbers: _Numbers, rows: Rows, num_classes: int, num_samples: int) -> LinearHead:
    features, labels = sample_rows(rows, num_samples, key=jax.random.key(numbers.seed))
    return softmax_head(features, labels, num_classes, l2=numbers.l2)


def _classes_head(
    numbers: _Numbers, system: None, moments: Moments, scatters: jax.Array, *, num_samples: int
) -> LinearHead:
    """Train a softmax head on virtual features drawn from the Gaussian of each class."""
    num_classes = moments.count.shape[0]
    degrees = jnp.maximum(moments.count - 1, 1).astype(scatters.dtype)
    label = jnp.arange(num_classes, dtype=jnp.int32)
    covariance = scatters / degrees[:, None, None]
    rows = Rows(moments.mean, moments.count, label, covariance=covariance)
    return _trained(numbers, rows, num_classes, num_samples)


def ccvr(num_samples: int = _SAMPLES, *, l2: Scalar = _L2, seed: Scalar = 0) -> Method[LinearHead]:
    """Make CCVR: the server trains a linear head on virtual features drawn from each class's Gaussian.

    Clients send class means and covariances, which aggregate exactly (`aggregate_covariances`). The server
    draws virtual features from N(μ_c, Σ_c), in proportion to the classes' examples, and trains a softmax head
    on them. Takes C·d² memory at the server for C classes of d features. Bytes up: 4·M·(d² + d) for M
    client-class pairs.

    Args:
        num_samples: virtual features of all classes together.
        l2: weight of the penalty, see `softmax_head`.
        seed: the seed of the virtual features.

    Raises:
        ValueError: if a number is out of range.

    Source: Luo, Chen, Hu, Zhang, Liang and Feng (2021), eq. 3 and Alg. 1. The paper calibrates the classifier
    of a model trained by federated learning; here the backbone is frozen and the head starts at 0.
    """
    check_positive("num_samples", num_samples)
    return Method(
        _Numbers(check_seed("seed", seed), check_strength("l2", l2)),
        "ccvr",
        class_covariance_matrices(scatters_merge),
        (CLASS_SUMS, CLASS_SCATTERS),
        None,
        bound(_classes_head, num_samples=num_samples),
    )


def keep_terms(numbers: Any, sent: tuple[Moments], rows: Rows, num_classes: int) -> Table:
    """Return ``rows`` as a `Table`, for methods whose server needs the rows of all clients one by one.

    The rows are the Gaussians of a client's mixtures, or its trained head. The server concatenates clients'
    tables; it does not add them up.
    """
    return Table(rows, jnp.asarray(rows.count) > 0)


KEPT_ROWS = Round(keep_terms, fixed=True)


def _mixtures_head(
    numbers: _Numbers, system: None, moments: Moments, rows: Rows, *, num_samples: int
) -> LinearHead:
    """Train a softmax head on virtual features, which are drawn from the clients' Gaussian mixtures.

    Each of ``rows`` is one Gaussian of a mixture.
    """
    return _trained(numbers, rows, moments.count.shape[0], num_samples)


def _descended_head(
    numbers: _Descent, system: None, moments: Moments, rows: Rows, *, epochs: int, batch_size: int
) -> LinearHead:
    """Train a linear head by gradient descent on random features, as many as the clients have examples.

    The features are drawn from the Gaussian mixtures that clients sent: ``rows`` has their components.
    """
    return descended_head(
        rows,
        moments.count.shape[0],
        epochs=epochs,
        learning_rate=numbers.learning_rate,
        momentum=numbers.momentum,
        batch_size=batch_size,
        key=jax.random.key(numbers.seed),
    )


def fedpft(
    num_components: int = 2,
    covariance: Literal["diagonal", "spherical", "full"] = "diagonal",
    num_samples: int | None = None,
    *,
    l2: Scalar | None = None,
    seed: Scalar = 0,
    epochs: int | None = None,
    learning_rate: Scalar | None = None,
    momentum: Scalar | None = None,
    batch_size: int | None = None,
) -> Method[LinearHead]:
    """Make FedPFT: clients send a Gaussian mixture of each class; the server trains on draws from them.

    The head minimises a penalised loss on all draws (`softmax_head`). With ``epochs`` it is trained like the
    baselines of the FedCGS paper: by gradient descent with momentum in batches, from 0 and without a penalty,
    on one draw for each example of the clients. ``fedpft(10, epochs=50)`` has that paper's numbers of
    components and epochs. (It does not say how it trains the head of FedPFT itself.)

    Bytes up for M client-class pairs of k components (fewer if examples are few): 4·k·M·(2·d) diagonal,
    4·k·M·(d + 1) spherical, 4·k·M·(d² + d) full.

    Args:
        num_components: k, the largest number of components of a client's class.
        covariance: structure of the components' covariances.
        num_samples: virtual features of all clients together, in proportion to the components' counts; 10,000
            by default.
        l2: weight of the penalty, see `softmax_head`; 0.001 by default.
        seed: the seed of the virtual features.
        epochs: passes of gradient descent over the draws; replaces ``num_samples`` and ``l2``.
        learning_rate: learning rate of the descent, 0.01 by default. It must suit the scale of the features.
        momentum: momentum of the descent, in [0, 1]; 0.9 by default.
        batch_size: draws for each step of the descent; 128 by default.

    Raises:
        ValueError: if an argument is unknown or out of range; if ``num_samples`` or ``l2`` is given together
            with ``epochs``, or ``learning_rate``, ``momentum`` or ``batch_size`` without it.

    Source: Beitollahi, Bie, Hemati, Brunswic, Li, Chen and Zhang (2024), Alg. 1; Guan, Zhou and Gu (2025),
    experiments, for the descent.
    """
    seed = check_seed("seed", seed)
    descent = {"learning_rate": learning_rate, "momentum": momentum, "batch_size": batch_size}
    needless = descent if epochs is None else {"num_samples": num_samples, "l2": l2}
    for name, number in needless.items():
        if number is not None:
            known = "is None" if epochs is None else "is given"
            raise ValueError(f"{name}: expected None if epochs {known}, got {number!r}")
    if epochs is not None:
        check_positive("epochs", epochs)
        numbers: Any = _Descent(
            seed,
            check_strength("learning_rate", 0.01 if learning_rate is None else learning_rate),
            check_share("momentum", 0.9 if momentum is None else momentum),
        )
        batch_size = 128 if batch_size is None else batch_size
        check_positive("batch_size", batch_size)
        head = bound(_descended_head, epochs=epochs, batch_size=batch_size)
    else:
        number = _SAMPLES if num_samples is None else num_samples
        check_positive("num_samples", number)
        numbers = _Numbers(seed, check_strength("l2", _L2 if l2 is None else l2))
        head = bound(_mixtures_head, num_samples=number)
    summary = send_mixtures(num_components, covariance)
    return Method(numbers, "fedpft", summary, (CLASS_SUMS, KEPT_ROWS), None, head)
