"""FedCOF in PyTorch, for ``peers.py``: written here in the official code's structure, and the official code.

The structure: a dictionary a client, a loop over clients and classes, one [d, d] covariance a class, and
``torch.linalg.pinv``. Where the official code keeps all classes' covariances, the peer here adds each to the
Gram matrix at once, which needs less memory.

The official code (https://github.com/dipamgoswami/FedCOF) is not part of this repository. `official_module`
loads its ``federate_classes.py`` from a folder, for the classes ``FedCOFClient(user, features, labels)`` with
``compute`` and ``send``, and ``FedCOFServer(data, classes, dim, gamma)`` with ``aggregate`` and
``get_classifier_weights``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

_CLASSES = {
    "FedCOFClient": ("compute", "send"),
    "FedCOFServer": ("aggregate", "get_classifier_weights"),
}


def official_module(folder: Path) -> ModuleType:
    """Load the official code's classes.

    Raises:
        FileNotFoundError: if the folder has no ``federate_classes.py``.
        AttributeError: naming what that file lacks.
    """
    path = folder / "federate_classes.py"
    spec = importlib.util.spec_from_file_location("federate_classes", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise FileNotFoundError(f"--official: expected federate_classes.py in the folder; no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, methods in _CLASSES.items():
        missing = [m for m in methods if not hasattr(getattr(module, name, None), m)]
        if missing:
            raise AttributeError(f"--official: {path.name} has no {name} with {' and '.join(missing)}")
    return module


def client_data(
    features: np.ndarray, labels: np.ndarray, clients: np.ndarray
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Features and labels of each client."""
    order = np.argsort(clients, kind="stable")
    bounds = np.cumsum(np.bincount(clients))[:-1]
    x, y = torch.from_numpy(features[order]), torch.from_numpy(labels[order].astype(np.int64))
    parts = zip(torch.tensor_split(x, bounds.tolist()), torch.tensor_split(y, bounds.tolist()), strict=True)
    return dict(enumerate(parts))


def messages(
    means: np.ndarray, counts: np.ndarray, labels: np.ndarray, clients: np.ndarray
) -> dict[int, dict[str, dict[int, Any]]]:
    """What each client sends: a mean and a count for each of its classes."""
    rows = torch.from_numpy(means)
    sent: dict[int, dict[str, dict[int, Any]]] = {}
    for mean, count, label, client in zip(
        rows, counts.tolist(), labels.tolist(), clients.tolist(), strict=True
    ):
        own = sent.setdefault(client, {"class_means": {}, "sample_per_mean": {}})
        own["class_means"][label] = mean
        own["sample_per_mean"][label] = count
    return sent


def class_rows(sent: dict[int, dict[str, dict[int, Any]]]) -> tuple[np.ndarray, np.ndarray]:
    """Means and counts as tables, by client and class."""
    pairs = [(client, label) for client in sorted(sent) for label in sorted(sent[client]["class_means"])]
    means = np.stack([sent[client]["class_means"][label].numpy() for client, label in pairs])
    return means, np.array([sent[client]["sample_per_mean"][label] for client, label in pairs])


def client_messages(
    data: dict[int, tuple[torch.Tensor, torch.Tensor]],
) -> dict[int, dict[str, dict[int, Any]]]:
    """Class means and counts, client by client and class by class."""
    sent: dict[int, dict[str, dict[int, Any]]] = {}
    for client, (features, labels) in data.items():
        means, counts = {}, {}
        for label in torch.unique(labels).tolist():
            own = features[labels == label]
            means[label], counts[label] = own.mean(0), len(own)
        sent[client] = {"class_means": means, "sample_per_mean": counts}
    return sent


def fedcof(
    sent: dict[int, dict[str, dict[int, Any]]], num_classes: int, dim: int, gamma: float
) -> torch.Tensor:
    """Weights [classes, dim] of FedCOF's ridge head (Alg. 1), class by class."""
    means: dict[int, list[torch.Tensor]] = {c: [] for c in range(num_classes)}
    counts: dict[int, list[float]] = {c: [] for c in range(num_classes)}
    for message in sent.values():
        for label, mean in message["class_means"].items():
            means[label].append(mean)
            counts[label].append(float(message["sample_per_mean"][label]))
    gram, sums = torch.zeros(dim, dim), torch.zeros(num_classes, dim)
    size = 0.0
    for label in range(num_classes):
        if not means[label]:
            continue
        rows, weight = torch.stack(means[label]), torch.tensor(counts[label])
        total = float(weight.sum())
        sums[label] = weight @ rows
        away = (rows - sums[label] / total) * weight.sqrt()[:, None]
        covariance = away.T @ away / max(len(rows) - 1, 1) + gamma * torch.eye(dim)
        gram += (total - 1) * covariance
        size += total
    grand = sums.sum(0) / size
    gram += size * torch.outer(grand, grand)
    return torch.nn.functional.normalize(sums @ torch.linalg.pinv(gram))


def torch_client(load: Callable[[str], np.ndarray]) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """The client's side, and how to read what it gives."""
    data = client_data(load("features"), load("labels"), load("clients"))
    return lambda: client_messages(data), class_rows


def torch_server(
    load: Callable[[str], np.ndarray], num_classes: int, gamma: float
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """The server's side, and how to read what it gives."""
    means = load("row_means")
    sent = messages(means, load("row_counts"), load("row_labels"), load("row_clients"))
    return lambda: fedcof(sent, num_classes, means.shape[1], gamma), _weight


def official_client(
    load: Callable[[str], np.ndarray], folder: Path
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """The official code's client side."""
    module = official_module(folder)
    data = client_data(load("features"), load("labels"), load("clients"))

    def run() -> dict[int, Any]:
        sent = {}
        for client, (features, labels) in data.items():
            party = module.FedCOFClient(client, features, labels)
            party.compute()
            sent[client] = party.send()
        return sent

    return run, class_rows


def official_server(
    load: Callable[[str], np.ndarray], num_classes: int, gamma: float, folder: Path
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """The official code's server side."""
    module = official_module(folder)
    means = load("row_means")
    sent = messages(means, load("row_counts"), load("row_labels"), load("row_clients"))

    def run() -> torch.Tensor:
        server = module.FedCOFServer(sent, num_classes, means.shape[1], gamma)
        server.aggregate()
        return server.get_classifier_weights()

    return run, _weight


def _weight(weight: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return weight.numpy().T, np.zeros(len(weight), np.float32)
