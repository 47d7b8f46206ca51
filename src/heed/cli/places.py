"""Where a verb writes: `--out`, or `-o`, is spelt alike everywhere."""

from pathlib import Path
from typing import Any

import typer

from heed.errors import ConfigError

_OLD_SPELLINGS = {"output": "out"}


def out_option(what: str) -> Any:
    """The option, with its help text."""
    return typer.Option("--out", "-o", parser=_path, metavar="PATH", help=what)


def current_spelling(name: str) -> str:
    """The name of an option as it is spelt now: an old spelling goes on working, and says the new one."""
    if name not in _OLD_SPELLINGS:
        return name
    typer.echo(f"note: --{name} is now spelt --{_OLD_SPELLINGS[name]}", err=True)
    return _OLD_SPELLINGS[name]


def _path(text: str) -> Path:
    if not text:  # Path("") is the current folder: a shell's unset variable would fill it
        raise ConfigError("--out names no path: it is empty, perhaps a variable of your shell that is not set")
    return Path(text)
