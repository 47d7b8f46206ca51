"""Where heed keeps what it could make again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's folder for that: of prepared text, unless told otherwise, and of compiled code."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heed"
