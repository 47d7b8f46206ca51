"""Loading a model folder: choosing device, backend and tokenizers, for `heed.load`, the commands and the server.

Enters: the path of a model folder, or of a folder that `heed export` wrote, and the requested engine and precision.
Leaves: a `Translator`, or the model of a folder on its device.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.artifacts.folder import ModelFolder, is_quantized, read_model_folder
from heed.backends.protocol import Backend
from heed.backends.select_native import (
    InferenceRequest,
    Precision,
    native_backend,
    runs_without_torch,
    why_no_int8,
)
from heed.decoding.engine import Engine
from heed.errors import ConfigError, FolderError, InputError
from heed.fallbacks import note_fallback
from heed.inference.lazy_models import LazyModels
from heed.inference.translator import Translator
from heed.interop.engine_names import EngineName, engine_family, parse_engine_name
from heed.interop.exported import ExportedFolder, is_exported, read_exported
from heed.model.torch_state import torch_defaults
from heed.search_config import SearchConfig
from heed.text.normalization import Normalizer, TextStyle
from heed.text.sentence_split import Splitter
from heed.text.spelling import SpellingCorrector

if TYPE_CHECKING:
    import heed.interpret.tokens
    import heed.interpret.trace
    import heed.model.transformer


def look_into(
    path: str | Path, source: str, target: str | None = None, search: Mapping[str, Any] | None = None
) -> "heed.interpret.trace.Trace":
    """The trace of a text through the model of a folder; search: settings that override the folder's."""
    from heed.interpret.trace import look  # noqa: PLC0415 - torch takes seconds to import

    text_model, translator = load_text_model(path, search)
    return look(text_model, source, target) if translator is None else translator.look(source, target)


def load_text_model(
    path: str | Path, search: Mapping[str, Any] | None = None
) -> "tuple[heed.interpret.tokens.TextModel, Translator | None]":
    """The model of a folder with its tokenizers, and its translator if it is an encoder-decoder."""
    from heed.interpret.tokens import TextModel  # noqa: PLC0415 - torch takes seconds to import

    folder = read_model_folder(Path(path))
    settings = SearchConfig.model_validate(folder.run.search.model_dump() | dict(search or {}))
    if folder.run.model.kind == "encoder-decoder":
        translator = _translator([folder], None, "auto")
        translator.search = settings
        return TextModel.only(translator.models, translator.tokenizers, settings, translator.max_tokens), translator
    model, data = model_on_device(folder), folder.run.data
    return TextModel(model, folder.tokenizers, settings, data.max_tokens, data.labels), None


def with_pytorch_modules(translator: Translator) -> Translator:
    """The same translator run by the model's PyTorch modules, so that forward hooks take effect (ablation)."""
    return Translator(
        translator.models,
        translator.tokenizers,
        translator.search,
        translator.max_tokens,
        splitter=translator.splitter,
        settings=translator.settings,
        normalizer=translator.normalizer,
    )


# Task of the training run: the commands for such a model, and the equivalent in Python.
_USES_BY_TASK = {
    "language-model": ("heed generate, evaluate, look and serve", "heed.Generator.open"),
    "masked": ("heed embed, look, serve and train --init-from", "heed.inference.classifier.embed"),
    "classify": ("heed classify, embed, evaluate, look and serve", "heed.Classifier.open"),
}


@torch_defaults()
def open_folder(path: str | Path) -> "tuple[ModelFolder, heed.model.transformer.Transformer]":
    """Read a model folder of any kind, and load its model onto a GPU if there is one."""
    folder = read_model_folder(Path(path))
    return folder, model_on_device(folder)


@torch_defaults()
def model_on_device(folder: ModelFolder) -> "heed.model.transformer.Transformer":
    """Load the model of a folder, onto a GPU if there is one."""
    from heed.backends.select import default_device  # noqa: PLC0415 - torch takes seconds to import

    return folder.model().to(default_device())


@torch_defaults()
def load(*paths: str | Path, engine: EngineName | None = None, precision: Precision = "auto") -> Translator:
    """Load a model folder: ``heed.load("runs/ende")``; several folders are an ensemble.

    engine: "heed", "heed-int8", "ctranslate2", "ctranslate2-int8" or "onnx"; none: heed, in int8 if the folder is
    quantised, or the engine that the folder was exported for. precision: on a GPU; "auto" is bfloat16 where supported.
    `translator.backend.choice` has the chosen backend and the reason.
    """
    if not paths:
        raise InputError("load needs a model folder, found none")
    if engine is not None:
        parse_engine_name(engine)
    if len(paths) == 1 and engine not in ("heed", "heed-int8") and is_exported(Path(paths[0])):
        return _load_exported(Path(paths[0]), engine)
    if len(paths) > 1 and engine not in (None, "heed", "heed-int8"):
        raise ConfigError(f"{paths[1]}: only the engines heed and heed-int8 run an ensemble, found {engine}")
    return _translator([read_translation_folder(path) for path in paths], engine, precision)


