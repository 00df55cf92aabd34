"""Make extractors from PyTorch modules: of timm, torchvision, Hugging Face, MONAI, or your own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from covfree.backbones.extractors import Extractor, Prepared, from_function, made, one_of, pooled
from covfree.backbones.table import Preprocessing


def from_torch(
    module: Any,
    transform: Preprocessing | Callable[[Any], Any],
    *,
    output: str | None = None,
    name: str | None = None,
    transform_id: str | None = None,
) -> Extractor:
    """Make an extractor from a PyTorch module; it computes on the device of the module's parameters.

    The module is put in evaluation mode, and runs without gradients. It is called once, to determine d.

    Args:
        module: a ``torch.nn.Module`` from images [n, 3, height, width] to features [n, d], such as a network
            of timm with ``num_classes=0``.
        transform: function from a Pillow image to a tensor [3, height, width] of one size, as torchvision and
            timm make it for evaluation; or a `Preprocessing`.
        output: if the module returns several tensors by name, as Hugging Face's do, the name of the features,
            such as ``"pooler_output"``.
        name: the network's name; by default that of the module's class. ``output``, if given, is appended to
            it after a colon.
        transform_id: a text that identifies the transform. None takes ``repr(transform)``, which is enough
            for torchvision's.

    Returns:
        The extractor. ``weights`` is the SHA-256 of names, shapes and numbers of the module's state.

    Raises:
        TypeError: if ``module`` is no module, or ``transform`` neither a function nor a `Preprocessing`.
        ValueError: if the transform's text does not identify it, or the module does not return features [n,
            d].
        ImportError: if PyTorch is not installed.
    """
    # Import it without `optional`: a user with a module has PyTorch, and covfree has no extra for it.
    import torch  # pyright: ignore[reportMissingImports]

    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    name = name or type(module).__name__
    module.eval()
    parameter = next(module.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device

    def run(images: np.ndarray) -> np.ndarray:
        module.eval()
        with torch.inference_mode():
            found = module(torch.from_numpy(images).to(device))
            if not isinstance(found, torch.Tensor):
                names = list(found.keys()) if hasattr(found, "keys") else []
                if not names:
                    raise ValueError(f"module: expected a tensor, or several by name, got {type(found)}")
                found = found[one_of(output, names, "output", name)]
            elif output is not None:
                raise ValueError(f"output: expected None, as {name} returns one tensor, got {output!r}")
            return pooled(found.to(torch.float32).cpu().numpy())

    whole, weights = f"{name}:{output}" if output else name, _digest(module)
    if isinstance(transform, Preprocessing):

        def compute(images: np.ndarray) -> np.ndarray:
            return run(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))

        return from_function(compute, name=whole, weights=weights, preprocessing=transform)
    if not callable(transform):
        raise TypeError(f"transform: expected a function or a Preprocessing, got {type(transform).__name__}")
    text = repr(transform) if transform_id is None else transform_id
    if " at 0x" in text:
        raise ValueError(
            f"transform_id: expected a text that identifies the transform, as {text} does not; got None"
        )

    def prepare(image: Any) -> np.ndarray:
        from PIL import Image

        image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        return np.asarray(transform(image.convert("RGB")), np.float32)

    probe = prepare(np.zeros((256, 256, 3), np.uint8))
    inputs = Prepared(prepare, probe.shape, "float32")
    return made(run, probe[None], name=whole, weights=weights, preprocessing=text, inputs=inputs)


def _digest(module: Any) -> str:
    """Compute the SHA-256 of names, types, shapes and numbers of a module's parameters and buffers."""
    import torch  # pyright: ignore[reportMissingImports]

    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        own = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {own.dtype} {list(own.shape)}".encode())
        digest.update(own.reshape(-1).view(torch.uint8).numpy().tobytes() if own.numel() else b"")
    return digest.hexdigest()
