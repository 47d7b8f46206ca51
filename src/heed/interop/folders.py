"""Writes folders exported for an engine, and model folders imported from other toolkits.

Enters: a model folder to export, or files that another system wrote. Leaves: an exported folder, or a model folder with
the imported weights. Which weights go where is for the modules of each format to say.

exported.py reads exported folders again.
"""

import json
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.artifacts.folder import (
    model_files,
    read_model_folder,
    refuse_quantized,
)
from heed.artifacts.tensors import load_weights, read_tensors
from heed.artifacts.writing import EXPORTED, LEXICON, json_bytes, write_folder
from heed.config import RunConfig
from heed.errors import FolderError
from heed.interop.engine_names import EngineName, require_engine
from heed.interop.exported import KEPT
from heed.model.size import parameter_counts
from heed.model.transformer import Transformer
from heed.text.tokenizer import TokenizerPair


def refuse_to_overwrite(out: Path) -> None:
    if out.exists():
        raise FolderError(f"{out} already exists: choose another --out")


def engine_files(name: EngineName, model: Transformer, tokenizers: TokenizerPair) -> Mapping[str, bytes]:
    """A model as an engine takes it: the engine's own files, by name."""
    require_engine(name)
    if name == "onnx":
        from heed.interop.onnx_export import onnx_files  # noqa: PLC0415 - an extra

        return onnx_files(model)
    from heed.interop.ctranslate2_export import ctranslate2_files  # noqa: PLC0415 - an extra

    return ctranslate2_files(model, tokenizers, "int8" if name == "ctranslate2-int8" else "float32")


def export_for(engine: EngineName, path: Path, out: Path) -> None:
    """Export a model folder for an engine."""
    require_engine(engine)
    refuse_to_overwrite(out)
    folder = read_model_folder(path)
    refuse_quantized(path)
    source, target = folder.tokenizers
    files = {
        **engine_files(engine, folder.model(), folder.tokenizers),
        EXPORTED: json_bytes(
            {
                "engine": engine,
                **{name: folder.trained.get(name) for name in KEPT},
                **folder.run.model_dump(mode="json"),
            }
        ),
        "tokenizer.json": target.to_json().encode(),
    }
    if source is not target:
        files["source_tokenizer.json"] = source.to_json().encode()
    if folder.lexicon is not None:
        files[LEXICON] = folder.lexicon.to_json()
    write_folder(out, files)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(
            f"{path.parent} has no {path.name}: expected the folder of a model in the --from format"
        ) from None
    except OSError as error:
        raise FolderError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise FolderError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{path} should hold an object, found {type(value).__name__}")
    return value


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, safetensors or a pickle that torch loads with weights_only=True; floats as float32."""
    weights = read_tensors(path) if path.suffix == ".safetensors" else read_pickle(path)
    tensors = {name: weight for name, weight in weights.items() if isinstance(weight, Tensor)}
    return {name: weight.float() if weight.is_floating_point() else weight for name, weight in tensors.items()}


def read_pickle(path: Path, allowed_classes: Sequence[type] = ()) -> Any:
    """Load a file of `torch.save` that holds tensors, plain values and instances of the allowed classes only.

    The one place where heed reads a pickle: a format that exists in no other form, and a file that the user named.
    torch's `weights_only=True` calls nothing that such a file names.
    """
    try:
        with torch.serialization.safe_globals(list(allowed_classes)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FolderError(f"{path}: {error.strerror}") from None
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError) as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        problem = f"it names {named[1]}" if named else "it is no file of torch.save"
        raise FolderError(
            f"{path} is refused: only tensors and plain values are read from a pickle, and {problem}"
        ) from None


def refuse_unknown(path: Path, weights: Mapping[str, Tensor], known_names: str) -> None:
    """Raise if a weight outside the layers does not match this pattern of names."""
    unknown = [name for name in weights if ".layers." not in name and not re.fullmatch(known_names, name)]
    if unknown:
        raise FolderError(f"{path} has weights that heed's model does not have: {', '.join(unknown)}")


def write_imported(
    out: Path,
    weights: Mapping[str, Tensor],
    run: RunConfig,
    tokenizers: TokenizerPair,
    origin: str,
) -> None:
    """Write the model folder. origin: where the model comes from, for its card."""
    model = Transformer(run.model)
    load_weights(model, weights, out)  # every weight must be there, and of the right shape
    write_folder(out, model_files(model.state_dict(), run, {"imported": origin}, tokenizers, _card(run, origin)))


def _card(run: RunConfig, origin: str) -> str:
    config, size = run.model, sum(part.total for part in parameter_counts(run.model))
    return f"""# A Transformer imported into heed

{origin}

| | |
|---|---|
| languages | {run.data.source_language or "?"} to {run.data.target_language or "?"} |
| model | {config.kind}, {config.encoder_layers}+{config.decoder_layers} layers, width {config.d_model}, \
{config.heads} heads, feed-forward {config.d_ff}, {size:,} parameters |
| vocabulary | {config.vocab_size:,} tokens ({run.data.tokenizer_names}) |

What its authors say about its training, its data and its licence still holds, and is not repeated here.
All settings are in `config.json`.
"""
