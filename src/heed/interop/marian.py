"""Imports and exports Hugging Face MarianMT folders.

Import: differences between MarianMT and heed, and how they are converted:

    all sines, then all cosines        the features are permuted (name_mapping.py)
    no √d_model before the embeddings  folded into the embeddings and the decoder's last norm
    decoding starts with the pad token its embedding becomes that of ⟨s⟩, which is never generated
    final_logits_bias                  `output_bias`, the bias of the output
    ids in the order of vocab.json     reordered: ⟨pad⟩ ⟨s⟩ ⟨/s⟩ first, the unknown token last

Export: a folder that `MarianMTModel.from_pretrained` and `AutoTokenizer.from_pretrained` open. Imported again, each
weight is the same bit for bit. Settings that change what is computed and that the other side does not have are refused.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from heed.artifacts.folder import read_model_folder, refuse_quantized
from heed.artifacts.writing import json_bytes, write_folder
from heed.config import DataConfig, ModelConfig, RunConfig
from heed.errors import ConfigError, FolderError
from heed.interop.folders import read_json, read_weights, refuse_to_overwrite, refuse_unknown, write_imported
from heed.interop.marian_tokenizer import (
    LANGUAGES,
    SOURCE_TOKENIZER_TYPE,
    TOKENIZER_TYPE,
    TokenizerSpec,
    read_tokenizers,
    tokenizer_files,
)
from heed.interop.name_mapping import (
    IdMapping,
    fold_embedding_scale,
    layers_from_heed,
    layers_to_heed,
    sines_then_cosines,
    suppress_bos,
)
from heed.model.positions import sinusoids
from heed.search_config import SearchConfig

_ACTIVATIONS: dict[str, Literal["relu", "gelu", "swish"]] = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "silu": "swish",
}
# The only supported value of each setting, if it is present, and why.
_REQUIRED_VALUES: dict[str, tuple[Any, str]] = {
    "model_type": ("marian", "other models of the library compute something else"),
    "normalize_before": (False, "MarianMT normalises after each residual sum"),
    "normalize_embedding": (False, "heed does not normalise the embeddings"),
    "add_final_layer_norm": (False, "there is no last norm after layers that normalise their output"),
    "static_position_embeddings": (True, "MarianMT's positions are sinusoids"),
    "is_encoder_decoder": (True, "heed imports encoder-decoder models only"),
}
_KNOWN_NAMES = r"final_logits_bias|lm_head\.weight|model\.(shared|(encoder|decoder)\.embed_(tokens|positions))\.weight"
# MarianConfig's defaults for settings that a file may omit.
_DEFAULTS: dict[str, Any] = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
    "num_beams": 4,
}
# The values that MarianMT supports, and why no others.
_EXPORTABLE_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "kind": (("encoder-decoder",), "MarianMT is an encoder-decoder"),
    "mixer": (("attention",), "its layers have self-attention"),
    "norm": (("post",), "MarianMT is post-norm"),
    "positions": (("sinusoidal",), "its positions are sinusoidal"),
    "activation": (("relu", "gelu", "swish"), "its feed-forward network has no gate"),
    "norm_eps": ((1e-5,), "its layer norm adds 1e-5"),
}


def import_marian(folder: Path, out: Path, weights: str | None = None, languages: tuple[str, str] = ("", "")) -> None:
    """Import the MarianMT folder `folder` as the model folder `out`.

    weights: the file of weights to read, if not model.safetensors. languages: of source and target, instead of
    those in the folder.
    """
    refuse_to_overwrite(out)
    theirs = read_json(folder / "config.json")
    if theirs.get("model_type") is None and isinstance(theirs.get("model"), Mapping):
        raise FolderError(f"{folder} is a heed model folder already: expected a MarianMT model of Hugging Face")
    config = _DEFAULTS | theirs
    _check_config(folder, config)
    tokenizers = read_tokenizers(folder, config)
    id_mappings = tuple(
        IdMapping.of(size, config["pad_token_id"], start, config["eos_token_id"], side.unk)
        for size, start, side in zip(_sizes(config), _starts(config, *tokenizers), tokenizers, strict=True)
    )
    target = tokenizers[1].build(id_mappings[1].their_ids)
    source = target if tokenizers[0].same_files(tokenizers[1]) else tokenizers[0].build(id_mappings[0].their_ids)
    marian_weights = _read(folder, weights)
    _check_positions(folder, marian_weights, config["d_model"])
    sizes = len(id_mappings[0].their_ids), len(id_mappings[1].their_ids)
    untied = not config["tie_word_embeddings"]
    one_vocabulary = config["share_encoder_decoder_embeddings"] or (untied and source is target)
    model = _model(config, sizes[1], None if one_vocabulary else sizes[0], _has_bias(marian_weights, config))
    data = DataConfig(
        tokenizer=target.kind,
        source_tokenizer=None if source.kind == target.kind else source.kind,
        separate_vocabularies=model.source_vocab_size is not None,
        max_tokens=config["max_position_embeddings"] - 1,  # and eos
        source_language=languages[0] or tokenizers[0].language,
        target_language=languages[1] or tokenizers[1].language,
    )
    run = RunConfig(model=model, data=data, search=SearchConfig(beam=config["num_beams"]))
    origin = f"From the Hugging Face MarianMT folder `{folder.resolve().name}`."
    write_imported(out, to_heed(marian_weights, config, model, id_mappings), run, (source, target), origin)


def to_heed(
    marian_weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    model: ModelConfig,
    id_mappings: Sequence[IdMapping],
) -> dict[str, Tensor]:
    """All weights by heed's names, in heed's order of features and ids."""
    order = sines_then_cosines(model.d_model)
    weights = {name.removeprefix("model."): weight for name, weight in marian_weights.items()}
    heed_weights = layers_to_heed(weights, order)
    shared = weights.get("shared.weight")
    separate = {} if model.shares_embedding and shared is not None else weights
    source, target = (separate.get(f"{side}.embed_tokens.weight", shared) for side in ("encoder", "decoder"))
    if source is None or target is None:
        raise FolderError("the weights have no token embeddings, neither model.shared nor embed_tokens of both sides")
    heed_weights["vocabulary.embedding.weight"] = id_mappings[1].rows(target)[:, order]
    if not model.shares_embedding:
        heed_weights["vocabulary.source_embedding.weight"] = id_mappings[0].rows(source)[:, order]
    bias = _bias(marian_weights, config, id_mappings[1], len(target))
    if not model.tie_embeddings:
        heed_weights["vocabulary.output.weight"] = id_mappings[1].rows(weights.get("lm_head.weight", target))[:, order]
        heed_weights["vocabulary.output.bias"] = bias
    elif model.output_bias:
        heed_weights["vocabulary.bias"] = bias
    return heed_weights if config["scale_embedding"] else fold_embedding_scale(heed_weights, model)


def _bias(marian_weights: Mapping[str, Tensor], config: Mapping[str, Any], id_mapping: IdMapping, size: int) -> Tensor:
    bias = id_mapping.rows(marian_weights.get("final_logits_bias", torch.zeros(1, size, dtype=torch.float32))[0])
    return suppress_bos(bias) if config["decoder_start_token_id"] == config["pad_token_id"] else bias


def _has_bias(marian_weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> bool:
    bias = marian_weights.get("final_logits_bias")
    return config["decoder_start_token_id"] == config["pad_token_id"] or (bias is not None and bool(bias.any()))


def _model(config: Mapping[str, Any], size: int, source_size: int | None, has_bias: bool) -> ModelConfig:
    tied = config["tie_word_embeddings"]
    return ModelConfig(
        vocab_size=size,
        source_vocab_size=source_size,
        d_model=config["d_model"],
        heads=config["encoder_attention_heads"],
        encoder_layers=config["encoder_layers"],
        decoder_layers=config["decoder_layers"],
        d_ff=config["encoder_ffn_dim"],
        dropout=float(config["dropout"]),
        attention_dropout=float(config["attention_dropout"]),
        activation_dropout=float(config["activation_dropout"]),
        activation=_ACTIVATIONS[config["activation_function"]],
        tie_embeddings=tied,
        output_bias=tied and has_bias,
        max_length=config["max_position_embeddings"],
    )


def _sizes(config: Mapping[str, Any]) -> tuple[int, int]:
    size = config["vocab_size"]
    shared = config["share_encoder_decoder_embeddings"]
    return size, size if shared else config.get("decoder_vocab_size") or size


def _starts(config: Mapping[str, Any], source: TokenizerSpec, target: TokenizerSpec) -> tuple[int, int]:
    """MarianMT's id of ⟨s⟩ on each side; ⟨pad⟩ where that id is another token of a separate source vocabulary."""
    start = config["decoder_start_token_id"]
    return start if source.names.get(start) == target.names.get(start) else config["pad_token_id"], start


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse settings that heed's model does not have."""
    file = folder / "config.json"
    integers = ["d_model", "vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id"]
    per_side = ("layers", "attention_heads", "ffn_dim")
    integers += [f"{side}_{setting}" for side in ("encoder", "decoder") for setting in per_side]
    for name in integers:
        if not isinstance(config.get(name), int):
            raise FolderError(f"{file}: {name} should be a number, found {config.get(name)!r}")
    for name, (required, reason) in _REQUIRED_VALUES.items():
        if name in config and config[name] != required:
            raise FolderError(f"{file}: {name} = {config[name]!r} is not supported: {reason}")
    if config["activation_function"] not in _ACTIVATIONS:
        activation, supported = config["activation_function"], ", ".join(_ACTIVATIONS)
        raise FolderError(f"{file}: activation_function = {activation!r} is not one of heed's: {supported}")
    for setting in ("attention_heads", "ffn_dim"):
        in_encoder, in_decoder = config[f"encoder_{setting}"], config[f"decoder_{setting}"]
        if in_encoder != in_decoder:
            raise FolderError(
                f"{file}: encoder_{setting} = {in_encoder} and decoder_{setting} = {in_decoder}, "
                "but heed has one for both"
            )


