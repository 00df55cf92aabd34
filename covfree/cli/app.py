"""The typer application: registers the commands."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

import covfree
from covfree.cli.backbones import backbones_command
from covfree.cli.compare import compare_command
from covfree.cli.export import export_command
from covfree.cli.extract import extract_command
from covfree.cli.federation import app as federation_app
from covfree.cli.finetune import finetune_command
from covfree.cli.heads import evaluate_command, fit_command
from covfree.cli.inspect import audit_command, diagnose_command, partition_command
from covfree.cli.personalise import personalise_command
from covfree.methods import registry
from covfree.studies import console

app = typer.Typer(
    name="covfree",
    epilog="Start with: covfree compare --dataset digits",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"covfree {covfree.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def covfree_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Training-free federated learning: classifiers in closed form from what clients send once."""


app.command("partition")(partition_command)
app.command("diagnose")(diagnose_command)
app.command("audit")(audit_command)
app.command("compare", epilog=f"Methods: {', '.join(registry())}.")(compare_command)
app.command("fit")(fit_command)
app.command("evaluate")(evaluate_command)
app.command("export")(export_command)
app.command("finetune")(finetune_command)
app.command("personalise")(personalise_command)
app.command("extract")(extract_command)
app.command("backbones")(backbones_command)
app.add_typer(federation_app, name="federation")

# Runs a command line within this process, and returns its exit code.
run = partial(console.run, app)
