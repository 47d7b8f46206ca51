"""Corrects misspelt words of a source text.

A model has hardly seen a misspelt word, which falls apart into tokens that mean nothing together. So a word that the
training sources contain rarely or not at all is replaced by a word of theirs, one or two edits away, where that is far
more probable: a noisy channel model (Kernighan et al. 1990) with the bigrams of the training sources as language model.
A word that they do not contain may also be a new one, as probably as its letters look like those of their words.

Enters: a text. Leaves: the text, and its `Correction`s. Knows nothing of tokenizers or models.
"""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp, log
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import NDArray

from heed.text.letter_model import LetterModel
from heed.text.lexicon import BOUNDARY, MARKS, WORD, Lexicon

_MISSPELT = 0.05  # share of misspelt words
# Negative log-probability of each edit of a misspelt word. Of a letter that is replaced or added there are 25 others.
_OMITTED = _DOUBLED = _SWAPPED = np.float32(5.2)
_REPLACED = _ADDED = np.float32(7.5)
_BIGRAM_WEIGHT = 0.9  # the rest is the word's own frequency
_MAX_RARE = 10  # occurrences in the training sources up to which a word may be a misspelling
_MIN_LETTERS_OF_TWO_EDITS = 4
_MAX_LETTERS = 30  # of a word that is corrected
_CACHED = 10_000  # words whose neighbours are cached
_LETTER_BINS = 32  # letters are counted modulo this
_NO_SPACE = re.compile(r"\S+")
_AROUND_WORDS = "\"'“”‘’«»‹›„‚()[]{}<>.,;:!?…¿¡*-–—"  # where they begin and end
_IN_CODE = re.compile(r"[./\\@:=#&+<>()\[\]{}|~^$%*]")  # no sentence has these between two letters


@dataclass(frozen=True)
class Correction:
    """A word of a text, and the one it was replaced by."""

    word: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.word} → {self.replacement}"


