"""Makes the expected outputs in ``expected/`` with the references in PyTorch.

    python tests/backbones/make_expected.py

It was run with torch 1.13.1, torchvision 0.14.1, timm 1.0.9 and efficientnet-lite-pytorch 0.1.0. The tests
need none of them: they fill covfree's backbones with the same parameters (``seeded.py``) and compare.
"""

import sys
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from torchvision import transforms

sys.path.insert(0, str(Path(__file__).resolve().parent))
import seeded

FOLDER = Path(__file__).resolve().parent / "expected"
SIZE = 72  # sides 36, 18, 9, 5, 3: even ones and odd ones
LOGITS = 50
SWITCHED_OFF = (torch.nn.Dropout, torchvision.ops.StochasticDepth)


def fill(model, backbone):
    """Overwrite every parameter and running statistic."""
    state = model.state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items() if "num_batches" not in name}
    state |= {name: torch.from_numpy(value) for name, value in seeded.tensors(shapes, backbone).items()}
    model.load_state_dict(state, strict=True)
    return model.eval()


def run(model, classifier, size):
    """The classifier's input and its output."""
    seen = []
    handle = classifier.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        logits = model(torch.from_numpy(seeded.images(size).transpose(0, 3, 1, 2).copy()))
    handle.remove()
    features = seen[0]
    if features.ndim == 4:
        features = features.mean((2, 3))
    return features.numpy(), logits.numpy()[:, :LOGITS]


def from_torchvision(name):
    model = fill(getattr(torchvision.models, name)(weights=None), name)
    size = 224 if name.startswith("vit") else SIZE
    last = {"resnet": "fc", "vit": "heads.head", "squeezenet": "classifier.1"}
    path = next((path for start, path in last.items() if name.startswith(start)), "classifier.1")
    return model, model.get_submodule(path), size


def from_timm(name):
    model = fill(timm.create_model(name), name)
    return model, model.get_classifier(), 224 if name.startswith("vit") else SIZE


def from_lite(name):
    model = fill(EfficientNet.from_name(name, image_size=SIZE), name)
    return model, model._fc, SIZE


def save(name, reference, second=None):
    model, classifier, size = reference
    features, logits = run(model, classifier, size)
    arrays = {"features": features, "logits": logits}
    arrays["parameters"] = np.int64(sum(p.numel() for p in model.parameters()))
    if second is not None:
        # Under the other names the parameters are others.
        arrays["second_features"] = run(*second)[0][:1]
    if name == "resnet18":
        model.train()
        for module in model.modules():
            if isinstance(module, SWITCHED_OFF):
                module.p = 0.0
        arrays["train_features"] = run(model, classifier, size)[0]
        arrays["train_mean"] = model.bn1.running_mean.numpy()
        arrays["train_var"] = model.bn1.running_var.numpy()
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    apart = np.linalg.norm(features[0] - features[1]) / np.linalg.norm(features[0])
    size = np.abs(features).mean()
    print(f"{name}: {arrays['parameters']} parameters, features {size:.3g}, apart {apart:.3g}")


def save_preprocessed():
    """A few pixels of what torchvision's transforms make of noise."""
    arrays = {}
    for name, (resize, crop, mode) in seeded.CROPS.items():
        for shape in seeded.SHAPES:
            image = Image.fromarray(seeded.picture(shape))
            method = getattr(torchvision.transforms.InterpolationMode, mode.upper())
            steps = [transforms.Resize(resize, method), transforms.CenterCrop(crop)]
            cut = np.asarray(transforms.Compose(steps)(image))
            arrays[f"{name} {shape[0]} {shape[1]}"] = cut[:: seeded.STEP, :: seeded.STEP]
    np.savez_compressed(FOLDER / "crops.npz", **arrays)


def save_files():
    """Two small files as torch.save writes them, of today's form and of that before PyTorch 1.6."""
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {
        "whole": base,
        "transposed": base.T,  # views of one storage
        "row": base[1],
        "parameter": torch.nn.Parameter(torch.tensor([0.5, -2.0])),
        "half": torch.tensor([1.5, 2.5], dtype=torch.float16),
        "brain": torch.tensor([1.0, -3.0], dtype=torch.bfloat16),
        "double": torch.tensor([1e300], dtype=torch.float64),
        "bn.num_batches_tracked": torch.tensor(7),
        "empty": torch.zeros(0, 2),
    }
    for name, zipped in (("small", True), ("small-legacy", False)):
        torch.save(state, FOLDER / f"{name}.pth", _use_new_zipfile_serialization=zipped)


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    save_files()
    save_preprocessed()
    for name in ("squeezenet1_1", "resnet18", "resnet50"):
        save(name, from_torchvision(name))
    save("mobilenet_v2", from_torchvision("mobilenet_v2"), from_timm("mobilenetv2_100"))
    save("efficientnet_b0", from_torchvision("efficientnet_b0"), from_timm("efficientnet_b0"))
    for index in range(5):
        name = f"efficientnet_lite{index}"
        save(name, from_timm(f"tf_{name}"), from_lite(name.replace("_", "-")))
    for patch in (16, 32):
        save(f"vit_b_{patch}", from_torchvision(f"vit_b_{patch}"), from_timm(f"vit_base_patch{patch}_224"))
