"""``covfree extract``: computes features of images or texts, and writes them to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from covfree.backbones import sentence_encoder
from covfree.cli.options import NETWORK, WEIGHTS, ImagesFile, at_least
from covfree.data.texts import load_texts
from covfree.studies.extraction import (
    encode,
    extract,
    names_in,
    opened,
    option_of,
    read_images,
)


def extract_command(
    out: Annotated[Path, typer.Option(help="The .npz file to write; other commands take it as --dataset.")],
    images: ImagesFile = None,
    backbone: Annotated[str | None, NETWORK] = None,
    preprocessing: Annotated[
        str | None,
        typer.Option(
            help="With an .onnx --backbone: a preprocessor_config.json; or resize=256, crop=224, "
            "interpolation=bicubic, mean=0.485,0.456,0.406 and std=0.229,0.224,0.225, joined by colons. By "
            "default the preprocessor_config.json, or timm's config.json, in the network's folder."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="With an .onnx --backbone: the tensor that holds the features, if it has several outputs."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help=f"{WEIGHTS.help} With --texts: the folder of a sentence encoder, a BERT as "
            "sentence-transformers saves it; by default all-MiniLM-L6-v2."
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --images: a file of texts; .csv, .tsv or .jsonl with text, label and perhaps "
            "client and split, or .json with lists of \\[text, label] by split."
        ),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="With --texts: the column of the text, such as query.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="With --texts: the column of the label, such as intent.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            help="A regular expression for the beginning of each image's path below the folder, with groups "
            "(?P<class>...) and perhaps (?P<client>...) and (?P<split>...). By default paths begin with "
            "CLASS/, or with SPLIT/CLASS/ if there are folders train and test or val."
        ),
    ] = None,
    class_names: Annotated[
        Path | None,
        typer.Option(
            help="A text file with the names of all classes, one a line, in the order of their numbers; the "
            "same file at all sites of a federation. By default the classes found, sorted by name."
        ),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="A federation's federation.json, which sets network, classes and data type; other weights "
            "are refused before anything is computed."
        ),
    ] = None,
    client_column: Annotated[
        str | None,
        typer.Option(help="The column of the client, in a TensorFlow data set or in --texts."),
    ] = None,
    train_split: Annotated[
        str | None, typer.Option(help="Training split of a TensorFlow data set; by default train.")
    ] = None,
    test_split: Annotated[
        str | None,
        typer.Option(
            help="Test split of a TensorFlow data set; none for a third of each class. By default test, else "
            "validation."
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16"], typer.Option(help="Data type of the features in the file.")
    ] = "float32",
    batch_size: Annotated[int, typer.Option(help="Images or texts per batch.")] = 64,
    on_damaged: Annotated[
        Literal["stop", "skip"], typer.Option(help="At an image that cannot be read: stop, or skip it.")
    ] = "stop",
) -> None:
    """Compute features of images or texts with a pre-trained network, once, into a file.

    After an interruption, the same command goes on where it stopped. If the file exists and was made from the
    same images or texts by the same network, only labels, clients and split are updated.

    Examples:
      covfree extract --images photos --backbone efficientnet-lite0 --out photos.npz

      covfree extract --images photos --pattern "(?P<client>[^/]+)/(?P<class>[^/]+)/" --backbone resnet18
      --weights resnet18.safetensors --out photos.npz

      covfree extract --images photos --class-names classes.txt --backbone resnet18 --out photos.npz

      covfree extract --images photos --backbone model.onnx --output pooler_output --out photos.npz

      covfree extract --texts mails.csv --text-column query --label-column intent --out mails.npz
    """
    at_least("batch-size", batch_size, 1)
    if out.suffix != ".npz":
        raise ValueError(f"--out: expected a file that ends in .npz, got {str(out)!r}")
    splits = {"train": train_split, "test": test_split}
    names = names_in(class_names)
    if spec is not None:
        if texts is not None or class_names is not None:
            raise ValueError("--spec: expected --images beside it, and no --class-names")
        from covfree.deployment import Description
        from covfree.deployment.site import check_weights

        if backbone is not None and backbone.endswith(".onnx"):
            raise ValueError(f"--spec: expected a network of covfree beside it, got {backbone}")
        own = Description.load(spec)
        backbone = backbone or own.extractor.get("backbone")
        check_weights(own, backbone, weights)
        names, dtype = own.class_names, own.extractor["dtype"]
    if texts is not None:
        of_images = {
            **{"images": images, "backbone": backbone, "pattern": pattern},
            **{"train_split": train_split, "test_split": test_split},
            "on_damaged": None if on_damaged == "stop" else on_damaged,
        }
        if given := {name: value for name, value in of_images.items() if value is not None}:
            raise ValueError(f"{option_of(given)}: expected none beside --texts")
        given = {"text": text_column, "label": label_column, "client": client_column}
        columns = {name: own for name, own in given.items() if own is not None}
        found = load_texts(texts, columns=columns, class_names=names)
        encode(found, sentence_encoder(weights), out, dtype=dtype, batch_size=batch_size)
        return
    for name, value in {"text-column": text_column, "label-column": label_column}.items():
        if value is not None:
            raise ValueError(f"--{name}: expected --texts beside it")
    if images is None or backbone is None:
        raise ValueError("expected --images and --backbone, or --texts")
    # Find the weights first, as the data may be a far larger download.
    network, found = opened(backbone, weights, output, preprocessing)
    data = read_images(images, pattern=pattern, splits=splits, client_column=client_column, class_names=names)
    extract(data, network, out, weights=found, dtype=dtype, batch_size=batch_size, on_damaged=on_damaged)
