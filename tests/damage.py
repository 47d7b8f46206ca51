"""Ways to damage a file or folder in a test."""

import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], object]


def replace_by(make: Callable[[Path], object]) -> Damage:
    """Remove the file or folder and make something else at its path."""

    def damage(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        make(path)

    return damage
