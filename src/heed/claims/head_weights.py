"""How much each head of a translation model attends to related tokens, and how much two heads have in common.

Enters: a model and sentence pairs of the built-in corpus. Leaves: attention weights, averaged over the sentences.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heed.claims.claim import Context
from heed.claims.relations import CROSS, GRAMMATICAL, POSITIONAL, PositionPair, Relation, related_tokens, tokens_of
from heed.claims.result import Scale
from heed.decoding.forced_decoding import teacher_forcing_batch
from heed.interpret.observe import observe
from heed.interpret.parts import attentions
from heed.microworld.corpus import DatasetSplit, corpus
from heed.model.attention import fused_attention
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer, TokenizerPair

# The smallest models know the words of their few training sentences, and hardly any other sentence.
_SPLITS: dict[Scale, DatasetSplit] = {"smallest": "train", "small": "valid", "full": "valid"}
_SENTENCES: dict[Scale, int] = {"smallest": 20, "small": 1000, "full": 1000}
_BATCH = 250  # sentences


@dataclass(frozen=True)
class ParsedPair:
    """The token ids of a sentence pair, and the positions of its related tokens."""

    source: list[int]
    target: list[int]
    related: Mapping[Relation, Sequence[PositionPair]]


def parsed_pairs(context: Context, tokenizers: TokenizerPair) -> list[ParsedPair]:
    """The sentence pairs to measure on; those with a word that the vocabulary lacks are left out."""
    parsed = []
    for example in corpus(_SPLITS[context.scale], _SENTENCES[context.scale]):
        source, target = _word_ids(tokenizers[0], example.source), _word_ids(tokenizers[1], example.target)
        if source is not None and target is not None:
            parsed.append(ParsedPair(source, target, related_tokens(example)))
    return parsed


def _word_ids(tokenizer: Tokenizer, text: str) -> list[int] | None:
    """The ids, if each token is a word or punctuation mark: a word that the vocabulary lacks is encoded as bytes."""
    (ids,) = tokenizer.encode([text])
    tokens = [token.strip().lower() for token in tokenizer.tokens(ids)]
    return ids if tokens == tokens_of(text) else None


def weights_on_related(model: Transformer, pairs: Sequence[ParsedPair]) -> dict[Relation, list[float]]:
    """The mean weight of each head on the related token."""
    by_batch = [related_weights(batch, weights) for batch, weights in _attention_weights(model, pairs)]
    return {
        relation: torch.cat([weights[relation] for weights in by_batch]).mean(0).tolist()
        for relation in (*POSITIONAL, *GRAMMATICAL)
    }


def related_weights(batch: Sequence[ParsedPair], weights: Mapping[str, Tensor]) -> dict[Relation, Tensor]:
    """The weight of each head on each related token, (tokens, heads): of the encoder's heads, or of cross-attention's.

    weights: of each attention sub-layer, (B, H, R, C), by its path.
    """
    encoder, cross = (
        torch.cat([values for path, values in weights.items() if path.startswith(side) and path.endswith(kind)], 1)
        for side, kind in (("encoder", "self"), ("decoder", "cross"))
    )
    found: dict[Relation, Tensor] = {}
    for relation in (*POSITIONAL, *GRAMMATICAL):
        positions = [(row, *related) for row, pair in enumerate(batch) for related in pair.related[relation]]
        rows, queries, keys = torch.tensor(positions, dtype=torch.int64).reshape(-1, 3).T
        found[relation] = (cross if relation in CROSS else encoder)[rows, :, queries, keys]
    return found


def fixed_distance_shares(pairs: Sequence[ParsedPair], relation: Relation, count: int) -> list[float]:
    """The shares of related tokens at the `count` most frequent distances: what heads find that know positions only."""
    distances = Counter(key - query for pair in pairs for query, key in pair.related[relation])
    shares = [number / distances.total() for _, number in distances.most_common(count)]
    return shares + [0.0] * (count - len(shares))


def overlaps(model: Transformer, pairs: Sequence[ParsedPair]) -> dict[str, float]:
    """The weight that two heads of a sub-layer have in common, by path."""
    common: dict[str, list[Tensor]] = {path: [] for path in attentions(model.config)}
    for batch, weights in _attention_weights(model, pairs):
        for path, of_heads in weights.items():
            common[path].append(common_weight(of_heads)[_rows_with_choice(path, batch, of_heads.shape[-2])])
    return {path: torch.cat(values).mean().item() for path, values in common.items()}


def common_weight(weights: Tensor) -> Tensor:
    """Σ min(p, q) for the rows p and q of two heads, averaged over all pairs of heads: (B, H, R, C) to (B, R)."""
    heads = weights.unbind(1)
    return torch.stack([torch.minimum(p, q).sum(-1) for i, p in enumerate(heads) for q in heads[:i]]).mean(0)


def _rows_with_choice(path: str, batch: Sequence[ParsedPair], rows: int) -> Tensor:
    """True for rows that are not padding, and not the decoder's first, which attends to itself only: (B, R)."""
    lengths = torch.tensor([len(pair.source if path.startswith("encoder") else pair.target) + 1 for pair in batch])
    positions, first = torch.arange(rows), int(path.startswith("decoder") and path.endswith("self"))
    return (positions >= first) & (positions < lengths[:, None])


def _attention_weights(
    model: Transformer, pairs: Sequence[ParsedPair]
) -> Iterator[tuple[Sequence[ParsedPair], dict[str, Tensor]]]:
    """Batches of sentence pairs, and the weights of each attention sub-layer, (B, H, R, C), by its path."""
    names = [f"{path}.weights" for path in attentions(model.config)]
    for start in range(0, len(pairs), _BATCH):
        batch = pairs[start : start + _BATCH]
        src, tgt_in, _ = teacher_forcing_batch(model, [pair.source for pair in batch], [pair.target for pair in batch])
        weights = observe(model, src, tgt_in, names=names, attend=fused_attention)
        yield batch, {name.removesuffix(".weights"): values.float().cpu() for name, values in weights.items()}
