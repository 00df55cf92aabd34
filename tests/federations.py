"""Small ragged federations, all of one shape so that they share compiled functions."""

from typing import NamedTuple

import numpy as np

EXAMPLES, DIM, CLASSES, CLIENTS = 80, 5, 6, 9
ABSENT, ALONE = 3, 4  # a class that nobody holds; a class that one client holds


class Federation(NamedTuple):
    """Flat examples; the features of padding are NaN."""

    features: np.ndarray
    labels: np.ndarray
    clients: np.ndarray

    @property
    def kept(self) -> np.ndarray:
        return (self.labels >= 0) & (self.clients >= 0)

    @property
    def clean(self) -> "Federation":
        """Without padding."""
        return Federation(*(x[self.kept] for x in self))

    def with_features(self, features) -> "Federation":
        return self._replace(features=features)


def make(seed: int = 0, *, offset: float = 0.0, num_padding: int = 7, equal: bool = False) -> Federation:
    """A federation with an absent class, a class of one client, a client with one example, and padding.

    ``offset`` moves all features away from 0, by so many of their spreads.
    """
    rng = np.random.default_rng(seed)
    labels = rng.choice([c for c in range(CLASSES) if c != ABSENT], EXAMPLES)
    clients = rng.integers(0, CLIENTS - 1, EXAMPLES)
    clients[labels == ALONE] = 2
    clients[0] = CLIENTS - 1  # a client with one example
    labels[0] = 0
    mixing = rng.normal(size=(DIM, DIM)) / np.sqrt(DIM)
    centres = rng.normal(size=(CLASSES, DIM)) + offset
    features = (
        centres[labels] + rng.normal(size=(EXAMPLES, DIM)) @ mixing + 0.3 * rng.normal(size=(EXAMPLES, DIM))
    )
    if equal:
        features = np.ones((EXAMPLES, DIM))
    padding = 1 + rng.choice(EXAMPLES - 1, num_padding, replace=False)
    # Some are padding by their label, some by their client.
    labels[padding[: num_padding // 2]] = -1
    clients[padding[num_padding // 2 :]] = -1
    features[padding] = np.nan
    return Federation(features, labels.astype(np.int32), clients.astype(np.int32))


def one_example_each(seed: int = 0) -> Federation:
    """Every client holds a single example: every row is an example."""
    federation = make(seed, num_padding=0)
    return federation._replace(clients=np.arange(EXAMPLES, dtype=np.int32))


def rows(federation: Federation, precision, oracle_rows, *, padding: int = 0):
    """The oracle's rows as the library's, padded with rows of NaN."""
    import covfree

    dim = federation.features.shape[1]
    mean = np.stack([x for x, _, _ in oracle_rows] + [np.full(dim, np.nan)] * padding)
    count = np.array([n for _, n, _ in oracle_rows] + [0, 7] * (padding // 2) + [0] * (padding % 2))
    label = np.array([y for _, _, y in oracle_rows] + [1, -1] * (padding // 2) + [-1] * (padding % 2))
    return covfree.Rows(precision.array(mean), precision.array(count), precision.array(label))
