"""Imports a fairseq `transformer` checkpoint and its dictionaries as a model folder, without fairseq.

    checkpoint_best.pt              the weights, and the settings it was trained with
    dict.en.txt  dict.de.txt        the source and target vocabularies, one token and its count per line
    sentencepiece.bpe.model         a .model or .spm file, if there is one, tokenises text; else text is pretokenised

Differences between fairseq and heed, and how they are converted:

    other sinusoids, counted from 2    a table of learned positions with fairseq's values
    decoding starts with </s>          its embedding is copied to ⟨s⟩, which is never generated
    no bias at the output              a bias of zeros
    ids <s> <pad> </s> <unk> …         reordered: ⟨pad⟩ ⟨s⟩ ⟨/s⟩ first, the unknown token last

The checkpoint is a pickle, which must be named with --weights. torch loads it with `weights_only=True`, so that it may
hold only tensors, plain values and fairseq's settings (`argparse.Namespace`).
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor

from heed.config import DataConfig, ModelConfig, RunConfig
from heed.errors import FolderError
from heed.interop.folders import read_pickle, refuse_to_overwrite, refuse_unknown, write_imported
from heed.interop.name_mapping import IdMapping, fold_embedding_scale, layers_to_heed, suppress_bos
from heed.interop.spm import read_spm, tokenizer_from_spm
from heed.text.imported_tokenizers import UNKNOWN, UNMATCHABLE
from heed.text.tokenizer import SPECIAL, Tokenizer

_BOS, _PAD, _EOS, _UNK = range(4)
_FIRST_POSITION = _PAD + 1  # fairseq's index of the first position
# The only supported value of each setting, if it is present, and why.
_REQUIRED_VALUES: dict[str, tuple[Any, str]] = {
    "adaptive_softmax_cutoff": (None, "heed has one output matrix"),
    "no_token_positional_embeddings": (False, "heed always has positional encodings"),
    "layernorm_embedding": (False, "heed does not normalise the embeddings"),
    "no_cross_attention": (False, "heed's decoder attends to the source"),
    "cross_self_attention": (False, "heed attends to source and target one after the other"),
    "no_decoder_final_norm": (False, "heed's pre-norm stacks end with a norm"),
    "base_layers": (0, "heed has no mixture of experts"),
}
_KNOWN_NAMES = (
    r"(encoder|decoder)\.(version|embed_(tokens|positions)\..*|layer_norm\..*|output_projection\.weight|embed_out)"
)
_OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def import_fairseq(folder: Path, out: Path, weights: str | None = None, languages: tuple[str, str] = ("", "")) -> None:
    """Import the fairseq model in `folder` as the model folder `out`.

    weights: the checkpoint to read, which must be named. languages: of source and target, if it does not say.
    """
    refuse_to_overwrite(out)
    if weights is None:
        names = ", ".join(sorted(path.name for path in folder.glob("*.pt"))) or "none"
        raise FolderError(f"{folder}: a fairseq checkpoint is a pickle: name it with --weights; found {names}")
    checkpoint = read_pickle(folder / weights, [argparse.Namespace])
    settings, fairseq_weights = _settings(folder / weights, checkpoint), _upgraded(checkpoint["model"])
    languages = _languages(folder, settings, languages)
    vocabularies = [_read_dictionary(folder / f"dict.{language}.txt") for language in languages]
    refuse_unknown(folder / weights, fairseq_weights, _KNOWN_NAMES)
    model = _model(folder, settings, fairseq_weights, [len(tokens) + 1 for tokens in vocabularies])
    id_mappings = [IdMapping.of(len(tokens), _PAD, _EOS, _EOS, _UNK) for tokens in vocabularies]
    target, source = (
        _tokenizer(folder, tokens, id_mapping)
        for tokens, id_mapping in zip(vocabularies[::-1], id_mappings[::-1], strict=True)
    )
    data = DataConfig(
        tokenizer=target.kind,
        separate_vocabularies=model.source_vocab_size is not None,
        max_tokens=min(256, model.max_length - 1),
        source_language=languages[0],
        target_language=languages[1],
    )
    tokenizers = (target if source.to_json() == target.to_json() else source, target)
    origin = f"From the fairseq checkpoint `{weights}` in `{folder.resolve().name}`."
    heed_weights = _to_heed(fairseq_weights, settings, model, id_mappings)
    write_imported(out, heed_weights, RunConfig(model=model, data=data), tokenizers, origin)


def _settings(path: Path, checkpoint: Any) -> dict[str, Any]:
    """The model's settings, which different versions of fairseq store in different places."""
    if not isinstance(checkpoint, dict) or "model" not in checkpoint:
        raise FolderError(f"{path} is not a fairseq checkpoint: it has no 'model'")
    stored = checkpoint.get("args") or (checkpoint.get("cfg") or {}).get("model")
    if stored is None:
        raise FolderError(f"{path} has no model settings: it has neither 'args' nor 'cfg'")
    settings = vars(stored) if isinstance(stored, argparse.Namespace) else dict(stored)
    task = (checkpoint.get("cfg") or {}).get("task") or {}
    return {**(vars(task) if isinstance(task, argparse.Namespace) else dict(task)), **settings}


