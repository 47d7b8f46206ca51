"""BPE-dropout (Provilkov et al. 2020): a text re-segmented at random each time, as a key decides.

Enters: sentences as ids without special tokens, and a key for each. Leaves: the same sentences in other ids. These are
a pure function of the sentence and its key: they depend on no other sentence, on no order and on no process.

The algorithm is the paper's. A word, as the pre-tokenizer splits text into words, starts as bytes. In every round each
merge that applies, wherever it does, is dropped with the given chance; the best of the others is applied (the leftmost,
if it applies twice); the word is done when no merge is left. Two observations make this fast:

-   That a round drops its best `k` merges and keeps the next has the chance `chance**k * (1 - chance)`. So a round is
    one number drawn from a geometric distribution.
-   Where a round leads depends on the pieces that the word is in, and on `k`. So a state of a word, and the steps from
    it, are computed once and remembered, and segmenting a word is a walk along known steps. Only very long words, such
    as whole sentences of a language without spaces, are merged step by step every time.

The dropout of the `tokenizers` library takes no seed, and drops less than the paper's: merges that no longer apply stay
in its queue, and each of them that is not dropped gives all dropped ones another chance.

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
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers

from heed.errors import ConfigError, DataError
from heed.text.tokenizer import Tokenizer

# A space, shown as Ġ, always starts a word unless white space follows it. All white space starts with the same byte as
# one of these, and so do other characters: where a byte leaves a doubt nothing is cut, so a run is one word or more.
_TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_WHITE_SPACE = _TO_BYTES.pre_tokenize_str("\t\n\v\f\r \x85\u1680\u2000\u3000")[0][0]
_RUNS = re.compile(f"(?!^)(?=Ġ[^{_WHITE_SPACE}])")
_TO_TEXT = decoders.ByteLevel()
Word: TypeAlias = tuple[int, ...]  # in pieces
_LONG = 48  # bytes of a word whose states are too many, and too large, to be remembered


class _State:
    """A word in pieces: where each merge that applies is, best first, and the state after it, once known."""

    __slots__ = ("after", "pieces", "places")

    def __init__(self, pieces: Word, places: list[int]) -> None:
        self.pieces = pieces
        self.places = places
        self.after: list[_State | None] = [None] * len(places)


class BpeDropout:
    """Cuts sentences anew, dropping merges with a chance of `chance`.

    Of states, of runs of words and of sentences at most `remembered` are, some 200 MB in all; others are worked out
    every time. That is a matter of speed: no result depends on it.
    """

    def __init__(self, tokenizer: Tokenizer, chance: float, remembered: int = 2**18) -> None:
        if tokenizer.kind != "bpe":
            raise ConfigError(f"BPE-dropout needs a tokenizer of kind bpe, found {tokenizer.kind}")
        if not 0 <= chance < 1:
            raise ConfigError(f"the chance to drop a merge is at least 0 and less than 1, found {chance}")
        model = json.loads(tokenizer.to_json())["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._names = {token: name for name, token in self._ids.items()}
        self._merges = {  # a pair of pieces to its rank and what it becomes
            (self._ids[left], self._ids[right]): (rank, self._ids[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        self._into_words = Backend.from_str(tokenizer.to_json()).pre_tokenizer
        self._scale = 1 / math.log(chance) if chance else 0.0
        self._remembered = remembered
        self._states: dict[Word, _State] = {}
        self._runs: dict[str, list[Word]] = {}
        self._sentences: dict[str, list[_State]] = {}

    def __call__(self, sentences: Iterable[Sequence[int]], keys: Iterable[str]) -> list[list[int]]:
        """The ids of each sentence as its key decides.

        A key names the occasion, for instance by seed, epoch, side and number; no two sentences should have the same.
        """
        texts = self._texts(sentences)
        dropped, start, found = self._dropped(texts, keys).tolist(), 0, []
        for text in texts:
            found.append(self._cut(text, iter(dropped[start : start + len(text)])))
            start += len(text)
        return found

    def _texts(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        """Sentences as the tokenizer writes them, a letter for each byte."""
        names = self._names
        return ["".join([names[token] for token in ids]) for ids in sentences]

    def _dropped(self, texts: Sequence[str], keys: Iterable[str]) -> NDArray[np.int64]:
        """For each sentence how many merges its rounds drop, end to end; a word has fewer rounds than bytes."""
        digests = [shake_128(key.encode()).digest(4 * len(text)) for text, key in zip(texts, keys, strict=True)]
        uniform = (np.frombuffer(b"".join(digests), "<u4") + 1.0) / 2**32
        return (np.log(uniform) * self._scale).astype(np.int64)

    def _cut(self, text: str, dropped: Iterator[int]) -> list[int]:
        ids: list[int] = []
        for word in self._sentences.get(text) or self._words(text):
            ids += self._walk(word, dropped) if len(word.pieces) < _LONG else self._merge(word.pieces, dropped)
        return ids

    def _walk(self, state: _State, dropped: Iterator[int]) -> Word:
        """The pieces that a word ends in."""
        while state.after and (skipped := next(dropped)) < len(state.after):
            state = state.after[skipped] or self._step(state, skipped)
        return state.pieces

    def _merge(self, word: Word, dropped: Iterator[int]) -> list[int]:
        """The pieces that a long word ends in, merged step by step without remembered states."""
        pieces, never = list(word), len(self._merges)

        def rank(place: int) -> int:
            return self._merges.get((pieces[place], pieces[place + 1]), (never, 0))[0]

        ranks = [rank(place) for place in range(len(pieces) - 1)]
        while (best := min(ranks, default=never)) < never:
            place = ranks.index(best)
            if skipped := next(dropped):
                in_order = sorted(range(len(ranks)), key=ranks.__getitem__)
                if skipped >= len(ranks) or ranks[place := in_order[skipped]] == never:
                    break
            pieces[place : place + 2] = [self._merges[pieces[place], pieces[place + 1]][1]]
            del ranks[place]
            for near in (place - 1, place):
                if 0 <= near < len(ranks):
                    ranks[near] = rank(near)
        return pieces

    def _words(self, text: str) -> list[_State]:
        """The words of a sentence, nothing merged."""
        words = [self._state(word) for word in self._in_bytes(text)]
        if len(self._sentences) < self._remembered:
            self._sentences[text] = words
        return words

    def _in_bytes(self, text: str) -> list[Word]:
        """The words of a sentence, each as the ids of its bytes."""
        return [word for run in _RUNS.split(text) for word in self._runs.get(run) or self._words_of_run(run)]

    def _words_of_run(self, run: str) -> list[Word]:
        words = [word for word, _ in self._into_words.pre_tokenize_str(_TO_TEXT.decode([run]))]
        if "".join(words) != run:
            raise DataError(f"ids to cut anew must spell whole characters and hold no special token, found {run!r}")
        in_bytes = [tuple([self._ids[byte] for byte in word]) for word in words]
        if len(self._runs) < self._remembered and len(run) < _LONG:
            self._runs[run] = in_bytes
        return in_bytes

    def _step(self, state: _State, skipped: int) -> _State:
        """The state after the best merge but `skipped`."""
        pieces, place = state.pieces, state.places[skipped]
        _, merged = self._merges[pieces[place], pieces[place + 1]]
        after = self._state((*pieces[:place], merged, *pieces[place + 2 :]))
        if after.pieces in self._states:  # a state forgotten must not be held by one remembered
            state.after[skipped] = after
        return after

    def _state(self, pieces: Word) -> _State:
        """The state of these pieces, from memory if it is there."""
        known = self._states.get(pieces)
        if known is not None:
            return known
        pairs = enumerate(pairwise(pieces))
        found = sorted([(self._merges[pair][0], place) for place, pair in pairs if pair in self._merges])
        state = _State(pieces, [place for _, place in found])
        if len(self._states) < self._remembered and len(pieces) < _LONG:
            self._states[pieces] = state
        return state
