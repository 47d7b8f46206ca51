"""A model folder and a text to a trace, whatever kind of model it is.

trace = look_into("runs/lm", "A dog runs.")
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from heed.artifacts.folder import read_model_folder
from heed.config import SearchConfig
from heed.inference.translator import Translator, load
from heed.interpret.trace import Trace, look


def look_into(
    path: str | Path, source: str, target: str | None = None, search: Mapping[str, Any] | None = None
) -> Trace:
    """The trace of a text by the model of a folder, of whatever kind; search: settings instead of the folder's own."""
    translator, labels = open_any(path)
    translator.search = SearchConfig.model_validate(translator.search.model_dump() | dict(search or {}))
    return look(translator, source, target, labels)


def open_any(path: str | Path) -> tuple[Translator, tuple[str, ...]]:
    """The model of a folder with its tokenizers, and its labels, if it has any.

    One that does not translate comes as a `Translator` too, which can be looked into and does nothing else.
    """
    folder = read_model_folder(Path(path))
    if folder.run.model.kind == "encoder-decoder":
        return load(path), ()
    model = folder.model().to("cuda" if torch.cuda.is_available() else "cpu")
    settings = folder.run.search, folder.run.data.max_tokens
    return Translator([model], folder.tokenizers, *settings), folder.run.data.labels
