"""Reads folders that heed exported for another system's engine.

Enters: a path. Leaves: an `ExportedFolder`. Knows nothing of torch. An exported folder is written and verified like a
model folder, but is a different format:

    heed.json          the engine, and the settings of the run that the model came from
    tokenizer.json     the (target) vocabulary; source_tokenizer.json where the source has its own
    manifest.json      the sha256 of each file; all others are the engine's own
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.artifacts.folder import parse_settings, read_lexicon, read_tokenizers
from heed.artifacts.manifest import Manifest
from heed.artifacts.writing import EXPORTED
from heed.config import RunConfig
from heed.errors import FolderError
from heed.interop.engine_names import ENGINES, EngineName
from heed.text.lexicon import Lexicon
from heed.text.tokenizer import TokenizerPair
from heed.untrusted import short_repr

KEPT = ("lengths", "style")  # of a model folder's training record


@dataclass(frozen=True)
class ExportedFolder:
    """The content of an exported folder, except the engine's files."""

    path: Path
    engine: EngineName
    run: RunConfig
    tokenizers: TokenizerPair  # source and target
    files: tuple[str, ...]  # the names of those that belong to it
    trained: dict[str, Any]  # what is kept of the model folder's record: lengths and style of its training sources
    lexicon: Lexicon | None


def is_exported(path: Path) -> bool:
    """Whether a folder is an exported model."""
    return EXPORTED in Manifest.load(path)


def read_exported(path: Path) -> ExportedFolder:
    """Open an exported folder after checking it against its manifest."""
    manifest = Manifest.load(path)
    settings = manifest.read_json(EXPORTED)
    engine, trained = settings.pop("engine", None), {name: settings.pop(name, None) for name in KEPT}
    if engine not in ENGINES:
        raise FolderError(
            f"{path / EXPORTED} names the engine {short_repr(engine)}, expected one of {', '.join(ENGINES)}"
        )
    run = parse_settings(settings, path / EXPORTED)
    tokenizers = read_tokenizers(manifest, run)
    manifest.verify()
    return ExportedFolder(path, engine, run, tokenizers, tuple(manifest.sums), trained, read_lexicon(manifest, run))
