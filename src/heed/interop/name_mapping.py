"""Maps weight names, feature order and token ids between heed and MarianMT or fairseq, which share their names.

Enters: weights by name. Leaves: the same weights by the other system's names.

    encoder.layers.0.attention.query.weight         encoder.layers.0.self_attn.q_proj.weight
    decoder.layers.0.around_cross_attention.norm    decoder.layers.0.encoder_attn_layer_norm
    …

Both keep a matrix as outputs by inputs, so nothing is transposed. What may differ is the order of the D features of a
hidden state. Such an order is free: embeddings, positions, norms and residual sums treat each feature alike, and a
projection only needs its rows or columns in the same order. So reordering the width axis of every weight that reads or
writes hidden states gives another model with the very same logits. Knows nothing of files.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from heed.config import ModelConfig

# Modules of a layer: heed's name, the other toolkits' name.
_MODULES = (
    ("around_cross_attention.norm.", "encoder_attn_layer_norm."),
    ("around_attention.norm.", "self_attn_layer_norm."),
    ("around_feed_forward.norm.", "final_layer_norm."),
    ("cross_attention.query.", "encoder_attn.q_proj."),
    ("cross_attention.key.", "encoder_attn.k_proj."),
    ("cross_attention.value.", "encoder_attn.v_proj."),
    ("cross_attention.output.", "encoder_attn.out_proj."),
    ("attention.query.", "self_attn.q_proj."),
    ("attention.key.", "self_attn.k_proj."),
    ("attention.value.", "self_attn.v_proj."),
    ("attention.output.", "self_attn.out_proj."),
    ("feed_forward.widen.", "fc1."),
    ("feed_forward.narrow.", "fc2."),
)
_TO_HEED = {other_name: heed_name for heed_name, other_name in _MODULES}
_FROM_HEED = dict(_MODULES)
# Added to the logit of ⟨s⟩, a copy of another token: its probability is 0 in float32, and training sees no infinity.
_SUPPRESSED = -100.0
# Weights whose columns are the features of hidden states, and weights whose rows are.
_FEATURE_COLUMNS = ("query.weight", "key.weight", "value.weight", "widen.weight")
_FEATURE_ROWS = ("output.weight", "output.bias", "narrow.weight", "narrow.bias", "norm.weight", "norm.bias")


def sines_then_cosines(d_model: int) -> Int[Tensor, "D"]:
    """The index of each of heed's interleaved sinusoids where all sines come first: 0, d/2, 1, d/2 + 1, …

    ``features[sines_then_cosines(d)]`` is heed's order.
    """
    return torch.arange(d_model).view(2, d_model // 2).T.flatten()


def layers_to_heed(weights: Mapping[str, Tensor], order: Int[Tensor, "D"]) -> dict[str, Tensor]:
    """The weights of all layers by heed's names, their features in this order."""
    renamed = {_rename(name, _TO_HEED): weight for name, weight in weights.items() if ".layers." in name}
    return {name: _reorder_features(name, weight, order) for name, weight in renamed.items()}


def layers_from_heed(weights: Mapping[str, Tensor], order: Int[Tensor, "D"]) -> dict[str, Tensor]:
    """The inverse of `layers_to_heed`, bit for bit."""
    inverse = order.argsort()
    return {
        _rename(name, _FROM_HEED): _reorder_features(name, weight, inverse)
        for name, weight in weights.items()
        if ".layers." in name
    }


def _rename(name: str, names: Mapping[str, str]) -> str:
    """Rename the module in side.layers.number.module.part; an unknown module stays, and loading refuses it."""
    side, layers, number, rest = name.split(".", 3)
    module, part = rest.rsplit(".", 1)
    return f"{side}.{layers}.{number}.{names.get(f'{module}.', f'{module}.')}{part}"


def _reorder_features(name: str, weight: Shaped[Tensor, "..."], order: Int[Tensor, "D"]) -> Shaped[Tensor, "..."]:
    if name.endswith(_FEATURE_COLUMNS):
        return weight[:, order]
    return weight[order] if name.endswith(_FEATURE_ROWS) else weight


@dataclass(frozen=True)
class IdMapping:
    """The other toolkit's id of each of heed's ids, for one vocabulary."""

    their_ids: tuple[int, ...]

    @classmethod
    def of(cls, size: int, pad: int, start: int, eos: int, unk: int | None) -> "IdMapping":
        """⟨pad⟩, ⟨s⟩ and ⟨/s⟩ first, the unknown token last, all others in their order between.

        Toolkits that start decoding with the pad or eos token have no ⟨s⟩: heed's is then a copy of that token.
        """
        last = [] if unk is None else [unk]
        others = [token_id for token_id in range(size) if token_id not in (pad, start, eos, unk)]
        return cls((pad, start, eos, *others, *last))

    def rows(self, matrix: Shaped[Tensor, "V *D"]) -> Shaped[Tensor, "N *D"]:
        """The rows of an embedding matrix, or the values of a bias, in heed's order of ids."""
        return matrix[torch.tensor(self.their_ids)]


def suppress_bos(bias: Float[Tensor, "V"]) -> Float[Tensor, "V"]:
    """An output bias that gives ⟨s⟩, a copy of another token, no probability."""
    changed = bias.clone()
    changed[1] += _SUPPRESSED
    return changed


def fold_embedding_scale(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The weights of a model that does not scale its embeddings by √d_model, for one that does.

    heed multiplies them, so they are divided here. Tied embeddings are also the output projection, which would be
    divided as well: so weight and bias of the decoder's last norm, which the projection reads, are multiplied.
    """
    factor, changed = math.sqrt(config.d_model), dict(weights)
    for name in ("vocabulary.embedding.weight", "vocabulary.source_embedding.weight"):
        if name in changed:
            changed[name] = changed[name] / factor
    if config.tie_embeddings:
        last = f"layers.{config.decoder_layers - 1}.around_feed_forward.norm" if config.norm == "post" else "norm"
        for part in ("weight", "bias"):
            changed[f"decoder.{last}.{part}"] = changed[f"decoder.{last}.{part}"] * factor
    return changed
