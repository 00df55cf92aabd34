"""The commands: arguments in, a table out, errors in one line."""

from __future__ import annotations

import sys
from typing import Annotated

import jax
import typer

import covfree
from covfree import figures
from covfree.checks import check_strength
from covfree.cli import accuracy_plot, report
from covfree.cli.backbones import backbones_command
from covfree.cli.compare import Federation, Result, Run, compare, entries, environment, make_methods, title_of
from covfree.cli.extract import extract_command
from covfree.cli.finetune import finetune_command
from covfree.cli.options import (
    DATASET,
    IMAGES,
    NETWORK,
    WEIGHTS,
    Alpha,
    Dataset,
    Format,
    NumClients,
    Out,
    Partition,
    TestFile,
    at_least,
    count_noise_of,
    make_folder,
    method_names,
    shrinkage_of,
)
from covfree.cli.progress import progress_bar
from covfree.cli.source import heading, law_of, source_of
from covfree.cli.tables import show
from covfree.data import load
from covfree.federation import partition_statistics, plot_partition

app = typer.Typer(
    name="covfree",
    help="Training-free federated learning: classifiers in closed form from what clients send once.",
    epilog="Start with: covfree compare --dataset digits",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("compare")
def compare_command(
    dataset: Annotated[str | None, DATASET] = None,
    test_file: TestFile = None,
    images: Annotated[str | None, IMAGES] = None,
    backbone: Annotated[str | None, NETWORK] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    methods: Annotated[
        str, typer.Option(help=f"'all', or comma-separated: {', '.join(entries())}.")
    ] = "fedncm,fed3r,fedcof",
    clients: NumClients = 100,
    alpha: Alpha = 0.1,
    partition: Partition = "inner_dirichlet",
    seeds: Annotated[int, typer.Option(help="Number of seeds (splits and partitions), counted from 0.")] = 5,
    shrinkage: Annotated[
        str | None, typer.Option(help="'auto' or the paper's γ, for the methods of FedCOF's kind and qda.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="'lda' or 'ridge', for fedcof.")] = None,
    scatter: Annotated[
        str | None,
        typer.Option(help="'within', 'both' or 'between': the Gram matrix of fedcof with --head ridge."),
    ] = None,
    ridge: Annotated[float | None, typer.Option(help="λ of fed3r and afl.")] = None,
    num_subsets: Annotated[
        int | None, typer.Option(help="Means a client sends of a class, for fedcof, -components, -sketches.")
    ] = None,
    subset_size: Annotated[
        int | None, typer.Option(help="Examples behind such a mean, at least, where the client has them.")
    ] = None,
    num_sketches: Annotated[
        int | None, typer.Option(help="Sketches a client sends, for fedcof-sketches.")
    ] = None,
    num_directions: Annotated[
        int | None, typer.Option(help="Residual directions a client sends, for fedcof-residuals.")
    ] = None,
    num_features: Annotated[
        int | None, typer.Option(help="Random features, for fedcof-random and fed3r-random.")
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="Width of the RBF kernel, for fed3r-random.")] = None,
    num_components: Annotated[
        int | None, typer.Option(help="Gaussians of a client's class, for fedpft.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of products, for fedcof-refined.")] = None,
    directions: Annotated[
        int | None, typer.Option(help="Directions of such a round, at most, for fedcof-refined.")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(help="Noise on the counts that clients send: uniform:ε, gaussian:ε or laplace:ε."),
    ] = None,
    out: Out = None,
    output_format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.table,
) -> None:
    """Compare methods on one federation: accuracy, bytes up and time.

    Examples:
      covfree compare --methods fedncm,fed3r,fedcof --alpha 0.5 --out results

      covfree compare --dataset features.npz --shrinkage auto --format json

      covfree compare --images photos --backbone efficientnet-lite0
    """
    at_least("seeds", seeds, 1)
    if ridge is not None:
        check_strength("--ridge", ridge)
    sizes = {
        "num_subsets": num_subsets,
        "subset_size": subset_size,
        "num_sketches": num_sketches,
        "num_directions": num_directions,
        "num_features": num_features,
        "num_components": num_components,
        "rounds": rounds,
        "directions": directions,
    }
    for name, size in sizes.items():
        if size is not None:
            at_least(name.replace("_", "-"), size, 1)
    choices = {"head": head, "scatter": scatter}
    numbers = {"shrinkage": shrinkage_of(shrinkage), "ridge": ridge, "sigma": sigma, **choices, **sizes}
    numbers = {name: number for name, number in numbers.items() if number is not None}
    chosen = make_methods(method_names(methods), numbers)
    if noise is not None:
        chosen = {name: method.with_transforms(count_noise_of(noise)) for name, method in chosen.items()}
    federation = Federation(clients, partition, alpha)
    source = source_of(dataset, test_file, images, backbone, weights)
    # Once before any work, so that a bad argument shows at once.
    federation.assign(source.outline, seed=0)
    make_folder(out)
    title = heading(source.load(0), federation, seeds)

    runs: list[Run] = []
    with progress_bar() as progress:
        task = progress.add_task("", total=seeds * len(chosen))
        for run in compare(source.load, chosen, federation, range(seeds)):
            runs.append(run)
            progress.update(task, advance=1, description=f"seed {run.seed}, {run.method}")
    results = [
        Result(name, title_of(name, numbers), tuple(run for run in runs if run.method == name))
        for name in chosen
    ]
    config = {
        **source.config,
        "methods": list(chosen),
        "clients": clients,
        "partition": partition,
        "alpha": alpha,
        "seeds": seeds,
        "noise": noise,
        **numbers,
    }
    content = report.as_json(config, environment(), results)
    lines, records = [report.cells(result) for result in results], report.as_records(results)
    show(output_format, title, report.COLUMNS, lines, records, content)
    if out is not None:
        (out / "results.json").write_text(content + "\n", encoding="utf-8")
        picture, *_ = accuracy_plot.plot(out / "accuracy_vs_bytes.png", title, results)
        print(f"wrote {out / 'results.json'} and {picture} (also as PDF and SVG)", file=sys.stderr)


@app.command("partition")
def partition_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = 100,
    alpha: Alpha = 0.1,
    partition: Partition = "inner_dirichlet",
    seed: Annotated[int, typer.Option(help="Seed of the split and the partition.")] = 0,
    out: Out = None,
) -> None:
    """Show how a partition spreads the training examples: sizes, classes per client, means per class.

    Example:
      covfree partition --clients 30 --alpha 0.5 --out results
    """
    at_least("seed", seed, 0)
    data = load(dataset, test=test_file, seed=seed)
    federation = Federation(clients, partition, alpha)
    owners = federation.assign(data, seed)
    make_folder(out)
    statistics = partition_statistics(data.train_labels, owners, data.num_classes)
    print(statistics.as_table())
    if out is not None:
        figure = plot_partition(statistics, title=f"{data.name}, {law_of(data, federation)}, seed {seed}")
        picture, *_ = figures.save_all(figure, out / "partition.png")
        print(f"wrote {picture} (also as PDF and SVG)", file=sys.stderr)


@app.command("diagnose")
def diagnose_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = 100,
    alpha: Alpha = 0.1,
    partition: Partition = "inner_dirichlet",
    method: Annotated[
        str, typer.Option(help="A method whose clients send rows, such as fedcof or fedcof-sketches.")
    ] = "fedcof",
    seed: Annotated[int, typer.Option(help="Seed of the split and the partition.")] = 0,
) -> None:
    """Say how good the covariance is that the clients' messages allow, and whether clients differ.

    Example:
      covfree diagnose --clients 30 --alpha 0.5 --method fedcof-components
    """
    at_least("seed", seed, 0)
    chosen = make_methods([method], {})[method]
    if chosen.message is not None:
        raise ValueError(f"--method: expected one whose clients send rows, got {method!r}")
    data = load(dataset, test=test_file, seed=seed)
    owners = Federation(clients, partition, alpha).assign(data, seed)
    key = jax.random.key(seed)
    rows = covfree.summarise(chosen, data.train_features, data.train_labels, owners, key=key)
    print(covfree.diagnose(rows, num_classes=data.num_classes, method=chosen))


app.command("finetune")(finetune_command)
app.command("extract")(extract_command)
app.command("backbones")(backbones_command)


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code: 2 for bad arguments, which get one line."""
    try:
        code = app(arguments, standalone_mode=False)
    # No TypeError: the parser made every argument's type, so one is a bug, which shows where it is.
    except (ValueError, FileNotFoundError) as error:
        return _error(str(error), 2)
    except OSError as error:
        return _error(str(error), 1)
    except ImportError as error:
        # With a cause it says which extra to install; without one it is a bug.
        if error.__cause__ is None:
            raise
        return _error(str(error), 1)
    except Exception as error:
        # The argument parser's exceptions, whose class has moved between releases of typer, say what to
        # print (nothing, where they have shown the help) and which code to exit with.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        code = getattr(error, "exit_code", 2)
        return _error(message(), code) if message() else code
    # The parser turns an interrupt into this code without a word.
    return _error("interrupted", 130) if code == 130 else code or 0


def _error(message: str, code: int) -> int:
    print("covfree: " + " ".join(message.split()), file=sys.stderr)
    return code
