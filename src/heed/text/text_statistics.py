"""Statistics of the texts of a corpus: their length, alphabet, share of new words, and style.

Default settings depend on them (corpus_defaults.py), and so does the normalisation of inputs (normalization.py).

Enters: the texts of one side, as a stream. Leaves: `TextStatistics`. Only a bounded sample is held in memory.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from heed.text.normalization import TextStyle, text_style

_SAMPLE = 20_000  # texts, at most twice as many
_MAX_CHARACTERS = 500  # of each text
_CJK = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]+")
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]+")  # Thai, Lao, Tibetan, Burmese, Khmer


@dataclass(frozen=True)
class TextStatistics:
    """What the texts of one side are like."""

    texts: int  # in the sample
    characters: float  # per text, on average
    alphabet: int  # distinct characters
    new_words: float  # share of the words of one half of the texts that do not occur in the other half
    style: TextStyle
    cjk: float = 0.0  # share of the characters that are Chinese, Japanese or Korean
    unspaced: float = 0.0  # share of the characters of alphabets without spaces between words, as Thai


class TextSampler:
    """Collects a bounded sample of texts, evenly spread over a stream of unknown length."""

    def __init__(self) -> None:
        self._texts, self._seen, self._stride = list[str](), 0, 1

    def add(self, text: str) -> None:
        if self._seen % self._stride == 0:
            self._texts.append(text[:_MAX_CHARACTERS])
            if len(self._texts) == 2 * _SAMPLE:
                self._texts, self._stride = self._texts[::2], 2 * self._stride
        self._seen += 1

    def statistics(self) -> TextStatistics:
        texts = self._texts
        characters = sum(map(len, texts)) / max(1, len(texts))
        alphabet = len(set().union(*texts)) if texts else 0
        known = {word for text in texts[::2] for word in text.split()}
        words = [word for text in texts[1::2] for word in text.split()]
        new = sum(word not in known for word in words) / max(1, len(words))
        shares = [
            sum(len(run) for text in texts for run in script.findall(text)) / max(1, sum(map(len, texts)))
            for script in (_CJK, _UNSPACED)
        ]
        return TextStatistics(len(texts), characters, alphabet, new, text_style(texts), *shares)


def text_statistics(texts: Iterable[str]) -> TextStatistics:
    """The statistics of the texts of one side."""
    sampler = TextSampler()
    for text in texts:
        sampler.add(text)
    return sampler.statistics()


def combined(parts: Sequence[TextStatistics]) -> TextStatistics:
    """The statistics of several corpora together: means by number of texts, and the largest alphabet."""
    texts = max(1, sum(part.texts for part in parts))

    def mean(value: Callable[[TextStatistics], float]) -> float:
        return sum(part.texts * value(part) for part in parts) / texts

    stops = {part.style.stop for part in parts}
    style = TextStyle(
        mean(lambda part: part.style.capitals),
        mean(lambda part: part.style.title),
        mean(lambda part: part.style.spaces),
        mean(lambda part: part.style.initial),
        stops.pop() if len(stops) == 1 else "",
    )
    alphabet = max(part.alphabet for part in parts)
    characters, new_words = mean(lambda part: part.characters), mean(lambda part: part.new_words)
    shares = mean(lambda part: part.cjk), mean(lambda part: part.unspaced)
    return TextStatistics(texts, characters, alphabet, new_words, style, *shares)
