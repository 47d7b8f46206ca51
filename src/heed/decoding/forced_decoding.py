"""Which source token each target token comes from, read off attention.

The decoder's last but one layer is the one whose attention to the source comes closest to what people call alignment
(Garg et al. 2019). Its weights, averaged over the heads, are taken from a forced pass over source and translation.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heed.model.attention import attention_weights, fused_attention
from heed.model.layout import AttentionPattern
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer


def forced_rows(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Padded rows: the sources ended, the targets begun, the targets ended."""
    config = model.config

    def rows(ids: list[list[int]]) -> Tensor:
        there = [torch.tensor(row, device="cpu") for row in ids]
        filled = pad_sequence(there, batch_first=True, padding_value=config.pad_id)
        return filled.to(model.vocabulary.embedding.weight.device)

    begun, ended = [[config.bos_id, *ids] for ids in targets], [[*ids, config.eos_id] for ids in targets]
    return rows([[*ids, config.eos_id] for ids in sources]), rows(begun), rows(ended)


@torch_defaults()
@torch.no_grad()
def token_log_probs(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The log-probability of each target token and of the end after them; several models as one, by their mean."""
    each: list[Float[Tensor, "B T"]] = []
    for model in models:
        src, tgt_in, tgt_out = forced_rows(model, sources, targets)
        log_probs = model(src, tgt_in).float().log_softmax(-1)
        each.append(log_probs.gather(-1, tgt_out[..., None])[..., 0])
    together = torch.stack(each).logsumexp(0) - math.log(len(each))
    return [row[: len(target) + 1] for row, target in zip(together.tolist(), targets, strict=True)]


Weights = list[list[float]]  # one row a target token, one column a source token


@torch.no_grad()
def cross_attention(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[Weights]:
    """How much each target token leaned on each source token when it was predicted; ends left out."""
    across: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float) -> Tensor:
        if pattern.queries is not pattern.keys:
            across.append(attention_weights(q, k, pattern).mean(1))
        return fused_attention(q, k, v, pattern, dropout)

    src, tgt_in, _ = forced_rows(model, sources, targets)
    model.hidden(src, tgt_in, attend=attend)
    weights = across[max(0, len(across) - 2)].tolist()
    return [
        [row[: len(source)] for row in rows[: len(target)]]
        for rows, source, target in zip(weights, sources, targets, strict=True)
    ]


def links(weights: Weights) -> list[tuple[int, int]]:
    """For each target token the source token it leaned on most: (source, target)."""
    return [(row.index(max(row)), place) for place, row in enumerate(weights) if row]


def word_alignment(
    source: Sequence[str], target: Sequence[str], alignment: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The same between words, which white space parts: the form that alignment tools read. Numbers count from 0."""
    of_source, of_target = _words(source), _words(target)
    pairs = {(of_source[one], of_target[other]) for one, other in alignment}
    return sorted((one, other) for one, other in pairs if one is not None and other is not None)


def _words(tokens: Sequence[str]) -> list[int | None]:
    """The number of the word that each token begins or goes on with; none where it is only white space."""
    numbers: list[int | None] = []
    text = ""
    for token in tokens:
        words = len(text.split())
        goes_on = words > 0 and not text[-1].isspace() and not token[:1].isspace()
        numbers.append(words - goes_on if token.strip() else None)
        text += token
    return numbers
