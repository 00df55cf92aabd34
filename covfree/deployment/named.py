"""Make the method or algorithm that `Description.algorithm` names, such as ``fedcof:shrinkage=0.1``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from covfree.core.registries import nearest
from covfree.core.types import LinearHead
from covfree.methods import Method
from covfree.rounds.algorithm import Algorithm
from covfree.rounds.from_method import as_algorithm


def method_named(text: str) -> Method[Any] | None:
    """Make the method with a name such as ``"fedcof:shrinkage=0.1"``; None if no method has this name."""
    from covfree.methods import registry
    from covfree.studies.known import JOINT
    from covfree.studies.names import parsed
    from covfree.studies.variants import variants

    several = [each.strip() for each in text.split(",")]
    if len(several) > 1 and all(each.partition(":")[0] in registry() for each in several):
        raise ValueError(
            f"algorithm: expected one, got {text!r}; to let sites choose, write {JOINT.join(several)}"
        )
    expected = "algorithm: expected a number such as fedcof:shrinkage=0.1"
    if any(parsed(each, expected)[0] not in registry() for each in text.split(JOINT)):
        return None
    try:
        (variant,) = variants([text]).values()
    except ValueError as error:
        raise ValueError(f"algorithm: {str(error).removeprefix('methods: ')}") from error
    return variant.method


def candidates_in(text: str) -> list[str]:
    """Return the names of the methods among which sites choose, from a name such as ``fedcof-or-fedncm``."""
    from covfree.studies.known import JOINT

    return text.split(JOINT)


def algorithm_named(
    text: str, dim: int, num_classes: int, train: str, network: Any, *, sums: bool
) -> Algorithm:
    """Make the algorithm that a text names: a training-free method, or training by `covfree.finetune`.

    Args:
        text: the name, perhaps with arguments, as `Description.algorithm`.
        dim: d, the number of features of an example.
        num_classes: C.
        train: what an algorithm of `covfree.finetune` trains, as `Description.train`.
        network: the network to train, with a head of zeros; None to train only such a head.
        sums: whether the uploads of a method must be sums, for secure sums.
    """
    from covfree.finetune import linear_model, network_model
    from covfree.finetune import registry as trained
    from covfree.methods import registry
    from covfree.studies.training import algorithm_of

    method = method_named(text)
    if method is not None and train != "head":
        raise ValueError(f"train: expected 'head' for {text!r}, got {train!r}")
    if method is not None and not sums:
        return as_algorithm(method, num_classes=num_classes)
    if method is not None:
        try:
            return as_algorithm(method, num_classes=num_classes, uploads="sums")
        except ValueError as error:
            raise ValueError(
                "algorithm: expected one whose uploads are sums, such as fedncm, fed3r, fedcof, "
                f"fedcof-refined or fedavg (docs/secure-sums.md), got {text!r}"
            ) from error
    if text.partition(":")[0].strip() not in trained():
        known = [*registry(), *trained()]
        names = (each.partition(":")[0].strip() for each in candidates_in(text))
        name = next((each for each in names if each not in known), text)
        raise ValueError(f"algorithm: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    entry, numbers = algorithm_of(text)
    start = LinearHead(jnp.zeros((dim, num_classes)), jnp.zeros(num_classes))
    if network is None:
        return entry.make(linear_model(start), entry.head.client, entry.head.server, **numbers)
    own: Any = train
    model = network_model(
        network.backbone, network.params, start, train=own, preprocessing=network.preprocessing
    )
    return entry.make(model, entry.network.client, entry.network.server, **numbers)
