"""The `heed` command: gathers the verbs, and turns every ending into an exit code.

    0 done    1 a defect of heed, with its traceback    2 the user's mistake, one `error:` line    130 interrupted

A path that cannot be read or written is the user's to mend, whichever verb found it, and so one `error:` line. When
the reader of standard output has had enough (`| head`), the command ends in silence, with 0.

Imports no torch: a verb that needs it imports it when called, so `heed --help` answers at once.
"""

import errno
import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from heed.cli.bench import bench
from heed.cli.convert import average, export, import_model, quantize
from heed.cli.demo import demo, microworld
from heed.cli.describe import describe
from heed.cli.doctor import doctor
from heed.cli.evaluate import evaluate
from heed.cli.experiments import ablate, heads, pronouns
from heed.cli.lm_and_classifier import classify, embed, generate
from heed.cli.look import look
from heed.cli.options import current_spelling
from heed.cli.plot import plot
from heed.cli.prepare import prepare
from heed.cli.serve import EPILOG, serve
from heed.cli.train import train
from heed.cli.translate import score, translate
from heed.errors import HeedError
from heed.version import __version__

# typer shows only this one of its usage errors; the others (unknown option, missing argument, …) are its siblings.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="heed",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": current_spelling},
)
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
        if sys.stdout is not None:
            sys.stdout.flush()  # while what goes wrong can still be explained
    except HeedError as error:
        _refuse(str(error))
    except UsageError as error:
        _refuse(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        code = _after(error)
    except SystemExit as ending:
        pipe = ending.__context__  # typer and rich turn a broken pipe into an exit
        code = _after(pipe) if isinstance(pipe, BrokenPipeError) else ending.code
    sys.exit(code)


def _after(error: OSError) -> int:
    """The exit code after an OSError that no verb expected; one that is not the user's to mend is raised again."""
    if isinstance(error, BrokenPipeError) and _reader_has_gone():
        _drop_output()
        return 0
    message = place_at_fault(error, sys.argv[1:])
    if message is None:
        raise error
    _drop_output()
    return _refuse(message)


_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_OF_A_PATH = _OF_THE_DISK | {
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


def place_at_fault(error: OSError, arguments: Sequence[str]) -> str | None:
    """What to say of a path or disk that cannot be used; none where the error may as well be a defect of heed.

    What is missing is the user's only if it was named, or is beside or above a path that was: all else should be there.
    """
    path = error.filename if isinstance(error.filename, str) else None
    if path is None:
        return error.strerror if error.errno in _OF_THE_DISK else None
    words = (word for argument in arguments for word in (argument, argument.partition("=")[2]))
    named = {folder for word in words for folder in Path(word).parents}
    if error.errno in _OF_A_PATH or (error.errno == errno.ENOENT and Path(path).parent in named):
        return f"{path}: {error.strerror}"
    return None


def _reader_has_gone() -> bool:
    """Whether nobody reads standard output any more; rich has then put the null device in its place."""
    output = select.poll()
    output.register(1, 0)
    closed = any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
    return closed or os.path.samestat(os.fstat(1), os.stat(os.devnull))


def _drop_output() -> None:
    """Let nothing try again to write what could not be written."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)
