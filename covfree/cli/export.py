"""``covfree export``: writes a head, alone or after its network, to a file for another library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import covfree
from covfree.backbones import BACKBONES, backbone
from covfree.backbones.hub import find_weights
from covfree.cli.options import WEIGHTS, check_file
from covfree.studies.export import export_linear, export_onnx
from covfree.studies.extraction import backbone_of
from covfree.studies.names import of_options
from covfree.studies.progress import say


def export_command(
    head: Annotated[Path, typer.Option(help="A file of a head, from covfree fit, finetune or save_head.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    to: Annotated[
        Literal["onnx", "torch", "safetensors", "npz"], typer.Option(help="Format of the file.")
    ] = "onnx",
    network: Annotated[
        str | None,
        typer.Option(
            "--backbone",
            help="A network to put before the head: an .onnx file, or a name (see covfree backbones).",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="With an .onnx --backbone: the tensor that the head takes.")
    ] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
) -> None:
    """Write a head for ONNX runtimes or PyTorch, and print how far its scores are from covfree's.

    An ONNX file can contain any kind of head, and accepts any number of examples. The other formats
    contain a linear head's weight [C, d] and bias [C], named as in torch.nn.Linear.

    Examples:
      covfree export --head head.npz --out head.onnx

      covfree export --head head.npz --backbone model.onnx --output pooler_output --out classifier.onnx

      covfree export --head head.npz --to safetensors --out head.safetensors
    """
    check_file("out", out, {"torch": ".pt"}.get(to, f".{to}"), (head, network, weights))
    saved = covfree.load_head(head)
    if to != "onnx":
        if network is not None:
            raise ValueError(f"--backbone: expected --to onnx beside it, got --to {to}")
        export_linear(saved, to, out)
        say(f"wrote {out}: weight [{saved.num_classes}, {saved.dim}] and bias")
        return
    with of_options("head", "out", "output", network="backbone"):
        if network is None:
            most, largest = export_onnx(saved, out, output=output)
        elif network.endswith(".onnx"):
            if not Path(network).is_file():
                raise FileNotFoundError(f"--backbone: no such file: {network}")
            most, largest = export_onnx(saved, out, network=Path(network), output=output)
        else:
            name = backbone_of(network)
            chosen = backbone(name)
            params = chosen.load(find_weights(weights, BACKBONES[name]).path)
            most, largest = export_onnx(saved, out, network=chosen, params=params)
    say(
        f"wrote {out}; scores of onnxruntime and covfree differ by at most {most:.2g}, the largest "
        f"score is {largest:.3g}"
    )
