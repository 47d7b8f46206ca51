"""Model folders opened to look inside: `heed.look_into`, for a model of any kind.

trace = heed.look_into("runs/lm", "A dog runs.")
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heed.artifacts.folder import read_model_folder
from heed.backends.select import default_device
from heed.config import SearchConfig
from heed.inference.open import load
from heed.inference.translator import Translator
from heed.interpret.tokens import TextModel
from heed.interpret.trace import Trace, look


def look_into(
    path: str | Path, source: str, target: str | None = None, search: Mapping[str, Any] | None = None
) -> Trace:
    """The trace of a text by the model of a folder; search: settings instead of the folder's own."""
    text_model, translator = open_any(path, search)
    return look(text_model, source, target) if translator is None else translator.look(source, target)


def open_any(path: str | Path, search: Mapping[str, Any] | None = None) -> tuple[TextModel, Translator | None]:
    """The model of a folder, and its translator if it is an encoder-decoder."""
    folder = read_model_folder(Path(path))
    settings = SearchConfig.model_validate(folder.run.search.model_dump() | dict(search or {}))
    if folder.run.model.kind == "encoder-decoder":
        translator = load(path)
        translator.search = settings
        return TextModel.only(translator.models, translator.tokenizers, settings, translator.max_tokens), translator
    model, data = folder.model().to(default_device()), folder.run.data
    return TextModel(model, folder.tokenizers, settings, data.max_tokens, data.labels), None


def run_by_modules(translator: Translator) -> Translator:
    """The translator without its engine: by the model's own modules, where hooks take effect (ablation)."""
    return Translator(
        translator.models,
        translator.tokenizers,
        translator.search,
        translator.max_tokens,
        splitter=translator.splitter,
        settings=translator.settings,
    )
