"""A Hugging Face MarianMT folder to a model folder.

What MarianMT does otherwise, and what becomes of it:

    all sines, then all cosines        the width is reordered: see weight_names.py
    no √d_model before the embeddings  folded into the word matrix and the decoder's last norm
    decoding starts with the pad token its vector becomes that of ⟨s⟩, which is never said
    final_logits_bias                  `output_bias`, the bias of the output
    ids in the order of vocab.json     reordered: ⟨pad⟩ ⟨s⟩ ⟨/s⟩ first, the unknown token last

Settings that change what the model computes and that heed does not have are refused.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from heed.config import DataConfig, ModelConfig, RunConfig, SearchConfig
from heed.errors import FolderError
from heed.interop.imported import read_json, read_weights, refuse_to_overwrite, refuse_unknown, write_imported
from heed.interop.marian_tokenizer import Side, read_tokenizers
from heed.interop.name_mapping import Numbering, layers_to_heed, never_start, scaled, sines_then_cosines
from heed.model.positions import sinusoids

_ACTIVATIONS: dict[str, Literal["relu", "gelu", "swish"]] = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "silu": "swish",
}
# What a setting must be if it is there, and why nothing else can be taken over.
_ONLY: dict[str, tuple[Any, str]] = {
    "model_type": ("marian", "other models of the library compute something else"),
    "normalize_before": (False, "MarianMT normalises after each residual sum"),
    "normalize_embedding": (False, "heed does not normalise the embeddings"),
    "add_final_layer_norm": (False, "there is no last norm after layers that normalise their output"),
    "static_position_embeddings": (True, "MarianMT's positions are sinusoids"),
    "is_encoder_decoder": (True, "half a model cannot translate"),
}
_KNOWN = r"final_logits_bias|lm_head\.weight|model\.(shared|(encoder|decoder)\.embed_(tokens|positions))\.weight"
# MarianConfig's own defaults for what a file may leave out.
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


def import_marian(folder: Path, out: Path, weights: str | None = None, languages: tuple[str, str] = ("", "")) -> None:
    """Write the model folder `out`.

    weights: the file of weights to read, if not model.safetensors. languages: of source and target, if they are not
    what the folder says.
    """
    refuse_to_overwrite(out)
    config = _DEFAULTS | read_json(folder / "config.json")
    _check(folder, config)
    tokenizers = read_tokenizers(folder, config)
    numberings = tuple(
        Numbering.of(size, config["pad_token_id"], start, config["eos_token_id"], one.unk)
        for size, start, one in zip(_sizes(config), _starts(config, *tokenizers), tokenizers, strict=True)
    )
    target = tokenizers[1].made(numberings[1].theirs)
    source = target if tokenizers[0].same(tokenizers[1]) else tokenizers[0].made(numberings[0].theirs)
    theirs = _read(folder, weights)
    _check_positions(folder, theirs, config["d_model"])
    sizes = len(numberings[0].theirs), len(numberings[1].theirs)
    untied = not config["tie_word_embeddings"]
    one_vocabulary = config["share_encoder_decoder_embeddings"] or (untied and source is target)
    model = _model(config, sizes[1], None if one_vocabulary else sizes[0], _has_bias(theirs, config))
    data = DataConfig(
        tokenizer=target.kind,
        separate_vocabularies=model.source_vocab_size is not None,
        max_tokens=config["max_position_embeddings"] - 1,  # and the end
        source_language=languages[0] or tokenizers[0].language,
        target_language=languages[1] or tokenizers[1].language,
    )
    run = RunConfig(model=model, data=data, search=SearchConfig(beam=config["num_beams"]))
    origin = f"From the Hugging Face MarianMT folder `{folder.resolve().name}`."
    write_imported(out, to_heed(theirs, config, model, numberings), run, (source, target), origin)


def to_heed(
    theirs: Mapping[str, Tensor], config: Mapping[str, Any], model: ModelConfig, numberings: Sequence[Numbering]
) -> dict[str, Tensor]:
    """All weights by heed's names, in heed's order of the width and of the ids."""
    width = sines_then_cosines(model.d_model)
    inner = {name.removeprefix("model."): weight for name, weight in theirs.items()}
    ours = layers_to_heed(inner, width)
    shared = inner.get("shared.weight")
    own = {} if model.shares_embedding and shared is not None else inner
    source, target = (own.get(f"{side}.embed_tokens.weight", shared) for side in ("encoder", "decoder"))
    if source is None or target is None:
        raise FolderError("the weights have no word embeddings, neither model.shared nor embed_tokens of both sides")
    ours["vocabulary.embedding.weight"] = numberings[1].rows(target)[:, width]
    if not model.shares_embedding:
        ours["vocabulary.source_embedding.weight"] = numberings[0].rows(source)[:, width]
    bias = _bias(theirs, config, numberings[1], len(target))
    if not model.tie_embeddings:
        ours["vocabulary.output.weight"] = numberings[1].rows(inner.get("lm_head.weight", target))[:, width]
        ours["vocabulary.output.bias"] = bias
    elif model.output_bias:
        ours["vocabulary.bias"] = bias
    return ours if config["scale_embedding"] else scaled(ours, model)


def _bias(theirs: Mapping[str, Tensor], config: Mapping[str, Any], numbering: Numbering, size: int) -> Tensor:
    bias = numbering.rows(theirs.get("final_logits_bias", torch.zeros(1, size, dtype=torch.float32))[0])
    return never_start(bias) if config["decoder_start_token_id"] == config["pad_token_id"] else bias


def _has_bias(theirs: Mapping[str, Tensor], config: Mapping[str, Any]) -> bool:
    some = theirs.get("final_logits_bias")
    return config["decoder_start_token_id"] == config["pad_token_id"] or (some is not None and bool(some.any()))


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


def _starts(config: Mapping[str, Any], source: Side, target: Side) -> tuple[int, int]:
    """Their id of ⟨s⟩ on either side. Where that id is a word of a separate source vocabulary, padding serves."""
    start = config["decoder_start_token_id"]
    return start if source.names.get(start) == target.names.get(start) else config["pad_token_id"], start


def _check(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse what cannot be taken over."""
    file = folder / "config.json"
    needed = ["d_model", "vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id"]
    needed += [f"{side}_{what}" for side in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")]
    for name in needed:
        if not isinstance(config.get(name), int):
            raise FolderError(f"{file}: {name} should be a number, found {config.get(name)!r}")
    for name, (only, why) in _ONLY.items():
        if name in config and config[name] != only:
            raise FolderError(f"{file}: {name} = {config[name]!r} cannot be taken over: {why}")
    if config["activation_function"] not in _ACTIVATIONS:
        found, known = config["activation_function"], ", ".join(_ACTIVATIONS)
        raise FolderError(f"{file}: activation_function = {found!r} is not one of heed's: {known}")
    for what in ("attention_heads", "ffn_dim"):
        one, other = config[f"encoder_{what}"], config[f"decoder_{what}"]
        if one != other:
            raise FolderError(f"{file}: encoder_{what} = {one} and decoder_{what} = {other}, and heed has one for both")


def _read(folder: Path, weights: str | None) -> dict[str, Tensor]:
    name = weights or "model.safetensors"
    if not (folder / name).is_file():
        others = sorted(path.name for path in folder.glob("pytorch_model.bin"))
        hint = f"; it has {others[0]}, a pickle: to read it, say --weights {others[0]}" if others else ""
        raise FolderError(f"{folder} has no {name}{hint}")
    found = read_weights(folder / name)
    refuse_unknown(folder / name, found, _KNOWN)
    return found


def _check_positions(folder: Path, theirs: dict[str, Tensor], d_model: int) -> None:
    """Some files hold the table of sinusoids; it must be what the formula says."""
    for side in ("encoder", "decoder"):
        table = theirs.get(f"model.{side}.embed_positions.weight")
        if table is not None:
            formula = sinusoids(torch.arange(len(table)), d_model)
            if not torch.allclose(table[:, sines_then_cosines(d_model)].double(), formula.double(), atol=1e-4):
                raise FolderError(f"{folder}: the positions of the {side} are not MarianMT's sinusoids")
