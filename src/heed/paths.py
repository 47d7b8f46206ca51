"""Where heed keeps what it could make again: prepared text and compiled code.

The user's cache folder, or where that cannot be had (no home, a home that cannot be written to) a folder of the user's
own among the temporary files, with a note.
"""

import atexit
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from heed.errors import ConfigError
from heed.fallbacks import note_fallback

_PRIVATE = 0o700
_BY_OTHERS = 0o022  # permission for the group, or anybody, to write


def cache_folder() -> Path:
    """The folder for that: it is there and can be written to."""
    try:
        wanted = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heed"
        wanted.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if not os.access(wanted, os.W_OK | os.X_OK):
            raise PermissionError(f"{wanted} cannot be written to")
    except (OSError, RuntimeError) as error:  # the latter: nobody knows where this user's home is
        own = temporary_folder()
        note_fallback(f"there is no cache folder ({error}): {own} is used, which may not last; set XDG_CACHE_HOME")
        return own
    return wanted


def temporary_folder() -> Path:
    """A folder among the temporary files that nobody else can write to; the same for all processes if it can be."""
    try:
        folder = Path(tempfile.gettempdir()) / f"heed-{_user()}"
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
        return folder if why_not_private(folder.lstat()) is None else _for_this_process()
    except FileExistsError:  # it is no folder
        return _for_this_process()
    except OSError as error:
        raise ConfigError(f"there is no folder for temporary files: {error}; set TMPDIR to one") from None


def why_not_private(state: os.stat_result) -> str | None:
    """Why others could change a file or folder, or have made it; none: they could not."""
    if stat.S_ISLNK(state.st_mode):
        return "it is a symbolic link"
    if hasattr(os, "getuid") and state.st_uid != os.getuid():
        return f"it belongs to user {state.st_uid}, not to {os.getuid()}"
    if hasattr(os, "getuid") and state.st_mode & _BY_OTHERS:
        return f"others can write to it (its mode is {stat.S_IMODE(state.st_mode):o}; chmod 700 changes that)"
    return None


@cache
def _for_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="heed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"