def _upgraded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under their names since 2019, as float32."""
    upgraded: dict[str, Tensor] = {}
    for name, weight in weights.items():
        before, dot, last = name.rpartition(".")
        if before.removesuffix(before.rpartition(".")[2]).endswith(".layers."):
            continue  # fairseq 0.12 stores unused copies of each encoder layer's matrices
        if last in ("in_proj_weight", "in_proj_bias"):  # fused QKV
            for part, share in zip(("q_proj", "k_proj", "v_proj"), weight.chunk(3), strict=True):
                upgraded[f"{before}.{part}.{last.removeprefix('in_proj_')}"] = share.float()
        elif ".layer_norms." in name:
            before, number = before.rsplit(".", 1)
            norm = _OLD_NORMS[name.partition(".")[0]][int(number)]
            upgraded[f"{before.removesuffix('layer_norms')}{norm}.{last}"] = weight.float()
        else:
            upgraded[before + dot + last] = weight.float()
    return upgraded


def _languages(folder: Path, settings: Mapping[str, Any], requested: tuple[str, str]) -> tuple[str, str]:
    """The source and target languages, which name the dictionaries; fairseq does not always store them."""
    source, target = requested[0] or settings.get("source_lang"), requested[1] or settings.get("target_lang")
    if not source or not target:
        dictionaries = ", ".join(sorted(path.name for path in folder.glob("dict.*.txt"))) or "no dictionary"
        raise FolderError(
            f"{folder}: the checkpoint does not name its languages: add --languages en-de; found {dictionaries}"
        )
    return str(source), str(target)


def _read_dictionary(path: Path) -> list[str]:
    """The token strings in the order of fairseq's ids: four special tokens, then the dictionary."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FolderError(f"{path}: {error.strerror}") from None
    tokens = ["<s>", "<pad>", "</s>", "<unk>"]
    for number, line in enumerate(lines, 1):
        token, space, count = line.removesuffix(" #fairseq:overwrite").rstrip().rpartition(" ")
        if not space or not count.isdigit():
            raise FolderError(f"{path}:{number}: expected a token and its count, found {line!r}")
        tokens.append(token)
    return tokens


def _model(folder: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor], sizes: list[int]) -> ModelConfig:
    _check(folder, settings, weights)
    layers = [
        len({name.split(".")[2] for name in weights if name.startswith(f"{side}.layers.")}) for side in _OLD_NORMS
    ]
    shared = bool(settings.get("share_all_embeddings"))
    tied = shared or bool(settings.get("share_decoder_input_output_embed"))
    relu_dropout = settings.get("relu_dropout") or 0.0  # the old name
    return ModelConfig(
        vocab_size=sizes[1],
        source_vocab_size=None if shared else sizes[0],
        d_model=weights["encoder.embed_tokens.weight"].shape[1],
        heads=settings["encoder_attention_heads"],
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        d_ff=weights["encoder.layers.0.fc1.weight"].shape[0],
        dropout=float(settings.get("dropout", 0.1)),
        attention_dropout=float(settings.get("attention_dropout") or 0.0),
        activation_dropout=float(settings.get("activation_dropout") or relu_dropout),
        activation=settings.get("activation_fn", "relu"),
        norm="pre" if settings.get("encoder_normalize_before") else "post",
        positions="learned",
        max_length=_max_length(settings, weights),
        tie_embeddings=tied,
        output_bias=tied,
    )


