"""Opening a model folder: device, backend and tokenizers chosen once, for `heed.load`, every verb and the server.

Enters: the path of a model folder, or of one that `heed export` wrote for another system's engine, and what was asked
for. Leaves: a `Translator`, or the model of a folder on the device where it will run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heed.artifacts.folder import ModelFolder, is_quantized, read_model_folder
from heed.backends.base import Backend
from heed.backends.select import (
    InferenceRequest,
    Precision,
    default_device,
    inference_backend,
    inference_device,
    other_engine,
    why_no_int8,
)
from heed.config import SearchConfig
from heed.decoding.engine import Engine
from heed.errors import ConfigError, InputError
from heed.fallbacks import note_fallback
from heed.inference.translator import Translator
from heed.interop.engine_names import EngineName, engine_family, parse_engine_name
from heed.interop.folders import engine_files, is_exported, read_exported
from heed.interpret.tokens import TextModel
from heed.interpret.trace import Trace, look
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.sentence_split import Splitter


def look_into(
    path: str | Path, source: str, target: str | None = None, search: Mapping[str, Any] | None = None
) -> Trace:
    """The trace of a text by the model of a folder; search: settings instead of the folder's own."""
    text_model, translator = load_text_model(path, search)
    return look(text_model, source, target) if translator is None else translator.look(source, target)


def load_text_model(path: str | Path, search: Mapping[str, Any] | None = None) -> tuple[TextModel, Translator | None]:
    """The model of a folder, and its translator if it is an encoder-decoder."""
    folder = read_model_folder(Path(path))
    settings = SearchConfig.model_validate(folder.run.search.model_dump() | dict(search or {}))
    if folder.run.model.kind == "encoder-decoder":
        translator = _translator([folder], None, "auto")
        translator.search = settings
        return TextModel.only(translator.models, translator.tokenizers, settings, translator.max_tokens), translator
    model, data = model_on_device(folder), folder.run.data
    return TextModel(model, folder.tokenizers, settings, data.max_tokens, data.labels), None


def with_pytorch_modules(translator: Translator) -> Translator:
    """The translator without its engine: by the model's own modules, where hooks take effect (ablation)."""
    return Translator(
        translator.models,
        translator.tokenizers,
        translator.search,
        translator.max_tokens,
        splitter=translator.splitter,
        settings=translator.settings,
    )


# By what a model was taught: the verbs for it, and the same in Python.
_FOR = {
    "language-model": ("heed generate, evaluate, look and serve", "heed.Generator.open"),
    "masked": ("heed embed, look, serve and train --init-from", "heed.inference.classifier.embed"),
    "classify": ("heed classify, embed, evaluate, look and serve", "heed.Classifier.open"),
}


@torch_defaults()
def open_folder(path: str | Path) -> tuple[ModelFolder, Transformer]:
    """A model folder of any kind and its model, on a GPU where there is one."""
    folder = read_model_folder(Path(path))
    return folder, model_on_device(folder)


@torch_defaults()
def model_on_device(folder: ModelFolder) -> Transformer:
    """The model of a folder, on a GPU where there is one."""
    return folder.model().to(default_device())


@torch_defaults()
def load(*paths: str | Path, engine: EngineName | None = None, precision: Precision = "auto") -> Translator:
    """Open a model folder: ``heed.load("runs/ende")``; several translate together.

    engine: what translates, "heed", "heed-int8", "ctranslate2", "ctranslate2-int8" or "onnx"; none: heed, in int8 where
    the folder is quantised, or what the folder was exported for. precision: of a GPU; "auto" is bfloat16 where it has
    that. `translator.backend.choice` says what was chosen, and why.
    """
    if not paths:
        raise InputError("load needs at least one model folder")
    if engine is not None:
        parse_engine_name(engine)
    if len(paths) == 1 and engine not in ("heed", "heed-int8") and is_exported(Path(paths[0])):
        return _load_exported(Path(paths[0]), engine)
    if len(paths) > 1 and engine not in (None, "heed", "heed-int8"):
        raise ConfigError(f"{paths[1]}: only heed's own engine translates with several models, found {engine}")
    return _translator([read_translation_folder(path) for path in paths], engine, precision)


@torch_defaults()
def _translator(folders: list[ModelFolder], engine: EngineName | None, precision: Precision) -> Translator:
    first, *others = folders
    for other in others:
        if [one.to_json() for one in other.tokenizers] != [one.to_json() for one in first.tokenizers]:
            raise InputError(f"{first.path} and {other.path} have different vocabularies and cannot translate together")
    request = _request(folders, engine, precision)
    models = [folder.model().to(inference_device(request)) for folder in folders]
    if engine is None or request.is_heed:
        backend: Backend = inference_backend(models, request)
    else:
        files = engine_files(engine, models[0], first.tokenizers)
        backend = other_engine(engine, files, models[0].config, first.tokenizers)
    run, splitter = first.run, Splitter.of(first.run.data, first.trained)
    return Translator(
        models, first.tokenizers, run.search, run.data.max_tokens, Engine(backend), splitter, run.translate
    )


def _request(folders: list[ModelFolder], engine: EngineName | None, precision: Precision) -> InferenceRequest:
    """What is asked for; int8 that this CPU cannot have is refused where it was asked for by name, else replaced."""
    request = InferenceRequest(engine, precision, is_quantized=all(is_quantized(folder.path) for folder in folders))
    if request.dtype == "float32" or (why := why_no_int8()) is None:
        return request
    if engine == "heed-int8":
        raise InputError(f"{why}: use --engine heed")
    note_fallback(f"{folders[0].path} is quantised and runs in float32: {why}")
    return InferenceRequest("heed", precision, is_quantized=True)


def _load_exported(path: Path, name: EngineName | None) -> Translator:
    exported = read_exported(path)
    if exported.run.model.kind != "encoder-decoder":
        raise ConfigError(
            f"{path} is half a model ({exported.run.model.kind}), exported for {exported.engine}, and does not "
            "translate: run its graph with ONNX Runtime, or use the model folder that it was made from"
        )
    name = name or exported.engine
    if engine_family(name) != engine_family(exported.engine):
        raise ConfigError(f"{path} was exported for {exported.engine}, which is not --engine {name}: leave that out")
    files = {file: (path / file).read_bytes() for file in exported.files}
    backend = other_engine(name, files, exported.run.model, exported.tokenizers)
    run, splitter = exported.run, Splitter.of(exported.run.data, exported.trained)
    return Translator(
        [], exported.tokenizers, run.search, run.data.max_tokens, Engine(backend), splitter, run.translate
    )


def read_translation_folder(path: str | Path) -> ModelFolder:
    """A model folder whose model translates."""
    folder = read_model_folder(Path(path))
    kind, task = folder.run.model.kind, folder.run.data.task
    if kind != "encoder-decoder":
        verbs, python = _FOR.get(task, ("heed look", "heed.look_into"))
        raise InputError(
            f"{path} is {'a' if kind == 'decoder' else 'an'} {kind} alone, trained with task = {task!r}, and does not "
            f"translate: it is for {verbs}; in Python, {python}"
        )
    return folder
