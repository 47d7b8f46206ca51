"""BPE-dropout (Provilkov et al. 2020): re-segments sentences at random, reproducibly, from a key per sentence.

Enters: sentences as ids without special tokens, and a key for each. Leaves: the same sentences in other ids. The result
is a pure function of the sentence and its key: other sentences, their order and the process do not matter.

The algorithm is the paper's. A word, as the pre-tokenizer splits text into words, starts as bytes. In every round each
applicable merge, at each of its positions, is dropped with probability `p`; the remaining merge of the lowest rank is
applied (leftmost first); the word is done when no merge is left. Two observations make this fast:

-   A round drops its best `k` merges and keeps the next with probability `p**k * (1 - p)`. So a round takes one draw
    from a geometric distribution.
-   The outcome of a round depends only on the current tokens of the word and on `k`. So each state of a word and the
    transitions from it are computed once and cached, and segmenting a word is a walk over cached states. Only very long
    words, such as whole sentences of a language without spaces, are merged anew every time.

The dropout of the `tokenizers` library takes no seed, and drops less than the paper's: merges that no longer apply stay
in its queue, and each of them that is not dropped gives all dropped merges another chance.

Knows nothing of epochs, batches or torch.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import shake_128
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, pre_tokenizers

from heed.errors import ConfigError, DataError
from heed.text.tokenizer import Tokenizer

# A space, represented by Ġ, always starts a word unless white space follows it. Every white-space character shares its
# first byte with one of these. So do other characters: where the first byte is ambiguous the text is not split, so a
# run may hold several words.
_TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_WHITE_SPACE = _TO_BYTES.pre_tokenize_str("\t\n\v\f\r \x85\u1680\u2000\u3000")[0][0]
_RUNS = re.compile(f"(?!^)(?=Ġ[^{_WHITE_SPACE}])")
_TO_TEXT = decoders.ByteLevel()
WordTokens: TypeAlias = tuple[int, ...]  # the token ids of one word
_LONG = 48  # bytes: longer words have too many and too large states to cache


class _State:
    """A segmentation of a word: the positions of the applicable merges by rank, and the states after each merge."""

    __slots__ = ("merge_positions", "next_states", "tokens")

    def __init__(self, tokens: WordTokens, merge_positions: list[int]) -> None:
        self.tokens = tokens
        self.merge_positions = merge_positions
        self.next_states: list[_State | None] = [None] * len(merge_positions)  # filled on first use


class BpeDropout:
    """Re-segments sentences, dropping each merge with probability `p`.

    cache_size: the most states, runs of words and sentences to cache, each (about 200 MB in all by default); results
    do not depend on it.
    """

    def __init__(self, tokenizer: Tokenizer, p: float, cache_size: int = 2**18) -> None:
        if tokenizer.kind != "bpe":
            raise ConfigError(f"BPE-dropout needs a tokenizer of type bpe, found {tokenizer.kind}")
        if not 0 <= p < 1:
            raise ConfigError(f"the BPE-dropout probability must be at least 0 and less than 1, found {p}")
        model = json.loads(tokenizer.to_json())["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._names = {token: name for name, token in self._ids.items()}
        self._merges = {  # a pair of tokens to the merge's rank and the merged token
            (self._ids[left], self._ids[right]): (rank, self._ids[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        self._pre_tokenizer = HFTokenizer.from_str(tokenizer.to_json()).pre_tokenizer
        self._scale = 1 / math.log(p) if p else 0.0
        self._cache_size = cache_size
        self._states: dict[WordTokens, _State] = {}
        self._runs: dict[str, list[WordTokens]] = {}
        self._sentences: dict[str, list[_State]] = {}

    def __call__(self, sentences: Iterable[Sequence[int]], keys: Iterable[str]) -> list[list[int]]:
        """Re-segment each sentence, seeded by its key (for instance seed, epoch, side and index); keys are unique."""
        texts = self._texts(sentences)
        dropped, start, segmented = self._drop_counts(texts, keys).tolist(), 0, []
        for text in texts:
            segmented.append(self._segment(text, iter(dropped[start : start + len(text)])))
            start += len(text)
        return segmented

    def _texts(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        """Sentences in the byte-level alphabet, one character per byte."""
        names = self._names
        return ["".join([names[token] for token in ids]) for ids in sentences]

    def _drop_counts(self, texts: Sequence[str], keys: Iterable[str]) -> NDArray[np.int64]:
        """The merges each round drops, one draw per byte of each sentence: a word has fewer rounds than bytes."""
        digests = [shake_128(key.encode()).digest(4 * len(text)) for text, key in zip(texts, keys, strict=True)]
        uniform = (np.frombuffer(b"".join(digests), "<u4") + 1.0) / 2**32
        return (np.log(uniform) * self._scale).astype(np.int64)

    def _segment(self, text: str, dropped: Iterator[int]) -> list[int]:
        ids: list[int] = []
        for word in self._sentences.get(text) or self._words(text):
            ids += self._walk(word, dropped) if len(word.tokens) < _LONG else self._merge(word.tokens, dropped)
        return ids

    def _walk(self, state: _State, dropped: Iterator[int]) -> WordTokens:
        """The final tokens of a word, over cached states."""
        while state.next_states and (skipped := next(dropped)) < len(state.next_states):
            state = state.next_states[skipped] or self._step(state, skipped)
        return state.tokens

    def _merge(self, word: WordTokens, dropped: Iterator[int]) -> list[int]:
        """The final tokens of a long word, without cached states."""
        tokens, no_merge = list(word), len(self._merges)

        def rank(position: int) -> int:
            return self._merges.get((tokens[position], tokens[position + 1]), (no_merge, 0))[0]

        ranks = [rank(position) for position in range(len(tokens) - 1)]
        while (best := min(ranks, default=no_merge)) < no_merge:
            position = ranks.index(best)
            if skipped := next(dropped):
                by_rank = sorted(range(len(ranks)), key=ranks.__getitem__)
                if skipped >= len(ranks) or ranks[position := by_rank[skipped]] == no_merge:
                    break
            tokens[position : position + 2] = [self._merges[tokens[position], tokens[position + 1]][1]]
            del ranks[position]
            for neighbour in (position - 1, position):
                if 0 <= neighbour < len(ranks):
                    ranks[neighbour] = rank(neighbour)
        return tokens

    def _words(self, text: str) -> list[_State]:
        """The initial states of the words of a sentence: bytes, nothing merged."""
        words = [self._state(word) for word in self._words_as_bytes(text)]
        if len(self._sentences) < self._cache_size:
            self._sentences[text] = words
        return words

    def _words_as_bytes(self, text: str) -> list[WordTokens]:
        """The words of a sentence, each as the ids of its byte tokens."""
        return [word for run in _RUNS.split(text) for word in self._runs.get(run) or self._words_of_run(run)]

    def _words_of_run(self, run: str) -> list[WordTokens]:
        words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(_TO_TEXT.decode([run]))]
        if "".join(words) != run:
            raise DataError(f"BPE-dropout needs ids of complete UTF-8 characters without special tokens, found {run!r}")
        words_as_bytes = [tuple([self._ids[byte] for byte in word]) for word in words]
        if len(self._runs) < self._cache_size and len(run) < _LONG:
            self._runs[run] = words_as_bytes
        return words_as_bytes

    def _step(self, state: _State, skipped: int) -> _State:
        """The state after applying the best merge that remains when the `skipped` best are dropped."""
        tokens, position = state.tokens, state.merge_positions[skipped]
        _, merged = self._merges[tokens[position], tokens[position + 1]]
        next_state = self._state((*tokens[:position], merged, *tokens[position + 2 :]))
        if next_state.tokens in self._states:  # a cached state must not keep an uncached one alive
            state.next_states[skipped] = next_state
        return next_state

    def _state(self, tokens: WordTokens) -> _State:
        """The state of these tokens, cached if possible."""
        cached = self._states.get(tokens)
        if cached is not None:
            return cached
        pairs = enumerate(pairwise(tokens))
        by_rank = sorted([(self._merges[pair][0], position) for position, pair in pairs if pair in self._merges])
        state = _State(tokens, [position for _, position in by_rank])
        if len(self._states) < self._cache_size and len(tokens) < _LONG:
            self._states[tokens] = state
        return state
