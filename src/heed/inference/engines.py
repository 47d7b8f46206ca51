"""An engine opened, and a model exported for one.

An engine takes a model folder, which is exported in passing and leaves nothing behind; then all that needs heed's own
model (scores, alignment, streams, looking inside) is there besides. Or it takes a folder that `heed export` wrote,
which translates and does nothing else.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from heed.artifacts.folder import is_quantized
from heed.backends.torch.int8 import int8_decoder
from heed.config import ModelConfig
from heed.decoding.engine import Engine, Stepwise
from heed.decoding.steps import begin_with
from heed.errors import ConfigError
from heed.inference.translator import Translator, load
from heed.interop.engine_names import EngineName, family, require
from heed.interop.folders import export, is_exported, read_exported
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.sentence_split import Splitter
from heed.text.tokenizer import Tokenizer

Tokenizers = tuple[Tokenizer, Tokenizer]


@torch_defaults()
def open_engine(path: Path, name: EngineName | None = None) -> Translator:
    """A model folder, or an exported one, at work in an engine; none: heed, or the one the folder was made for."""
    if is_exported(path):
        return _open_exported(path, name)
    translator = load(path)
    if name == "heed-int8" or (name is None and is_quantized(path)):
        translator.engine = _in_integers(translator.model)
    elif name is not None and name != "heed":
        require(name)
        model, tokenizers = translator.model, translator.tokenizers
        translator.engine = _engine(name, _files(name, model, tokenizers), model.config, tokenizers)
    return translator


def _in_integers(model: Transformer) -> Stepwise:
    decoder, cpu = int8_decoder(model.cpu()), torch.device("cpu")
    return Stepwise(lambda sources: begin_with([decoder], model.config, sources, cpu), [model])


def export_for(name: EngineName, path: Path, out: Path) -> None:
    """Write a model folder as an engine takes it."""
    require(name)
    export(path, out, name, lambda model, tokenizers: _files(name, model, tokenizers))


def _open_exported(path: Path, name: EngineName | None) -> Translator:
    found = read_exported(path)
    if found.run.model.kind != "encoder-decoder":
        raise ConfigError(
            f"{path} is half a model ({found.run.model.kind}), exported for {found.engine}, and does not translate: "
            "run its graph with ONNX Runtime, or use the model folder that it was made from"
        )
    name = name or found.engine
    if family(name) != family(found.engine):
        raise ConfigError(f"{path} was exported for {found.engine}, which is not --engine {name}: leave that out")
    require(name)
    files = {name: (path / name).read_bytes() for name in found.files}
    engine = _engine(name, files, found.run.model, found.tokenizers)
    run, splitter = found.run, Splitter.of(found.run.data, found.trained)
    return Translator([], found.tokenizers, run.search, run.data.max_tokens, engine, splitter, run.translate)


def _files(name: EngineName, model: Transformer, tokenizers: Tokenizers) -> Mapping[str, bytes]:
    if name == "onnx":
        from heed.interop.onnx_export import onnx_files  # noqa: PLC0415 - an extra

        return onnx_files(model)
    from heed.interop.ctranslate2_export import ctranslate2_files  # noqa: PLC0415 - an extra

    return ctranslate2_files(model, tokenizers, _arithmetic(name))


def _engine(name: EngineName, files: Mapping[str, bytes], config: ModelConfig, tokenizers: Tokenizers) -> Engine:
    if name == "onnx":
        from heed.backends.onnx import OnnxModel  # noqa: PLC0415 - an extra

        model = OnnxModel(files, config)
        return Stepwise(model.begin, [model])
    from heed.backends.ctranslate2 import CTranslate2Engine  # noqa: PLC0415 - an extra

    with tempfile.TemporaryDirectory() as folder:  # once it is open, all of it is in memory
        for file, content in files.items():
            (Path(folder) / file).write_bytes(content)
        return CTranslate2Engine.open(Path(folder), config, tokenizers, _arithmetic(name))


def _arithmetic(name: EngineName) -> str:
    return "int8" if name == "ctranslate2-int8" else "float32"
