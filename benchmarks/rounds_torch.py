"""FedAvg as a plain loop over clients in PyTorch, for ``rounds.py``. Needs ``torch``.

One model is trained for each client in turn, on slices of tensors in memory; there is no ``DataLoader``.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]


class Cnn(nn.Module):
    """Two convolutions and two dense layers, 105,866 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.third, self.last = nn.Linear(32 * 7 * 7, 64), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        """Scores of grey images [batch, 1, 28, 28]."""
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.last(F.relu(self.third(x.flatten(1))))


def fedavg(
    task: str, features: np.ndarray, labels: np.ndarray, size: int, rounds: int, rate: float, batch: int
) -> dict[str, Any]:
    """Seconds of each round, and the accuracy on the training examples after them."""
    torch.manual_seed(0)
    inputs, targets = torch.from_numpy(features), torch.from_numpy(labels.astype(np.int64))
    if task == "linear":
        model: Any = nn.Linear(features.shape[1], int(labels.max()) + 1)
    else:
        inputs, model = inputs.permute(0, 3, 1, 2).contiguous(), Cnn()
    shared = copy.deepcopy(model.state_dict())
    optimiser, seconds = torch.optim.SGD(model.parameters(), lr=rate), []
    for _ in range(rounds):
        start = time.perf_counter()
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for first in range(0, len(labels), size):
            model.load_state_dict(shared)
            order = first + torch.randperm(size)
            for place in range(0, size, batch):
                here = order[place : place + batch]
                optimiser.zero_grad(set_to_none=True)
                F.cross_entropy(model(inputs[here]), targets[here]).backward()
                optimiser.step()
            with torch.no_grad():
                for name, value in model.state_dict().items():
                    total[name] += value
        shared = {name: value / (len(labels) // size) for name, value in total.items()}
        seconds.append(time.perf_counter() - start)
    model.load_state_dict(shared)
    with torch.no_grad():
        right = (model(inputs).argmax(1) == targets).float().mean()
    return {"seconds": seconds, "accuracy": float(right)}
