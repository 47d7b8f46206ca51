"""What a path is that was given where a model folder is expected: one line that says so, and what to do.

Enters: a path. Leaves: a sentence. Only names and one small JSON file are looked at; no other system's file is opened.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heed.untrusted import parse_json, read_regular, shortened

_FILES = ["pytorch_model.bin", "model.safetensors", "tf_model.h5", "flax_model.msgpack"]


def no_model_folder(path: Path, manifest: str) -> str:
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
    if hint := "" if "checkpoints" in names else foreign(path, names):
        return f"{path} is not a model folder: {hint}"
    inner = [name for name in names if (path / name / manifest).is_file()]
    hint = _unfinished(path) if "checkpoints" in names else f"did you mean {path / inner[-1]}?" if inner else ""
    return f"{path} is not a model folder: it has no {manifest}{hint and '; '}{hint}"


def foreign(path: Path, names: list[str]) -> str:
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
    if any(name in _FILES or name.endswith(".spm") for name in names):
        return f"it looks like a model of Hugging Face's; if it is MarianMT: {_import('marian', path)}"
    return ""


def hugging_face(path: Path, config: Mapping[str, Any]) -> str:
    """What a config.json of Hugging Face's `transformers` says the folder is; empty: it is not one of theirs."""
    kind = config.get("model_type")
    if kind == "marian":
        return f"it holds a MarianMT model in Hugging Face's format: {_import('marian', path)}"
    if kind is not None:
        return f"it holds a model of Hugging Face's of type {shortened(kind)}; heed imports marian and fairseq"
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