def _check(folder: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    for name, (required, reason) in _REQUIRED_VALUES.items():
        if (value := settings.get(name, required)) != required:
            raise FolderError(f"{folder}: {name} = {value!r} is not supported: {reason}")
    if (activation := settings.get("activation_fn", "relu")) not in ("relu", "gelu"):
        raise FolderError(f"{folder}: activation_fn = {activation!r} is not one of heed's: relu, gelu")
    for name in ("attention_heads", "ffn_embed_dim", "normalize_before", "learned_pos", "embed_dim"):
        in_encoder, in_decoder = settings.get(f"encoder_{name}"), settings.get(f"decoder_{name}")
        if in_encoder != in_decoder:
            raise FolderError(
                f"{folder}: encoder_{name} = {in_encoder} and decoder_{name} = {in_decoder}, but heed has one for both"
            )
    if settings.get("encoder_normalize_before") and "decoder.layer_norm.weight" not in weights:
        raise FolderError(f"{folder}: this pre-norm model of an early fairseq has no final norm, but heed's has one")


def _max_length(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> int:
    tables = [weights.get(f"{side}.embed_positions.weight") for side in ("encoder", "decoder")]
    if settings.get("encoder_learned_pos"):
        return min(len(table) - _FIRST_POSITION for table in tables if table is not None)
    return max(int(settings.get(f"max_{side}_positions") or 1024) for side in ("source", "target"))


def _to_heed(
    fairseq_weights: Mapping[str, Tensor], settings: Mapping[str, Any], model: ModelConfig, id_mappings: list[IdMapping]
) -> dict[str, Tensor]:
    heed_weights = layers_to_heed(fairseq_weights, torch.arange(model.d_model))
    for side in ("encoder", "decoder"):
        table = fairseq_weights.get(
            f"{side}.embed_positions.weight", fairseq_sinusoids(model.max_length + _FIRST_POSITION, model.d_model)
        )
        heed_weights[f"{side}.positions.table.weight"] = table[_FIRST_POSITION : _FIRST_POSITION + model.max_length]
        if model.norm == "pre":
            for part in ("weight", "bias"):
                heed_weights[f"{side}.norm.{part}"] = fairseq_weights[f"{side}.layer_norm.{part}"]
    source, target = (fairseq_weights[f"{side}.embed_tokens.weight"] for side in ("encoder", "decoder"))
    heed_weights["vocabulary.embedding.weight"] = id_mappings[1].rows(target)
    if not model.shares_embedding:
        heed_weights["vocabulary.source_embedding.weight"] = id_mappings[0].rows(source)
    bias = suppress_bos(torch.zeros(model.vocab_size, dtype=torch.float32))
    if model.tie_embeddings:
        heed_weights["vocabulary.bias"] = bias
    else:
        output = fairseq_weights.get("decoder.output_projection.weight", fairseq_weights.get("decoder.embed_out"))
        if output is None:
            raise FolderError("the checkpoint has no output matrix: neither decoder.output_projection nor embed_out")
        heed_weights |= {"vocabulary.output.weight": id_mappings[1].rows(output), "vocabulary.output.bias": bias}
    return fold_embedding_scale(heed_weights, model) if settings.get("no_scale_embedding") else heed_weights


def fairseq_sinusoids(length: int, width: int) -> Float[Tensor, "length width"]:
    """sin(pos · 10000^(-i / (d/2 - 1))) for all i, then the cosines: not quite the paper's frequencies."""
    pair = torch.arange(width // 2, dtype=torch.float64)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * (-pair * math.log(10_000) / (width // 2 - 1)).exp()
    return torch.cat((angle.sin(), angle.cos()), 1).float()


def _tokenizer(folder: Path, tokens: list[str], id_mapping: IdMapping) -> Tokenizer:
    names = [tokens[token_id] for token_id in id_mapping.their_ids[len(SPECIAL) : -1]]
    spm_files = sorted([*folder.glob("*.model"), *folder.glob("*.spm")])
    if spm_files:
        return tokenizer_from_spm(read_spm(spm_files[0]), names)
    entries = [
        *(UNMATCHABLE + name for name in SPECIAL),
        UNMATCHABLE + names[0],  # <s>, which no text encodes to
        *names[1:],
        UNMATCHABLE + UNKNOWN,
    ]
    vocabulary = {name: token_id for token_id, name in enumerate(entries)}
    if len(vocabulary) < len(entries):
        raise FolderError(f"{folder}: a dictionary has {len(entries) - len(vocabulary)} words twice")
    backend = Backend(models.WordLevel(vocabulary, unk_token=UNMATCHABLE + UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer.from_json(json.dumps(json.loads(backend.to_str()), ensure_ascii=False), "spaced")
