"""The `heed` command: registers the verbs in groups and turns exceptions into exit codes.

    0 done    1 a defect of heed, with its traceback    2 the user's mistake, one `error:` line    130 interrupted

A path that cannot be read or written counts as the user's mistake, whichever verb opened it. When the reader of
standard output closes the pipe (`| head`), the command ends silently with 0.

Imports no torch: a verb that needs it imports it when called, so that `heed --help` is fast.
"""

import errno
import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from heed.cli.bench import bench
from heed.cli.claims import claims
from heed.cli.convert import average, export, import_model, quantize
from heed.cli.demo import demo, microworld
from heed.cli.describe import describe
from heed.cli.distil import distil
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
_VERBS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train a model": (demo, train, distil, doctor, prepare, plot, average, describe, microworld),
    "Use a model": (translate, generate, classify, embed, serve),
    "Look inside a model": (look, heads, ablate, pronouns, claims),
    "Move a model to or from another format": (export, import_model, quantize),
    "Measure quality and speed": (evaluate, score),
}
for _group, _verbs in _VERBS.items():
    for _verb in _verbs:
        _name = "import" if _verb is import_model else _verb.__name__
        app.command(_name, epilog=EPILOG if _verb is serve else None, rich_help_panel=_group)(_verb)
app.add_typer(bench, name="bench", rich_help_panel="Measure quality and speed")


@app.callback(invoke_without_command=True)
def heed(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Train, use, inspect and serve the Transformer of "Attention Is All You Need"."""
    if version:
        typer.echo(f"heed {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run one command and exit."""
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error can still be reported
    except HeedError as error:
        _refuse(str(error))
    except UsageError as error:
        _refuse(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        code = _exit_code_after(error)
    except SystemExit as ending:
        pipe = ending.__context__  # typer and rich turn a broken pipe into an exit
        code = _exit_code_after(pipe) if isinstance(pipe, BrokenPipeError) else ending.code
    sys.exit(code)


def _exit_code_after(error: OSError) -> int:
    """The exit code after an OSError that no verb handled; raises the error again if it may be a defect of heed."""
    if isinstance(error, BrokenPipeError) and _stdout_is_closed():
        _discard_output()
        return 0
    message = path_error(error, sys.argv[1:])
    if message is None:
        raise error
    _discard_output()
    return _refuse(message)


_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_PATH_ERRORS = _DISK_ERRORS | {
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


def path_error(error: OSError, arguments: Sequence[str]) -> str | None:
    """The message for a path or disk that cannot be used; None if the error may be a defect of heed.

    A missing file is the user's mistake only if its folder contains a path that the arguments name.
    """
    path = error.filename if isinstance(error.filename, str) else None
    if path is None:
        return error.strerror if error.errno in _DISK_ERRORS else None
    values = (value for argument in arguments for value in (argument, argument.partition("=")[2]))
    named_folders = {folder for value in values for folder in Path(value).parents}
    if error.errno in _PATH_ERRORS or (error.errno == errno.ENOENT and Path(path).parent in named_folders):
        return f"{path}: {error.strerror}"
    return None


def _stdout_is_closed() -> bool:
    """Whether the reader of standard output has closed it; rich may have put the null device in its place."""
    output = select.poll()
    output.register(1, 0)
    closed = any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
    return closed or os.path.samestat(os.fstat(1), os.stat(os.devnull))


def _discard_output() -> None:
    """Redirect standard output to the null device, so that the buffered rest fails no second time."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)