class SpellingCorrector:
    """Corrects texts by a lexicon."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._total = max(sum(lexicon.counts.values()), 1)
        self._neighbours = lru_cache(_CACHED)(self._find_neighbours)

    def __call__(self, text: str) -> tuple[str, tuple[Correction, ...]]:
        """The text with its misspelt words replaced, and what was replaced."""
        matches, code = list(WORD.finditer(text)), _code(text)
        words = [BOUNDARY, *(match[0].lower() for match in matches), BOUNDARY]
        corrections, parts, end = list[Correction](), list[str](), 0
        for index, match in enumerate(matches, 1):
            is_text = match.start() not in code and (text.isupper() or not self._is_acronym(match[0]))
            if is_text and self._may_be_misspelt(match[0], words[index], is_first=index == 1):
                best = self._most_probable(*words[index - 1 : index + 2])
                if best != words[index]:
                    words[index] = best  # the next word is judged by it
                    corrections.append(Correction(match[0], _cased_like(match[0], self._lexicon.form(best))))
                    parts += [text[end : match.start()], corrections[-1].replacement]
                    end = match.end()
        return "".join((*parts, text[end:])), tuple(corrections)

    def _may_be_misspelt(self, written: str, word: str, *, is_first: bool) -> bool:
        if self._lexicon.counts.get(word, 0) > _MAX_RARE or not _is_spelt(word):
            return False
        is_name = self._lexicon.capitals_are_names and written[:1].isupper() and not is_first
        return not is_name

    def _is_acronym(self, written: str) -> bool:
        """Whether a word is written as NATO, McDonald or iPhone are; THey, eFrau and uJnge are slips of the finger."""
        rest = written[2:] if len(written) > 3 and written[:2].isupper() else written[1:]
        slips = written[1:], written[1::-1] + written[2:]
        is_slip = any(len(slip) > 1 and self._lexicon.forms.get(slip.lower()) == slip for slip in slips)
        return rest != rest.lower() and (written.isupper() or not is_slip)

    def _most_probable(self, before: str, word: str, after: str) -> str:
        """The word itself or a neighbour of it, between two other words."""
        scores = {word: self._log_prob(before, word) + self._log_prob(word, after)}
        for neighbour, cost in self._neighbours(word):
            if len(word) == len(neighbour) == 1:  # x and n may be meant as they are
                continue
            channel = log(_MISSPELT) - cost
            scores[neighbour] = self._log_prob(before, neighbour) + self._log_prob(neighbour, after) + channel
        return max(scores, key=lambda candidate: scores[candidate])

    def _log_prob(self, before: str, word: str) -> float:
        """The interpolated bigram probability of a word after another."""
        frequency = self._frequency(word)
        if not (count := self._count(before)):
            return log(frequency)
        share = self._lexicon.bigrams.get((before, word), 0) / count
        return log(_BIGRAM_WEIGHT * share + (1 - _BIGRAM_WEIGHT) * frequency)

    def _frequency(self, word: str) -> float:
        if count := self._count(word):
            return count / self._total
        return max(self._lexicon.share_of_new, 1 / self._total) * exp(self._letter_model.log_prob(word))

    def _count(self, word: str) -> int:
        return self._lexicon.texts if word == BOUNDARY else self._lexicon.counts.get(word, 0)

    def _find_neighbours(self, word: str) -> list[tuple[str, float]]:
        """The words of the lexicon within one edit, or two if the word is long and unknown, and what they cost."""
        has_two = len(word) >= _MIN_LETTERS_OF_TWO_EDITS and word not in self._lexicon.counts
        limit = 2 if has_two else 1
        words, letters, letter_counts = self._letters
        own_counts = np.bincount([ord(letter) % _LETTER_BINS for letter in word], minlength=_LETTER_BINS)
        differences = abs(letter_counts - own_counts.astype(np.int8)[:, None]).sum(0, dtype=np.int8)
        near = np.flatnonzero(differences <= 2 * limit)  # an edit changes the counts of two letters at most
        costs = _edit_costs(word, letters[near], letter_counts[:, near].sum(0))
        chosen = np.flatnonzero((costs <= limit * _REPLACED) & (costs > 0))
        return [(words[near[index]], float(costs[index])) for index in chosen]

    @cached_property
    def _letter_model(self) -> LetterModel:
        return LetterModel(self._lexicon.counts)

    @cached_property
    def _letters(self) -> tuple[list[str], NDArray[np.uint32], NDArray[np.int8]]:
        """The words that may be a replacement; code points, a row for each; counts of letters, a column for each."""
        words = [word for word in self._lexicon.counts if len(word) <= _MAX_LETTERS]
        lengths = np.array([len(word) for word in words])
        letters = np.zeros((len(words), _MAX_LETTERS), np.uint32)
        letters[np.arange(_MAX_LETTERS) < lengths[:, None]] = [ord(letter) for word in words for letter in word]
        counts = np.zeros((_LETTER_BINS, len(words)), np.int8)
        row, column = np.nonzero(letters)
        np.add.at(counts, (letters[row, column] % _LETTER_BINS, row), 1)
        return words, letters, counts


def _is_spelt(word: str) -> bool:
    """Whether a word is made of letters that may be mistyped: not of digits, nor Chinese, Japanese or Korean."""
    return len(word) <= _MAX_LETTERS and all(
        letter in MARKS or (letter.isalpha() and east_asian_width(letter) not in "WF") for letter in word
    )


def _code(text: str) -> set[int]:
    """Where the words start that are part of an address, a file name, an abbreviation with full stops or a formula."""
    parts = (part for part in _NO_SPACE.finditer(text) if _IN_CODE.search(part[0].strip(_AROUND_WORDS)))
    return {part.start() + word.start() for part in parts for word in WORD.finditer(part[0])}


def _cased_like(written: str, form: str) -> str:
    """A word in the case of the one it replaces; what is capitalised everywhere remains so."""
    if len(written) > 1 and written.isupper():
        return form.upper()
    return form[:1].upper() + form[1:] if written[:1].isupper() else form


def _edit_costs(word: str, others: NDArray[np.uint32], lengths: NDArray[np.integer]) -> NDArray[np.float32]:
    """The least cost of the edits that misspelt each of the others as a word.

    Optimal string alignment: row i has the costs from the first j letters of the others to the first i of the word.
    """
    columns = others[:, : max(lengths, default=0)].T
    first = np.repeat(_OMITTED * np.arange(len(columns) + 1, dtype=np.float32)[:, None], columns.shape[1], axis=1)
    rows = [first]
    for i, letter in enumerate(word, 1):
        added = _DOUBLED if word[i - 2 : i - 1] == letter else _ADDED
        row = rows[-1] + added
        is_equal = columns == ord(letter)
        for j in range(1, len(row)):
            replaced = rows[-1][j - 1] + _REPLACED * ~is_equal[j - 1]
            row[j] = np.minimum(np.minimum(row[j], row[j - 1] + _OMITTED), replaced)
            if i > 1 and j > 1:
                is_swapped = is_equal[j - 2] & (columns[j - 1] == ord(word[i - 2]))
                row[j] = np.where(is_swapped, np.minimum(row[j], rows[-2][j - 2] + _SWAPPED), row[j])
        rows = [rows[-1], row]
    return rows[-1][lengths, np.arange(columns.shape[1])]
