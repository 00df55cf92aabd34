"""The federations on which checks are run, all of one shape, so that each function is compiled once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covfree.core.types import Rows

EXAMPLES, ROWS, CLASSES, CLIENTS, PADDING = 80, 40, 6, 9, 7
# In `paired`, the numbers of examples behind the five rows of each class.
_COUNTS = (1, 3, 2, 5, 8)


class SmallFederation(NamedTuple):
    """The examples of all clients in flat arrays, with features in float64.

    An example with a label or client below 0 is padding, and its features are NaN.
    """

    features: np.ndarray
    labels: np.ndarray
    clients: np.ndarray

    @property
    def kept(self) -> np.ndarray:
        """Mask [examples] of the examples that are not padding."""
        return (self.labels >= 0) & (self.clients >= 0)

    @property
    def clean(self) -> SmallFederation:
        """The federation without padding."""
        return SmallFederation(*(column[self.kept] for column in self))

    @property
    def held(self) -> np.ndarray:
        """[classes] bool: whether the class has an example."""
        return np.isin(np.arange(CLASSES), self.labels[self.kept])

    @property
    def padded_last(self) -> SmallFederation:
        """The federation in another order: first the examples, then the padding."""
        return self.ordered(np.argsort(~self.kept, kind="stable"))

    def ordered(self, order: np.ndarray) -> SmallFederation:
        """Return the same examples in another order."""
        return SmallFederation(*(column[order] for column in self))


def federation(dim: int, seed: int = 0, absent: int = 3, offset: float = 0.0) -> SmallFederation:
    """Draw examples of Gaussian classes with one covariance, and assign them to clients.

    No client has the class ``absent``. Only one client has the next class, and one client holds a single
    example.

    Args:
        dim: size of a feature.
        seed: seed of all draws.
        absent: the class without examples.
        offset: what is added to the class centres in each dimension; the centres have standard deviation 1.
    """
    rng = np.random.default_rng(seed)
    labels = rng.choice([c for c in range(CLASSES) if c != absent], EXAMPLES)
    clients = rng.integers(0, CLIENTS - 1, EXAMPLES)
    clients[labels == (absent + 1) % CLASSES] = 2
    labels[0], clients[0] = (absent + 2) % CLASSES, CLIENTS - 1
    centres = rng.normal(size=(CLASSES, dim)) + offset
    mixing = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    noise = rng.normal(size=(2, EXAMPLES, dim))
    features = centres[labels] + noise[0] @ mixing + 0.3 * noise[1]
    padding = 1 + rng.choice(EXAMPLES - 1, PADDING, replace=False)
    labels[padding[::2]], clients[padding[1::2]], features[padding] = -1, -1, np.nan
    return SmallFederation(features, labels.astype(np.int32), clients.astype(np.int32))


def degenerate(dim: int) -> dict[str, SmallFederation]:
    """Return extreme federations by name, such as "one client", "one example" or "no example"."""
    features, labels, clients = federation(dim).padded_last
    features = np.nan_to_num(features)
    place = np.arange(EXAMPLES, dtype=np.int32)
    flat = features.copy()
    flat[:, 1:] = 3
    none = np.full_like(labels, -1)
    return {
        "examples that are all equal": SmallFederation(np.ones_like(features), labels, clients),
        "clients with one example each": SmallFederation(features, labels, place),
        "one client": SmallFederation(features, labels, 0 * clients),
        "one class": SmallFederation(features, np.where(labels >= 0, 2, -1).astype(np.int32), clients),
        "features of which one varies": SmallFederation(flat, labels, clients),
        "one example": SmallFederation(features, np.where(place == 0, labels, none), clients),
        "no example": SmallFederation(features, none, clients),
    }


def corners(dim: int) -> np.ndarray:
    """Return class centres that lie far apart, at different distances from 0."""
    axes = np.vstack([np.eye(dim), -np.eye(dim)])
    return 2.0 * (2 + np.arange(CLASSES))[:, None] * axes[np.arange(CLASSES) % len(axes)]


def table(dim: int, seed: int = 0, absent: int = 3) -> Rows:
    """Draw rows that are means of a few Gaussian examples; class ``absent`` has none.

    The last rows are padding, with NaN as means.
    """
    rng = np.random.default_rng(seed)
    label = rng.choice([c for c in range(CLASSES) if c != absent], ROWS).astype(np.int32)
    count = rng.integers(1, 9, ROWS).astype(np.int32)
    mixing = rng.normal(size=(dim, dim)) / np.sqrt(dim) + 0.3 * np.eye(dim)
    centres = rng.normal(size=(CLASSES, dim))
    mean = centres[label] + rng.normal(size=(ROWS, dim)) @ mixing / np.sqrt(count)[:, None]
    mean[-PADDING:] = np.nan
    count[-3:], label[-PADDING:-3] = 0, -1
    return Rows(mean, count, label, (np.arange(ROWS) % CLIENTS).astype(np.int32))


def used(rows: Rows) -> np.ndarray:
    """Return a mask of the rows that are not padding."""
    return (np.asarray(rows.count) > 0) & (np.asarray(rows.label) >= 0)


def paired(dim: int, seed: int = 0) -> Rows:
    """Draw five rows for each class, with the same counts in all classes; then padding.

    In each class the first two rows have the same mean and client.
    """
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(CLASSES), len(_COUNTS)).astype(np.int32)
    place = np.tile(np.arange(len(_COUNTS)), CLASSES)
    spread = rng.normal(size=(len(label), dim)) @ (rng.normal(size=(dim, dim)) / np.sqrt(dim))
    mean = rng.normal(size=(CLASSES, dim))[label] + spread
    mean[place == 1] = mean[place == 0]
    client = (label + np.maximum(place - 1, 0)) % CLIENTS
    fill = ROWS - len(label)
    return Rows(
        np.pad(mean, [(0, fill), (0, 0)]),
        np.pad(np.tile(_COUNTS, CLASSES), (0, fill)).astype(np.int32),
        np.pad(label, (0, fill), constant_values=-1),
        np.pad(client, (0, fill)).astype(np.int32),
    )