def _read(folder: Path, weights: str | None) -> dict[str, Tensor]:
    name = weights or "model.safetensors"
    if not (folder / name).is_file():
        pickles = sorted(path.name for path in folder.glob("pytorch_model.bin"))
        hint = f"; it has {pickles[0]}, a pickle: to read it, use --weights {pickles[0]}" if pickles else ""
        raise FolderError(f"{folder} has no {name}{hint}")
    tensors = read_weights(folder / name)
    refuse_unknown(folder / name, tensors, _KNOWN_NAMES)
    return tensors


def _check_positions(folder: Path, marian_weights: dict[str, Tensor], d_model: int) -> None:
    """Refuse a table of positions, which some files hold, that is not the formula's sinusoids."""
    for side in ("encoder", "decoder"):
        table = marian_weights.get(f"model.{side}.embed_positions.weight")
        if table is not None:
            formula = sinusoids(torch.arange(len(table)), d_model)
            if not torch.allclose(table[:, sines_then_cosines(d_model)].double(), formula.double(), atol=1e-4):
                raise FolderError(f"{folder}: the positions of the {side} are not MarianMT's sinusoids")


def export_marian(folder: Path, out: Path) -> None:
    """Write the model folder `folder` as the MarianMT folder `out`."""
    refuse_to_overwrite(out)
    opened = read_model_folder(folder)
    refuse_quantized(folder)
    _check_expressible(folder, opened.run.model)
    weights = to_marian(opened.model().state_dict(), opened.run.model)
    files = {
        "config.json": json_bytes(_config(opened.run)),
        "generation_config.json": json_bytes(_generation(opened.run)),
        "model.safetensors": save(weights, {"format": "pt"}),
        **tokenizer_files(opened.tokenizers, opened.run),
    }
    write_folder(out, files)


