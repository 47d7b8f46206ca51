"""The manifest of a folder: the sha256 of each of its files, against which they are verified.

Enters: a path. Leaves: the files that its manifest lists, verified; or an error that says what the path is instead,
such as another toolkit's model, and what to do with it. Files that the manifest does not list are never opened.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.artifacts.writing import FORMAT, MANIFEST, current_version
from heed.errors import FolderError
from heed.untrusted import LARGEST_JSON, open_regular, parse_json, read_regular, reason, short_repr

__all__ = ["FORMAT", "MANIFEST", "Manifest", "huggingface_hint", "physical_memory", "verify"]

_HUGGING_FACE_FILES = ["pytorch_model.bin", "model.safetensors", "tf_model.h5", "flax_model.msgpack"]
_LARGEST_MANIFEST = 1 << 20
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """The files that a folder's `manifest.json` lists."""

    path: Path
    sums: Mapping[str, str]  # sha256 by name

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Read the manifest of a folder; if there is none, the error says what the path is instead."""
        path = current_version(path)
        manifest = path / MANIFEST
        try:
            content = read_regular(manifest, _LARGEST_MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise FolderError(_not_a_model_folder(path)) from None
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
                raise FolderError(f"{manifest} is damaged: expected format and sha256, found {short_repr(value)}")
        if version != FORMAT or isinstance(version, bool):
            shown = short_repr(version)
            raise FolderError(f"{path} has format {shown}, but this version of heed reads format {FORMAT}: update heed")
        for name, expected in sums.items():
            if Path(name).name != name or "\0" in name or "\\" in name or name == MANIFEST:
                raise FolderError(f"{manifest} is damaged: {short_repr(name)} is not the name of a file in a folder")
            if not isinstance(expected, str) or not _SHA256.fullmatch(expected):
                raise FolderError(f"{manifest} is damaged: the sha256 of {name} is {short_repr(expected)}")
        return cls(path, sums)

    def __contains__(self, name: str) -> bool:
        return name in self.sums

    def read_file(self, name: str, limit: int = LARGEST_JSON) -> bytes:
        """The content of a listed file, verified."""
        self.require(name)
        try:
            content = read_regular(self.path / name, limit)
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None
        if hashlib.sha256(content).hexdigest() != self.sums[name]:
            raise self._changed(name)
        return content

    def read_json(self, name: str) -> dict[str, Any]:
        """The object in a listed JSON file, verified."""
        content = self.read_file(name)
        try:
            value = parse_json(content)
        except ValueError as error:
            raise FolderError(f"{self.path / name} is damaged: {reason(error)}") from None
        if not isinstance(value, dict):
            raise FolderError(f"{self.path / name} is damaged: expected a JSON object, found {short_repr(value)}")
        return value

    def require(self, *names: str) -> None:
        """Raise unless the manifest lists these files."""
        for name in names:
            if name not in self.sums:
                raise FolderError(f"{self.path} is damaged: {MANIFEST} does not list {name}")

    def verify(self) -> None:
        """Raise unless every listed file exists with the listed sha256."""
        memory = physical_memory()
        for name, size in self._sizes().items():
            memory -= size
            if memory < 0:
                raise FolderError(f"{self.path} does not fit into this machine's memory: {name} has {size:,} bytes")
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
            return FolderError(f"{self.path} is damaged: {name} is missing{self._remedy()}")
        return FolderError(f"{self.path / name} cannot be read: {reason(error)}")

    def _changed(self, name: str) -> FolderError:
        return FolderError(f"{self.path} is damaged: {name} does not match {MANIFEST}{self._remedy()}")

    def _remedy(self) -> str:
        is_run = (self.path / "checkpoints").is_dir()
        return f"; heed train --resume --out {self.path} writes it again from its checkpoints" if is_run else ""


def verify(path: Path) -> None:
    """Raise unless every file in a folder's manifest exists with the listed sha256."""
    Manifest.load(path).verify()


def physical_memory() -> int:
    """Bytes of main memory; a huge number where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


def _not_a_model_folder(path: Path) -> str:
    """The error message for a path without a manifest."""
    try:
        if not path.exists():
            return f"{path} does not exist: expected a model folder written by heed train or heed import"
        if not path.is_dir():
            return f"{path} is a file: expected a model folder written by heed train or heed import"
        names = sorted(file.name for file in path.iterdir())
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not names:
        return f"{path} is not a model folder: it is empty"
    if hint := "" if "checkpoints" in names else _foreign_model_hint(path, names):
        return f"{path} is not a model folder: {hint}"
    inner = [name for name in names if (path / name / MANIFEST).is_file()]
    hint = _unfinished_hint(path) if "checkpoints" in names else f"did you mean {path / inner[-1]}?" if inner else ""
    return f"{path} is not a model folder: it has no {MANIFEST}{hint and '; '}{hint}"


def _foreign_model_hint(path: Path, names: list[str]) -> str:
    """A hint if these are the files of another toolkit's model; empty: not recognised."""
    config = _read_json_leniently(path / "config.json") if "config.json" in names else {}
    if hint := huggingface_hint(path, config):
        return hint
    if any(name.endswith(".pt") for name in names):
        return f"it holds a fairseq (or other PyTorch) checkpoint: {_import_hint('fairseq', path)}"
    if "model.bin" in names and any("vocabulary" in name for name in names):
        return (
            "it holds a CTranslate2 model, which heed cannot import: import the model it was made from, or create one "
            "with heed export --to ctranslate2, which heed translate opens"
        )
    if any(name.endswith(".onnx") for name in names):
        return (
            "it holds an ONNX model, which heed cannot import: import the model it was made from, or create one with "
            "heed export --to onnx, which heed translate opens"
        )
    if any(name in _HUGGING_FACE_FILES or name.endswith(".spm") for name in names):
        return f"it looks like a Hugging Face model; if it is MarianMT: {_import_hint('marian', path)}"
    return ""


def huggingface_hint(path: Path, config: Mapping[str, Any]) -> str:
    """A hint if this is the config.json of a Hugging Face model; empty: it is not."""
    model_type = config.get("model_type")
    if model_type == "marian":
        return f"it holds a MarianMT model in Hugging Face's format: {_import_hint('marian', path)}"
    if model_type is not None:
        return f"it holds a Hugging Face model of type {short_repr(model_type)}; heed imports marian and fairseq"
    return ""


def _unfinished_hint(path: Path) -> str:
    try:
        steps = sorted(file for file in (path / "checkpoints").iterdir() if file.name.startswith("step-"))
    except OSError:
        steps = []
    use = f"; its newest checkpoint can be used: {steps[-1]}" if steps else ", and has no checkpoint yet"
    return f"the run is not finished: continue with heed train --resume --out {path}{use}"


def _import_hint(system: str, path: Path) -> str:
    return f"heed import --from {system} {path} --out NEW_FOLDER converts it to a model folder"


def _read_json_leniently(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(read_regular(path, 1 << 20))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
