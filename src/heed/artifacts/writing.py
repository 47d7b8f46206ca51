"""Writes folders atomically: after a crash at any moment a folder is complete or absent.

Enters: a path, and the content of each file by name. Leaves: a folder with a manifest. Knows nothing of models.

A new folder is written under a temporary name beside its path, fsynced and renamed. To replace an existing model, the
new one is first written completely to the subfolder `.publishing`; from then on readers read that one, until all its
files have been moved up. So a crash at any moment leaves the old model or the new one, on every file system, and a
folder that holds other files too, as a run's does, never disappears.
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
LEXICON = "lexicon.json"  # words of the training sources, for spelling correction
EXPORTED = "heed.json"  # in a folder exported for another engine, beside the engine's files
INT8_WEIGHTS = "model.int8.safetensors"  # the weights of a quantised model (quantization.py)
PUBLISHING = ".publishing"  # in a folder whose model is being replaced: the complete new one
_OPTIONAL = frozenset(("source_tokenizer.json", LEXICON, INT8_WEIGHTS, EXPORTED))  # not every model folder has them
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder atomically; an existing model is replaced."""
    if path.exists():
        publish(path, files)
    else:
        with _raise_folder_error(path, files):
            _build(path, files)


def publish(path: Path, files: Mapping[str, bytes]) -> None:
    """Replace the model in a folder that may hold other files too, crash-safe."""
    with _raise_folder_error(path, files):
        finish_publishing(path)
        _build(path / PUBLISHING, files)
        finish_publishing(path)


def finish_publishing(path: Path) -> None:
    """Move a new model's files from `.publishing` into the folder; also completes a publish that crashed."""
    publishing = path / PUBLISHING
    if not (publishing / MANIFEST).is_file():
        return
    names = sorted((file.name for file in publishing.iterdir()), key=MANIFEST.__eq__)  # the manifest last
    for name in (_OPTIONAL | _listed_files(path)) - set(names):
        (path / name).unlink(missing_ok=True)
    for name in names:
        _link_or_copy(publishing / name, path / name)
    fsync(path)
    done = path / ".published"
    shutil.rmtree(done, ignore_errors=True)
    publishing.rename(done)  # atomic, unlike removing it file by file
    shutil.rmtree(done)
    fsync(path)


def current_version(path: Path) -> Path:
    """Where to read the model of a folder: in `.publishing` if `publish` was interrupted, else in the folder."""
    publishing = path / PUBLISHING
    return publishing if (publishing / MANIFEST).is_file() else path


def _build(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder under a temporary name, then rename it."""
    building = _temporary(path)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for name, content in files.items():
        write_and_sync(building / name, content)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    write_and_sync(building / MANIFEST, json_bytes({"format": FORMAT, "sha256": sums}))
    fsync(building)
    building.rename(path)
    fsync(path.parent)


def _temporary(path: Path) -> Path:
    return path.parent / f".{path.name}.writing"


def _link_or_copy(file: Path, destination: Path) -> None:
    """Atomically replace a file by a hard link to another, or by a copy."""
    new = _temporary(destination)
    new.unlink(missing_ok=True)
    try:
        os.link(file, new)
    except OSError:  # not every file system has hard links
        write_and_sync(new, file.read_bytes())
    new.replace(destination)


def _listed_files(path: Path) -> set[str]:
    """The files in a folder's manifest; empty if it cannot be read."""
    try:
        names = set(json.loads((path / MANIFEST).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    return {name for name in names if Path(name).name == name}


@contextmanager
def _raise_folder_error(path: Path, files: Mapping[str, bytes]) -> Iterator[None]:
    """Convert an OSError during writing to a `FolderError`, and remove incomplete files."""
    try:
        yield
    except OSError as error:
        for incomplete in (_temporary(path), _temporary(path / PUBLISHING)):
            shutil.rmtree(incomplete, ignore_errors=True)
        message = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in _DISK_FULL:
            parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
            needed, free = sum(map(len, files.values())), shutil.disk_usage(parent).free
            message += f": {needed / 1e6:,.2f} MB are needed, {free / 1e6:,.2f} MB are free. Old files are unchanged"
        raise FolderError(message) from None


def json_bytes(value: object) -> bytes:
    """A value as indented UTF-8 JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def write_and_sync(path: Path, content: bytes) -> None:
    """Write a file and fsync it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def fsync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk; Windows can open neither folders nor read-only files for that."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
