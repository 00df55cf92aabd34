"""Parts of data sets: domains put together, the most common classes, a domain left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from covfree.data import FeatureSet
from covfree.data.image_set import ImageSet


def joined(name: str, parts: Mapping[str, ImageSet]) -> ImageSet:
    """Several image sets of the same classes as one, in which each is a client.

    Raises:
        ValueError: if their classes differ.
    """
    sets = list(parts.values())
    if len({each.class_names for each in sets}) > 1:
        raise ValueError(f"{name}: expected the same classes in {', '.join(parts)}")
    starts = np.cumsum([0, *(len(each) for each in sets)])

    def read(i: int) -> Any:
        part = int(np.searchsorted(starts, i, side="right")) - 1
        return sets[part].read(i - int(starts[part]))

    return ImageSet(
        name=name,
        ids=tuple(f"{part}/{each}" for part, images in parts.items() for each in images.ids),
        labels=np.concatenate([each.labels for each in sets]),
        class_names=sets[0].class_names,
        read=read,
        fingerprint=hashlib.sha256("".join(each.fingerprint for each in sets).encode()).hexdigest(),
        clients=np.repeat(list(parts), [len(each) for each in sets]),
        is_test=None
        if any(each.is_test is None for each in sets)
        else np.concatenate([np.asarray(each.is_test) for each in sets]),
    )


def most_common(data: FeatureSet, count: int) -> FeatureSet:
    """The examples of the classes that have most training examples, numbered anew in their old order."""
    sizes = np.bincount(data.train_labels, minlength=data.num_classes)
    kept = np.sort(np.argsort(-sizes, kind="stable")[:count])
    train, test = np.isin(data.train_labels, kept), np.isin(data.test_labels, kept)
    return data._replace(
        train_features=data.train_features[train],
        train_labels=np.searchsorted(kept, data.train_labels[train]).astype(np.int32),
        test_features=data.test_features[test],
        test_labels=np.searchsorted(kept, data.test_labels[test]).astype(np.int32),
        num_classes=len(kept),
        clients=None if data.clients is None else data.clients[train],
        test_clients=None if data.test_clients is None else data.test_clients[test],
        class_names=None if data.class_names is None else tuple(data.class_names[i] for i in kept),
    )


def leave_out(data: FeatureSet, target: str, clients_per_domain: int, seed: int) -> FeatureSet:
    """One domain to test on, all others to train on, each spread evenly over clients of its own.

    Args:
        data: whose clients are domains, in the test part too.
        target: the domain's name.
        clients_per_domain: clients that share one domain's examples.
        seed: of who gets which.

    Raises:
        ValueError: if examples have no domains, or none has this name.
    """
    if data.clients is None or data.test_clients is None or data.client_names is None:
        raise ValueError(f"{data.name}: target: expected a domain for each example")
    if target not in data.client_names:
        raise ValueError(
            f"{data.name}: target: expected one of {', '.join(data.client_names)}, got {target!r}"
        )
    held = data.client_names.index(target)
    features = np.concatenate([data.train_features, data.test_features])
    labels = np.concatenate([data.train_labels, data.test_labels])
    domains = np.concatenate([data.clients, data.test_clients])
    train, rng = domains != held, np.random.default_rng(seed)
    clients = np.zeros(len(labels), np.int32)
    for domain in np.unique(domains[train]):
        own = np.flatnonzero(domains == domain)
        clients[own] = domain * clients_per_domain + rng.permutation(len(own)) % clients_per_domain
    return data._replace(
        train_features=features[train],
        train_labels=labels[train],
        test_features=features[~train],
        test_labels=labels[~train],
        clients=clients[train],
        fixed_split=True,
        test_clients=None,
        client_names=None,
    )
