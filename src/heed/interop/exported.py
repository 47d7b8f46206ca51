"""A model exported for an engine, on disk: the engine's own files, and beside them what takes text to text.

    heed.json          the engine, and the settings of the run that the model came from
    tokenizer.json     the (target) vocabulary; source_tokenizer.json where the source has its own
    manifest.json      the sha256 of each file

It is written and checked like a model folder, and is none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.artifacts.folder import parse_settings, read_model_folder, read_tokenizers, refuse_rounded
from heed.artifacts.manifest import Listed
from heed.artifacts.writing import EXPORTED, as_json, write_folder
from heed.config import RunConfig
from heed.errors import FolderError
from heed.interop.engine_names import ENGINES, EngineName
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer
from heed.untrusted import shortened

# From a model and its tokenizers to an engine's own files, by name.
Write = Callable[[Transformer, tuple[Tokenizer, Tokenizer]], Mapping[str, bytes]]


@dataclass(frozen=True)
class Exported:
    """What an exported folder holds, all but the engine's files."""

    path: Path
    engine: EngineName
    run: RunConfig
    tokenizers: tuple[Tokenizer, Tokenizer]  # source and target
    files: tuple[str, ...]  # the names of those that belong to it
    trained: dict[str, Any]  # what is kept of the model folder's record: the lengths of its training sources


def export(path: Path, out: Path, engine: EngineName, write: Write) -> None:
    """Export a model folder for an engine, as `write` has it."""
    if out.exists():
        raise FolderError(f"{out} is already there: choose another --out")
    folder = read_model_folder(path)
    refuse_rounded(path)
    source, target = folder.tokenizers
    files = {
        **write(folder.model(), folder.tokenizers),
        EXPORTED: as_json(
            {"engine": engine, "lengths": folder.trained.get("lengths"), **folder.run.model_dump(mode="json")}
        ),
        "tokenizer.json": target.to_json().encode(),
    }
    if source is not target:
        files["source_tokenizer.json"] = source.to_json().encode()
    write_folder(out, files)


def is_exported(path: Path) -> bool:
    """Whether a folder is an exported model."""
    return EXPORTED in Listed.of(path)


def read_exported(path: Path) -> Exported:
    """Open an exported folder after checking it against its manifest."""
    listed = Listed.of(path)
    settings = listed.json(EXPORTED)
    engine, lengths = settings.pop("engine", None), settings.pop("lengths", None)
    if engine not in ENGINES:
        raise FolderError(
            f"{path / EXPORTED} names the engine {shortened(engine)}, expected one of {', '.join(ENGINES)}"
        )
    run = parse_settings(settings, path / EXPORTED)
    tokenizers = read_tokenizers(listed, run)
    listed.verify()
    return Exported(path, engine, run, tokenizers, tuple(listed.sums), {"lengths": lengths})
