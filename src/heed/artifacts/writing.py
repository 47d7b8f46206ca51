"""Files to a folder that is whole or absent, whatever happens meanwhile.

Enters: a path, and the content of each file by name. Leaves: a folder with a manifest. Knows nothing of models.

A folder is written beside its place, brought safely to the disk and renamed into it. Where it replaces another one, the
new one is first put whole into a folder inside, `.publishing`; from that moment on this is the one that is read, until
all its files are in their places. So a crash at any moment leaves the old model or the new one, on every file system,
and a folder that holds other things too, as a run's does, needs no moment in which it is not there.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heed.errors import FolderError

FORMAT = 1
MANIFEST = "manifest.json"
EXPORTED = "heed.json"  # a model exported to another system's format has this beside the other's files
INT8_WEIGHTS = "model.int8.safetensors"  # the weights of a quantised model (quantization.py)
PUBLISHING = ".publishing"  # in a folder whose model is being replaced: the new one, whole
_OPTIONAL = frozenset(("source_tokenizer.json", INT8_WEIGHTS, EXPORTED))  # which not every model folder has
_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder, whole or not at all; a model that is there already is replaced."""
    if path.exists():
        publish(path, files)
    else:
        with _explaining(path, files):
            _build(path, files)


def publish(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a model folder's files into a folder that may hold other things too, in the place of the model there."""
    with _explaining(path, files):
        finish_publishing(path)
        _build(path / PUBLISHING, files)
        finish_publishing(path)


def finish_publishing(path: Path) -> None:
    """Move a new model's files from `.publishing` into the folder; done again where a crash interrupted it."""
    fresh = path / PUBLISHING
    if not (fresh / MANIFEST).is_file():
        return
    names = sorted((file.name for file in fresh.iterdir()), key=MANIFEST.__eq__)  # the manifest last
    for name in (_OPTIONAL | _listed(path)) - set(names):
        (path / name).unlink(missing_ok=True)
    for name in names:
        _put(fresh / name, path / name)
    sync(path)
    done = path / ".published"
    shutil.rmtree(done, ignore_errors=True)
    fresh.rename(done)  # in one moment: half of it would not be a model
    shutil.rmtree(done)
    sync(path)


def current(path: Path) -> Path:
    """Where the model of a folder is to be read: in `.publishing` if `publish` was interrupted, else in the folder."""
    fresh = path / PUBLISHING
    return fresh if (fresh / MANIFEST).is_file() else path


def _build(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder that is not there yet."""
    building = _beside(path)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for name, content in files.items():
        write_and_sync(building / name, content)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    write_and_sync(building / MANIFEST, as_json({"format": FORMAT, "sha256": sums}))
    sync(building)
    building.rename(path)
    sync(path.parent)


def _beside(path: Path) -> Path:
    return path.parent / f".{path.name}.writing"


def _put(file: Path, place: Path) -> None:
    """Link or copy a file to another path, which at every moment is the old file or the new one."""
    new = _beside(place)
    new.unlink(missing_ok=True)
    try:
        os.link(file, new)
    except OSError:  # not every file system has links
        write_and_sync(new, file.read_bytes())
    new.replace(place)


def _listed(path: Path) -> set[str]:
    """The files that a folder's manifest names, as far as it can be read."""
    try:
        names = set(json.loads((path / MANIFEST).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    return {name for name in names if Path(name).name == name}


@contextmanager
def _explaining(path: Path, files: Mapping[str, bytes]) -> Iterator[None]:
    """What the system refuses while a folder is written, as a `FolderError`; what is half written is removed."""
    try:
        yield
    except OSError as error:
        for half in (_beside(path), _beside(path / PUBLISHING)):
            shutil.rmtree(half, ignore_errors=True)
        what = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in _FULL:
            there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
            needed, free = sum(map(len, files.values())), shutil.disk_usage(there).free
            what += f": {needed / 1e6:,.2f} MB are needed, {free / 1e6:,.2f} MB are free. What was there stays"
        raise FolderError(what) from None


def as_json(value: object) -> bytes:
    """A value as this project writes JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def write_and_sync(path: Path, content: bytes) -> None:
    """Write a file and bring it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Bring a file, or a folder's own entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