@torch_defaults()
def _translator(folders: list[ModelFolder], engine: EngineName | None, precision: Precision) -> Translator:
    first, *others = folders
    for other in others:
        vocabularies = [[tokenizer.to_json() for tokenizer in folder.tokenizers] for folder in (first, other)]
        if vocabularies[0] != vocabularies[1]:
            raise InputError(f"{first.path} and {other.path} have different vocabularies: expected the same one")
    request = _request(folders, engine, precision)
    sums = [folder.weights_sum() for folder in folders]
    models = LazyModels(
        lambda: _torch_models(folders, sums, request), lambda models: _torch_backend(models, request, first)
    )
    backend: Backend | None = None
    if runs_without_torch([folder.run.model for folder in folders], request):
        backend = native_backend(first.run.model, first.stored_weights(), request, models.backend)
    if backend is not None:
        return _with_folder_settings(models, first, backend)
    return _with_folder_settings(models(), first, models.backend())


def _torch_models(
    folders: list[ModelFolder], sums: list[str], request: InferenceRequest
) -> "list[heed.model.transformer.Transformer]":
    """The models of folders whose weights had these sums when they were opened."""
    for folder, expected in zip(folders, sums, strict=True):
        if folder.weights_sum() != expected:
            raise FolderError(
                f"{folder.path} was replaced after it was loaded: load it again to score, align, stream, get "
                "alternatives or look inside"
            )
    from heed.backends.select import inference_device  # noqa: PLC0415 - torch takes seconds to import

    return [folder.model().to(inference_device(request)) for folder in folders]


@torch_defaults()
def _torch_backend(
    models: "list[heed.model.transformer.Transformer]", request: InferenceRequest, folder: ModelFolder
) -> Backend:
    from heed.backends.select import inference_backend, other_engine  # noqa: PLC0415 - torch takes seconds to import
    from heed.interop.folders import engine_files  # noqa: PLC0415

    if request.engine is None or request.is_heed:
        return inference_backend(models, request)
    files = engine_files(request.engine, models[0], folder.tokenizers)
    return other_engine(request.engine, files, models[0].config, folder.tokenizers)


def _request(folders: list[ModelFolder], engine: EngineName | None, precision: Precision) -> InferenceRequest:
    """The request to `select`. int8 on a CPU without it: an error if requested by name, else a fallback to float32."""
    request = InferenceRequest(engine, precision, is_quantized=all(is_quantized(folder.path) for folder in folders))
    if request.dtype == "float32" or (reason := why_no_int8()) is None:
        return request
    if engine == "heed-int8":
        raise InputError(f"{reason}: use --engine heed")
    note_fallback(f"{folders[0].path} is quantised and runs in float32: {reason}")
    return InferenceRequest("heed", precision, is_quantized=True)


def _load_exported(path: Path, name: EngineName | None) -> Translator:
    exported = read_exported(path)
    if exported.run.model.kind != "encoder-decoder":
        raise ConfigError(
            f"{path} is a model of kind {exported.run.model.kind!r}, exported for {exported.engine}, and does not "
            "translate: run its graph with ONNX Runtime, or load the model folder it was exported from"
        )
    name = name or exported.engine
    if engine_family(name) != engine_family(exported.engine):
        raise ConfigError(f"{path} was exported for {exported.engine}, found --engine {name}: leave --engine out")
    from heed.backends.select import other_engine  # noqa: PLC0415 - torch takes seconds to import

    files = {file: (path / file).read_bytes() for file in exported.files}
    backend = other_engine(name, files, exported.run.model, exported.tokenizers)
    return _with_folder_settings([], exported, backend)


def _with_folder_settings(
    models: "list[heed.model.transformer.Transformer] | LazyModels",
    folder: ModelFolder | ExportedFolder,
    backend: Backend,
) -> Translator:
    """A translator with the settings and the training record of a folder."""
    run = folder.run
    splitter = Splitter.from_config(run.data, folder.trained)
    normalizer = Normalizer(
        TextStyle.from_json(folder.trained.get("style")),
        None if folder.lexicon is None else SpellingCorrector(folder.lexicon),
    )
    engine, max_tokens = Engine(backend), run.data.max_tokens
    return Translator(models, folder.tokenizers, run.search, max_tokens, engine, splitter, run.translate, normalizer)


def read_translation_folder(path: str | Path) -> ModelFolder:
    """Read a model folder, and refuse a model that does not translate."""
    folder = read_model_folder(Path(path))
    kind, task = folder.run.model.kind, folder.run.data.task
    if kind != "encoder-decoder":
        verbs, python = _USES_BY_TASK.get(task, ("heed look", "heed.look_into"))
        raise InputError(
            f"{path} is {'a' if kind == 'decoder' else 'an'} {kind}-only model, trained with task = {task!r}, and does "
            f"not translate: it is for {verbs}; in Python, {python}"
        )
    return folder
