"""Locates the cache folder for prepared text.

It is the user's cache folder; without a writable home it is a private folder among the temporary files, and a note says
so. Everything in it can be generated again.
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
_WRITABLE_BY_OTHERS = 0o022


def cache_folder() -> Path:
    """The cache folder, which exists and is writable."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heed"
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} is not writable")
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        fallback = temporary_folder()
        note_fallback(f"no cache folder ({error}): using {fallback}, which may be deleted; set XDG_CACHE_HOME")
        return fallback
    return folder


def temporary_folder() -> Path:
    """A temporary folder that only this user can write to; shared by all processes where possible."""
    try:
        folder = Path(tempfile.gettempdir()) / f"heed-{_user()}"
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
        return folder if why_not_private(folder.lstat()) is None else _process_folder()
    except FileExistsError:  # it is not a folder
        return _process_folder()
    except OSError as error:
        raise ConfigError(f"no folder for temporary files: {error}; set TMPDIR") from None


def why_not_private(state: os.stat_result) -> str | None:
    """Why another user could have created or could change a file or folder; None: nobody could."""
    if stat.S_ISLNK(state.st_mode):
        return "it is a symbolic link"
    if hasattr(os, "getuid") and state.st_uid != os.getuid():
        return f"it belongs to user {state.st_uid}, not to {os.getuid()}"
    if hasattr(os, "getuid") and state.st_mode & _WRITABLE_BY_OTHERS:
        return f"others can write to it (its mode is {stat.S_IMODE(state.st_mode):o}; run chmod 700)"
    return None


@cache
def _process_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="heed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"
