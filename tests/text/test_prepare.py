import os
import time
from pathlib import Path

from tests.training.test_batches import prepared, words


def abandoned(cache: Path, name: str, hours: float) -> Path:
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "source.ids").write_bytes(b"half")
    then = time.time() - 3600 * hours
    for path in (folder / "source.ids", folder):
        os.utime(path, (then, then))
    return folder


def test_what_a_killed_process_left_half_built_is_swept_up_and_what_is_being_built_is_not(tmp_path: Path) -> None:
    old, young = (abandoned(tmp_path / "cache", f".building-{hours}", hours) for hours in (2, 0.5))
    done = abandoned(tmp_path / "cache", "0123456789abcdef", 2)
    prepared(tmp_path, [(words(5), words(5, 1), 1.0)])
    assert not old.exists()
    assert young.exists()
    assert done.exists()
