"""Alignments of tokens and of words, from attention weights on the source tokens.

Enters: a weight per target and source token (forced_decoding.py). Leaves: pairs of indices. Knows nothing of torch.
"""

from collections.abc import Sequence

AlignmentMatrix = list[list[float]]  # a row per target token, a column per source token


def argmax_alignment(weights: AlignmentMatrix) -> list[tuple[int, int]]:
    """(source, target): for each target token the source token with the largest weight."""
    return [(row.index(max(row)), target) for target, row in enumerate(weights) if row]


def word_alignment(
    source: Sequence[str], target: Sequence[str], alignment: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """A token alignment as one of whitespace-separated words, counted from 0: the Pharaoh format's pairs."""
    source_words, target_words = _word_indices(source), _word_indices(target)
    pairs = {(source_words[from_], target_words[to]) for from_, to in alignment}
    return sorted((from_, to) for from_, to in pairs if from_ is not None and to is not None)


def _word_indices(tokens: Sequence[str]) -> list[int | None]:
    """The index of the word that each token is part of; none for a token of white space."""
    indices: list[int | None] = []
    text = ""
    for token in tokens:
        words = len(text.split())
        continues = words > 0 and not text[-1].isspace() and not token[:1].isspace()
        indices.append(words - continues if token.strip() else None)
        text += token
    return indices