def to_marian(heed_weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """All weights by MarianMT's names, in its order of features; the ids stay as they are."""
    order = sines_then_cosines(config.d_model)
    inverse = order.argsort()
    marian_weights = {f"model.{name}": weight for name, weight in layers_from_heed(heed_weights, order).items()}
    embedding = heed_weights["vocabulary.embedding.weight"][:, inverse]
    if config.shares_embedding:
        marian_weights["model.shared.weight"] = embedding
    else:
        marian_weights["model.decoder.embed_tokens.weight"] = embedding
        source_embedding = heed_weights["vocabulary.source_embedding.weight"][:, inverse]
        marian_weights["model.encoder.embed_tokens.weight"] = source_embedding
    if not config.tie_embeddings:
        marian_weights["lm_head.weight"] = heed_weights["vocabulary.output.weight"][:, inverse]
    bias = heed_weights.get("vocabulary.bias" if config.tie_embeddings else "vocabulary.output.bias")
    if bias is None:
        bias = torch.zeros(config.vocab_size, dtype=torch.float32)
    marian_weights["final_logits_bias"] = bias[None]
    return {name: weight.contiguous() for name, weight in marian_weights.items()}


def _config(run: RunConfig) -> dict[str, Any]:
    model = run.model
    per_side = {"attention_heads": model.heads, "ffn_dim": model.d_ff}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": model.source_vocab_size or model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in per_side.items()},
        "activation_function": model.activation,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.shares_embedding,
        "tie_word_embeddings": model.tie_embeddings,
        "max_position_embeddings": model.max_length,
        "dtype": "float32",
        **_special_ids(model),
        TOKENIZER_TYPE: run.data.tokenizer,
        SOURCE_TOKENIZER_TYPE: run.data.tokenizer_types[0],
        LANGUAGES: [run.data.source_language, run.data.target_language],
    }


def _special_ids(model: ModelConfig) -> dict[str, Any]:
    return {
        "pad_token_id": model.pad_id,
        "bos_token_id": model.bos_id,
        "eos_token_id": model.eos_id,
        "decoder_start_token_id": model.bos_id,
        "forced_eos_token_id": model.eos_id,
    }


def _generation(run: RunConfig) -> dict[str, Any]:
    """Beam search as in the run's settings, as far as `generate` can express them."""
    never_generated = [[run.model.pad_id], [run.model.bos_id]]
    max_positions = run.model.max_length - 1
    return {
        **_special_ids(run.model),
        "bad_words_ids": never_generated,
        "num_beams": run.search.beam,
        **({"length_penalty": run.search.length_penalty} if run.search.beam > 1 else {}),
        "max_length": min(max_positions, run.data.max_tokens + 50),
    }


def _check_expressible(folder: Path, config: ModelConfig) -> None:
    for name, (exportable, reason) in _EXPORTABLE_VALUES.items():
        value = getattr(config, name)
        if value not in exportable:
            raise ConfigError(
                f"{folder}: {name} = {json.dumps(value)} cannot be expressed by MarianMT: {reason}. "
                "Other formats of heed export may support it"
            )
