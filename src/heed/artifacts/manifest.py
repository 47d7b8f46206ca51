"""The manifest of a folder: which files belong to it, and the sha256 of each; and what a path without one is.

Enters: a path. Leaves: the files that its manifest lists, read only after they were found to be what it says; or an
error that says what the path is instead, another system's model for instance, and what to do with it. A file that lies
in the folder and is not listed does not belong to it and is never opened, whatever its name.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.artifacts.writing import FORMAT, MANIFEST, current
from heed.errors import FolderError
from heed.untrusted import LARGEST_JSON, open_regular, parse_json, read_regular, reason, short_repr

__all__ = ["FORMAT", "MANIFEST", "Listed", "hugging_face", "memory_of_this_machine", "verify"]

_HUGGING_FACE_FILES = ["pytorch_model.bin", "model.safetensors", "tf_model.h5", "flax_model.msgpack"]
_LARGEST_MANIFEST = 1 << 20
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Listed:
    """The files that a folder's manifest lists."""

    path: Path
    sums: Mapping[str, str]  # sha256 by name

    @classmethod
    def of(cls, path: Path) -> "Listed":
        """Read the manifest of a folder; where there is none, the error says what the path is instead."""
        path = current(path)
        manifest = path / MANIFEST
        try:
            content = read_regular(manifest, _LARGEST_MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise FolderError(_no_model_folder(path)) from None
        except (OSError, ValueError) as error:
            raise FolderError(f"{manifest} cannot be read: {reason(error)}") from None
        try:
            value = parse_json(content)
        except ValueError as error:
            raise FolderError(f"{manifest} is damaged: {reason(error)}") from None
        match value:
            case {"format": version, "sha256": dict(sums)}:
                pass
            case _:
                raise FolderError(f"{manifest} is damaged: it has no format and sha256, found {short_repr(value)}")
        if version != FORMAT or isinstance(version, bool):
            shown = short_repr(version)
            raise FolderError(f"{path} has format {shown}, and this heed reads format {FORMAT}: update heed")
        for name, expected in sums.items():
            if Path(name).name != name or "\0" in name or "\\" in name or name == MANIFEST:
                raise FolderError(f"{manifest} is damaged: {short_repr(name)} is not the name of a file in a folder")
            if not isinstance(expected, str) or not _SHA256.fullmatch(expected):
                raise FolderError(f"{manifest} is damaged: the sha256 of {name} is {short_repr(expected)}")
        return cls(path, sums)

    def __contains__(self, name: str) -> bool:
        return name in self.sums

    def read(self, name: str, limit: int = LARGEST_JSON) -> bytes:
        """The content of a file, which must be listed and be what the manifest says."""
        self.require(name)
        try:
            content = read_regular(self.path / name, limit)
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None
        if hashlib.sha256(content).hexdigest() != self.sums[name]:
            raise self._changed(name)
        return content

    def json(self, name: str) -> dict[str, Any]:
        """The object that a listed JSON file holds."""
        content = self.read(name)
        try:
            value = parse_json(content)
        except ValueError as error:
            raise FolderError(f"{self.path / name} is damaged: {reason(error)}") from None
        if not isinstance(value, dict):
            raise FolderError(f"{self.path / name} is damaged: expected a JSON object, found {short_repr(value)}")
        return value

    def require(self, *names: str) -> None:
        """These files must be listed: a folder without them is no model folder."""
        for name in names:
            if name not in self.sums:
                raise FolderError(f"{self.path} is damaged: {MANIFEST} does not list {name}")

    def verify(self) -> None:
        """Every file that the manifest lists must be there, byte for byte."""
        room = memory_of_this_machine()
        for name, size in self._sizes().items():
            room -= size
            if room < 0:
                raise FolderError(f"{self.path} does not fit this machine's memory: {name} has {size:,} bytes")
        for name, expected in self.sums.items():
            try:
                with open_regular(self.path / name) as content:
                    digest = hashlib.file_digest(content, "sha256").hexdigest()
            except (OSError, ValueError) as error:
                raise self._unreadable(name, error) from None
            if digest != expected:
                raise self._changed(name)

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        for name in self.sums:
            try:
                with open_regular(self.path / name) as file:
                    sizes[name] = os.fstat(file.fileno()).st_size
            except (OSError, ValueError) as error:
                raise self._unreadable(name, error) from None
        return sizes

    def _unreadable(self, name: str, error: OSError | ValueError) -> FolderError:
        if isinstance(error, FileNotFoundError):
            return FolderError(f"{self.path} is damaged: {name} is missing")
        return FolderError(f"{self.path / name} cannot be read: {reason(error)}")

    def _changed(self, name: str) -> FolderError:
        return FolderError(f"{self.path} is damaged: {name} is not what {MANIFEST} says")


def verify(path: Path) -> None:
    """Every file that the manifest of a folder lists must be there, byte for byte."""
    Listed.of(path).verify()


def memory_of_this_machine() -> int:
    """Bytes of main memory; where the system does not say, more than any machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


def _no_model_folder(path: Path) -> str:
    """Why there is no manifest at a path."""
    try:
        if not path.exists():
            return f"{path} does not exist: expected a model folder, as heed train and heed import write them"
        if not path.is_dir():
            return f"{path} is a file: expected a model folder, as heed train and heed import write them"
        names = sorted(file.name for file in path.iterdir())
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not names:
        return f"{path} is not a model folder: it is empty"
    if hint := "" if "checkpoints" in names else _foreign(path, names):
        return f"{path} is not a model folder: {hint}"
    inner = [name for name in names if (path / name / MANIFEST).is_file()]
    hint = _unfinished(path) if "checkpoints" in names else f"did you mean {path / inner[-1]}?" if inner else ""
    return f"{path} is not a model folder: it has no {MANIFEST}{hint and '; '}{hint}"


def _foreign(path: Path, names: list[str]) -> str:
    """Which other system's model a folder of these files holds, and what to do with it; empty: none that is known."""
    config = _json(path / "config.json") if "config.json" in names else {}
    if hint := hugging_face(path, config):
        return hint
    if any(name.endswith(".pt") for name in names):
        return f"it holds a fairseq (or other PyTorch) checkpoint: {_import('fairseq', path)}"
    if "model.bin" in names and any("vocabulary" in name for name in names):
        return (
            "it holds a CTranslate2 model, which heed cannot read back: import the model it was made from, or make one "
            "with heed export --to ctranslate2, which heed translate opens"
        )
    if any(name.endswith(".onnx") for name in names):
        return (
            "it holds an ONNX model, which heed cannot read back: import the model it was made from, or make one with "
            "heed export --to onnx, which heed translate opens"
        )
    if any(name in _HUGGING_FACE_FILES or name.endswith(".spm") for name in names):
        return f"it looks like a model of Hugging Face's; if it is MarianMT: {_import('marian', path)}"
    return ""


def hugging_face(path: Path, config: Mapping[str, Any]) -> str:
    """What a config.json of Hugging Face's `transformers` says the folder is; empty: it is not one of theirs."""
    kind = config.get("model_type")
    if kind == "marian":
        return f"it holds a MarianMT model in Hugging Face's format: {_import('marian', path)}"
    if kind is not None:
        return f"it holds a model of Hugging Face's of type {short_repr(kind)}; heed imports marian and fairseq"
    return ""


def _unfinished(path: Path) -> str:
    try:
        steps = sorted(file for file in (path / "checkpoints").iterdir() if file.name.startswith("step-"))
    except OSError:
        steps = []
    use = f"; its newest checkpoint can be used: {steps[-1]}" if steps else ", and has no checkpoint yet"
    return f"the run is not finished: go on with heed train --resume --out {path}{use}"


def _import(system: str, path: Path) -> str:
    return f"heed import --from {system} {path} --out NEW_FOLDER makes a model folder of it"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_regular(path, 1 << 20))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
