"""A model exported for an engine, on disk: the engine's own files, and beside them what takes text to text.

    heed.json          the engine, and the settings of the run that the model came from
    tokenizer.json     the (target) vocabulary; source_tokenizer.json where the source has its own
    manifest.json      the sha256 of each file

It is written and checked like a model folder, and is none.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from heed.config import RunConfig
from heed.errors import FolderError
from heed.interop.engine_names import ENGINES, EngineName
from heed.model.folder import read_model_folder, refuse_rounded, verify
from heed.model.transformer import Transformer
from heed.model.writing import EXPORTED, as_json, write_folder
from heed.text.tokenizer import Tokenizer

# From a model and its tokenizers to an engine's own files, by name.
Write = Callable[[Transformer, tuple[Tokenizer, Tokenizer]], Mapping[str, bytes]]


@dataclass(frozen=True)
class Exported:
    """What an exported folder holds, all but the engine's files."""

    path: Path
    engine: EngineName
    run: RunConfig
    tokenizers: tuple[Tokenizer, Tokenizer]  # source and target


def export(path: Path, out: Path, engine: EngineName, write: Write) -> None:
    """Export a model folder for an engine, as `write` has it."""
    if out.exists():
        raise FolderError(f"{out} is already there: choose another --out")
    folder = read_model_folder(path)
    refuse_rounded(path)
    source, target = folder.tokenizers
    files = {
        **write(folder.model(), folder.tokenizers),
        EXPORTED: as_json({"engine": engine, **folder.run.model_dump(mode="json")}),
        "tokenizer.json": target.to_json().encode(),
    }
    if source is not target:
        files["source_tokenizer.json"] = source.to_json().encode()
    write_folder(out, files)


def is_exported(path: Path) -> bool:
    """Whether a folder is an exported model."""
    return (path / EXPORTED).is_file()


def read_exported(path: Path) -> Exported:
    """Open an exported folder after checking it against its manifest."""
    verify(path)
    settings = json.loads((path / EXPORTED).read_text(encoding="utf-8"))
    engine = settings.pop("engine", None)
    if engine not in ENGINES:
        raise FolderError(f"{path / EXPORTED} names the engine {engine!r}, expected one of {', '.join(ENGINES)}")
    run = RunConfig.model_validate_json(json.dumps(settings))
    target = Tokenizer.load(path / "tokenizer.json", run.data.tokenizer)
    own = path / "source_tokenizer.json"
    source = Tokenizer.load(own, run.data.tokenizer) if own.exists() else target
    return Exported(path, engine, run, (source, target))
