"""The `heed` command: gathers the verbs, and turns every ending into an exit code.

    0 done    1 a defect of heed, with its traceback    2 the user's mistake, one `error:` line    130 interrupted

Imports no torch: a verb that needs it imports it when called, so `heed --help` answers at once.
"""

import sys
from typing import Annotated, Any

import typer

from heed.cli.ablate import ablate
from heed.cli.average import average
from heed.cli.bench import bench
from heed.cli.classify import classify
from heed.cli.demo import demo
from heed.cli.describe import describe
from heed.cli.doctor import doctor
from heed.cli.embed import embed
from heed.cli.evaluate import evaluate
from heed.cli.export import export
from heed.cli.generate import generate
from heed.cli.heads import heads
from heed.cli.import_model import import_model
from heed.cli.look import look
from heed.cli.microworld import microworld
from heed.cli.plot import plot
from heed.cli.prepare import prepare
from heed.cli.pronouns import pronouns
from heed.cli.quantize import quantize
from heed.cli.score import score
from heed.cli.serve import EPILOG, serve
from heed.cli.train import train
from heed.cli.translate import translate
from heed.errors import HeedError
from heed.version import __version__

# typer shows only this one of its usage errors; the others (unknown option, missing argument, …) are its siblings.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(name="heed", add_completion=False, pretty_exceptions_enable=False)
app.command()(demo)
app.command()(describe)
app.command()(doctor)
app.command()(prepare)
app.command()(train)
app.command()(translate)
app.command()(score)
app.command()(generate)
app.command()(classify)
app.command()(embed)
app.command()(evaluate)
app.command()(average)
app.command()(plot)
app.command()(look)
app.command()(ablate)
app.command()(heads)
app.command()(pronouns)
app.command(epilog=EPILOG)(serve)
app.command()(export)
app.command()(quantize)
app.command("import")(import_model)
app.command()(microworld)
app.add_typer(bench, name="bench")


@app.callback(invoke_without_command=True)
def heed(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """The Transformer of "Attention Is All You Need", whole, as software people use."""
    if version:
        typer.echo(f"heed {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run one command and exit."""
    try:
        code = app(standalone_mode=False)
    except HeedError as error:
        _refuse(str(error))
    except UsageError as error:
        _refuse(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


def _refuse(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)
