"""The typer application: registers the commands, runs one, and prints errors as one line."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

import covfree
from covfree.cli.audit import audit_command
from covfree.cli.backbones import backbones_command
from covfree.cli.compare import compare_command
from covfree.cli.diagnose import diagnose_command
from covfree.cli.export import export_command
from covfree.cli.extract import extract_command
from covfree.cli.federation import app as federation_app
from covfree.cli.finetune import finetune_command
from covfree.cli.heads import evaluate_command, fit_command
from covfree.cli.partition import partition_command
from covfree.cli.personalise import personalise_command
from covfree.core.registries import nearest
from covfree.methods import registry

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


def run(arguments: list[str], command: typer.Typer = app) -> int:
    """Run a command line and return its exit code.

    For an error, print one line; the code is then 2 for bad arguments, 130 for an interrupt, and else 1.
    """
    try:
        code = command(arguments, standalone_mode=False)
    # A TypeError is a bug, as the parser converts every argument, so let its traceback show.
    except (ValueError, FileNotFoundError) as error:
        return _error(str(error), 2)
    except OSError as error:
        return _error(str(error), 1)
    except ImportError as error:
        # An ImportError with a cause says which extra to install; without one it is a bug.
        if error.__cause__ is None:
            raise
        return _error(str(error), 1)
    except Exception as error:
        # The parser's exceptions (their class differs between releases of typer) have the message to print,
        # which is empty if the help was shown, and the exit code.
        if not hasattr(error, "format_message"):
            raise
        message, code = _parser_message(error), getattr(error, "exit_code", 2)
        return _error(message, code) if message else code
    # For an interrupt, the parser returns 130 without a message.
    return _error("interrupted", 130) if code == 130 else code or 0


def _error(message: str, code: int) -> int:
    print("covfree: " + " ".join(message.split()), file=sys.stderr)
    return code


def _parser_message(error: Exception) -> str:
    """Return the message of an error of the command line's parser.

    If a value is none of an option's choices, the message is reworded.
    """
    message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    choice = re.fullmatch(
        r"Invalid value for '(--[\w-]+)': (?:Value error, )?('.*') is not one of (.*?)\.?", message
    )
    if choice is None:
        return message
    option, came, choices = choice[1], choice[2], choice[3].replace("'", "")
    near = nearest(came.strip("'"), choices.split(", "))
    return f"{option}: expected one of {choices}, got {came}{near}"
