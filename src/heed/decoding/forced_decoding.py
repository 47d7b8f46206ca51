"""Forced decoding: log-probabilities of given targets, and their word alignment by cross-attention.

Alignment is read off the cross-attention of the last but one decoder layer, averaged over its heads: of all layers it
comes closest to alignments by human annotators (Garg et al., 2019).
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.decoding.alignment import AlignmentMatrix
from heed.model.attention import attention_weights, fused_attention
from heed.model.layout import AttentionPattern, pad_rows
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer


def teacher_forcing_batch(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Padded `src`, `tgt_in` and `tgt_out`: eos after each source, bos before and eos after each target."""
    bos, eos = [model.config.bos_id], [model.config.eos_id]
    sides = ([*ids, *eos] for ids in sources), ([*bos, *ids] for ids in targets), ([*ids, *eos] for ids in targets)
    src, tgt_in, tgt_out = (pad_rows(rows, model.config.pad_id, model.device) for rows in sides)
    return src, tgt_in, tgt_out


@torch_defaults()
@torch.no_grad()
def token_log_probs(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The log-probability of each target token and of eos; an ensemble averages the probabilities of its models."""
    by_model: list[Float[Tensor, "B T"]] = []
    for model in models:
        src, tgt_in, tgt_out = teacher_forcing_batch(model, sources, targets)
        log_probs = model(src, tgt_in).float().log_softmax(-1)
        by_model.append(log_probs.gather(-1, tgt_out[..., None])[..., 0])
    mean = torch.stack(by_model).logsumexp(0) - math.log(len(by_model))
    return [row[: len(target) + 1] for row, target in zip(mean.tolist(), targets, strict=True)]


@torch.no_grad()
def alignment_matrices(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[AlignmentMatrix]:
    """The attention weight on each source token where each target token is predicted, without eos.

    The rows of a model without cross-attention are empty.
    """
    by_layer: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float) -> Tensor:
        if pattern.queries is not pattern.keys:
            by_layer.append(attention_weights(q, k, pattern).mean(1))
        return fused_attention(q, k, v, pattern, dropout)

    src, tgt_in, _ = teacher_forcing_batch(model, sources, targets)
    model.hidden(src, tgt_in, attend=attend)
    if not by_layer:
        return [[[] for _ in target] for target in targets]
    weights = by_layer[max(0, len(by_layer) - 2)].tolist()
    return [
        [row[: len(source)] for row in rows[: len(target)]]
        for rows, source, target in zip(weights, sources, targets, strict=True)
    ]
