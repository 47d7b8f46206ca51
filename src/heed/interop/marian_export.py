"""A model folder to a folder that `MarianMTModel.from_pretrained` and `AutoTokenizer.from_pretrained` open.

MarianMT's sinusoids are all sines, then all cosines, and the paper's alternate. Both are the same numbers in another
order, and the order of a vector's numbers is free (weight_names.py), so the width of every weight is reordered and
nothing is lost: imported again, each weight is the same bit for bit. A model that MarianMT cannot express is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from heed.artifacts.folder import read_model_folder, refuse_rounded
from heed.artifacts.writing import as_json, write_folder
from heed.config import ModelConfig, RunConfig
from heed.errors import ConfigError
from heed.interop.imported import refuse_to_overwrite
from heed.interop.marian_tokenizer import KIND, LANGUAGES, tokenizer_files
from heed.interop.name_mapping import layers_from_heed, sines_then_cosines

# What MarianMT can express, and what it does instead of anything else.
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "kind": (("encoder-decoder",), "it has an encoder and a decoder"),
    "norm": (("post",), "it normalises after each residual sum"),
    "positions": (("sinusoidal",), "its positions are sinusoids"),
    "activation": (("relu", "gelu", "swish"), "its feed-forward network has no gate"),
    "norm_eps": ((1e-5,), "its layer norm adds 1e-5"),
}


def export_marian(folder: Path, out: Path) -> None:
    """Write the model folder `folder` as the MarianMT folder `out`."""
    refuse_to_overwrite(out)
    opened = read_model_folder(folder)
    refuse_rounded(folder)
    _check(folder, opened.run.model)
    weights = to_marian(opened.model().state_dict(), opened.run.model)
    files = {
        "config.json": as_json(_config(opened.run)),
        "generation_config.json": as_json(_generation(opened.run)),
        "model.safetensors": save(weights, {"format": "pt"}),
        **tokenizer_files(opened.tokenizers, opened.run),
    }
    write_folder(out, files)


def to_marian(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """All weights by MarianMT's names, in its order of the width; the ids keep theirs."""
    order = sines_then_cosines(config.d_model)
    back = order.argsort()
    theirs = {f"model.{name}": weight for name, weight in layers_from_heed(ours, order).items()}
    words = ours["vocabulary.embedding.weight"][:, back]
    if config.shares_embedding:
        theirs["model.shared.weight"] = words
    else:
        theirs["model.decoder.embed_tokens.weight"] = words
        theirs["model.encoder.embed_tokens.weight"] = ours["vocabulary.source_embedding.weight"][:, back]
    if not config.tie_embeddings:
        theirs["lm_head.weight"] = ours["vocabulary.output.weight"][:, back]
    bias = ours.get("vocabulary.bias" if config.tie_embeddings else "vocabulary.output.bias")
    theirs["final_logits_bias"] = torch.zeros(1, config.vocab_size, dtype=torch.float32) if bias is None else bias[None]
    return {name: weight.contiguous() for name, weight in theirs.items()}


def _config(run: RunConfig) -> dict[str, Any]:
    model = run.model
    both = {"attention_heads": model.heads, "ffn_dim": model.d_ff}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": model.source_vocab_size or model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in both.items()},
        "activation_function": model.activation,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.shares_embedding,
        "tie_word_embeddings": model.tie_embeddings,
        "max_position_embeddings": model.max_length,
        "dtype": "float32",
        **_special(model),
        KIND: run.data.tokenizer,
        LANGUAGES: [run.data.source_language, run.data.target_language],
    }


def _special(model: ModelConfig) -> dict[str, Any]:
    return {
        "pad_token_id": model.pad_id,
        "bos_token_id": model.bos_id,
        "eos_token_id": model.eos_id,
        "decoder_start_token_id": model.bos_id,
        "forced_eos_token_id": model.eos_id,
    }


def _generation(run: RunConfig) -> dict[str, Any]:
    """Beam search as in the run's settings, as far as `generate` can express them."""
    never = [[run.model.pad_id], [run.model.bos_id]]
    places = run.model.max_length - 1
    return {
        **_special(run.model),
        "bad_words_ids": never,
        "num_beams": run.search.beam,
        **({"length_penalty": run.search.length_penalty} if run.search.beam > 1 else {}),
        "max_length": min(places, run.data.max_tokens + 50),
    }


def _check(folder: Path, config: ModelConfig) -> None:
    for name, (possible, why) in _ONLY.items():
        found = getattr(config, name)
        if found not in possible:
            raise ConfigError(
                f"{folder}: {name} = {json.dumps(found)} cannot be expressed by MarianMT: {why}. "
                "The other formats of heed export may have it"
            )
