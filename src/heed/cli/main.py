"""The `heed` command: registers the verbs in groups and turns exceptions into exit codes.

    0 done    1 a defect of heed, with its traceback    2 the user's mistake, one `error:` line    130 interrupted

A path that cannot be read or written counts as the user's mistake, whichever verb opened it. When the reader of
standard output closes the pipe (`| head`), the command ends silently with 0.

Imports no torch: a verb that needs it imports it when called, so that `heed --help` is fast. Of the verbs it imports
the one that is called.
"""

import errno
import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from heed.cli.options import current_spelling
from heed.errors import HeedError
from heed.model.torch_state import require_torch
from heed.version import __version__

# typer shows only this one of its usage errors; the others (unknown option, missing argument, …) are its siblings.
UsageError: Any = typer.BadParameter.__base__

_VERBS: dict[str, dict[str, str]] = {  # the module of each verb, by group
    "Train a model": {
        "demo": "demo",
        "train": "train",
        "distil": "distil",
        "doctor": "doctor",
        "prepare": "prepare",
        "plot": "plot",
        "average": "convert",
        "describe": "describe",
        "microworld": "demo",
    },
    "Use a model": {
        "translate": "translate",
        "generate": "lm_and_classifier",
        "classify": "lm_and_classifier",
        "embed": "lm_and_classifier",
        "serve": "serve",
    },
    "Look inside a model": {
        "look": "look",
        "heads": "experiments",
        "ablate": "experiments",
        "pronouns": "experiments",
        "claims": "claims",
    },
    "Move a model to or from another format": {"export": "convert", "import": "convert", "quantize": "convert"},
    "Measure quality and speed": {"evaluate": "evaluate", "score": "translate", "bench": "bench"},
}


def command_line(only: str | None = None) -> typer.Typer:
    """The command with all its verbs, or with `only` one, if it is known: importing all of them takes time."""
    app = typer.Typer(
        name="heed",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": current_spelling},
    )
    app.callback(invoke_without_command=True)(heed)
    is_known = any(only in modules for modules in _VERBS.values())
    for group, modules in _VERBS.items():
        for verb, name in modules.items():
            if is_known and verb != only:
                continue
            module = import_module(f"heed.cli.{name}")
            function = module.import_model if verb == "import" else getattr(module, verb)
            if verb == "bench":
                app.add_typer(function, name=verb, rich_help_panel=group)
            else:
                epilog = module.EPILOG if verb == "serve" else None
                app.command(verb, epilog=epilog, rich_help_panel=group)(function)
    return app


def __getattr__(name: str) -> typer.Typer:
    if name == "app":
        return _whole_command_line()
    raise AttributeError(f"module 'heed.cli.main' has no attribute {name!r}")


@cache
def _whole_command_line() -> typer.Typer:
    return command_line()


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
    code: int | str | None
    try:
        code = _run()
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
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        reason = ". ".join(str(error).split(". ")[:2])
        _refuse(f"too little memory ({reason}): use smaller batches, such as --set search.tokens_per_batch=2000")
    except SystemExit as ending:
        pipe = ending.__context__  # typer and rich turn a broken pipe into an exit
        code = _exit_code_after(pipe) if isinstance(pipe, BrokenPipeError) else ending.code
    sys.exit(code)


def _run() -> int | str | None:
    try:
        return command_line(sys.argv[1] if len(sys.argv) > 1 else None)(standalone_mode=False)
    except ImportError:
        require_torch()
        raise


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
