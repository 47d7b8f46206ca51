"""What is wrong with parallel text, found before a model learns it.

Enters: corpora, read twice. Leaves: how many pairs there are, how long they are, and what was found in them:

    empty, copied           a side has nothing in it; both sides are the same
    swapped                 each side reads like the other side's language
    source_foreign          the source reads like the target's language, as the target does
    target_foreign          the target reads like the source's language, as the source does
    unlike                  a side is unlike all others of its side: a third language, or noise
    unequal, too_long       one side is far longer than the other; a side has, it seems, more than max_tokens tokens
    repeated, ambiguous     a pair was there before; a source has several targets
    leaked                  a validation pair is in training; leaked_source, leaked_target: one side of it is
    replacement, control, spaces, mojibake, markup, decomposed      characters that should not be there

Two texts are the same if their words are. No text is kept but a sample of bounded size: of a pair, 16 bytes (a hash of
each side) stay, so millions of pairs fit into a few hundred MB. Knows nothing of torch, terminals or remedies.
"""

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from heed.config import DataConfig
from heed.errors import DataError
from heed.text.corpus import Corpus, Pair, read_pairs
from heed.text.languages import Languages
from heed.text.tokenizer import Tokenizer, suitable_vocab_size

Kind = Literal[
    "leaked", "leaked_source", "leaked_target", "swapped", "source_foreign", "target_foreign", "copied", "unlike",
    "empty", "too_long", "unequal", "repeated", "ambiguous", "replacement", "mojibake", "control", "spaces", "markup",
    "decomposed",
]  # fmt: skip
Report = Callable[[str, int], None]  # what is being done, and pairs done
Integers = NDArray[np.int64]

SIDES = ("source", "target")
_LEAKS: tuple[Kind, ...] = ("leaked", "leaked_source", "leaked_target")
_EXAMPLES = 3
_SHOWN = 200  # characters of a text
_PIECE = 5_000  # pairs looked at together
_SAMPLE = 8_000_000  # characters, more or less, to learn a vocabulary from
_USUAL = 5_000  # pairs of them tell what is usual
_FEW = 200  # pairs do not tell languages apart
_UNEQUAL = 3.0  # times as long as the other side, each measured by the mean of its side
_CHARACTERS: dict[Kind, re.Pattern[str]] = {
    "replacement": re.compile("\ufffd"),
    "mojibake": re.compile("[ÃÂ][\x80-\xbf]|â€."),  # UTF-8 taken for Latin-1 and encoded again
    "control": re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u2028\u2029\u2060\ufeff]"),
    "spaces": re.compile(r"[^\S \x0a-\x1f\x85\u2028\u2029\u202f\u3000]|  |^ | $"),  # thin and wide ones are meant
    "markup": re.compile(r"&(?:[a-z]{2,6}|#\d+|#x[0-9a-f]+);|</?[a-z][^<>]*>", re.IGNORECASE),
}
_SUSPICIOUS = re.compile("[\ufffd&<ÃÂâ]|  |^ | $")  # or not printable: else none of these can be there


@dataclass(frozen=True)
class Example:
    """Where a fault is and what it looks like: source and target, or the part of one side where it is."""

    file: str
    line: int
    texts: tuple[str, ...]
    also: str = ""  # file:line of the other pair, where two have something in common


@dataclass
class Finding:
    """One kind of fault: how often it was found, and the first examples."""

    kind: Kind
    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(frozen=True)
class Health:
    """What there is to know about the text of a run."""

    training: tuple[tuple[str, int], ...]  # name and pairs of each corpus
    validation: tuple[tuple[str, int], ...]
    lengths: dict[tuple[str, str], Counter[int]]  # ("source", "words"): how many texts there are of each length
    tokens: Integers  # (pairs of a sample, 2): the tokens on each side, without special ones
    vocab_sizes: tuple[int, int]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]  # what could not be looked at, and why

    @property
    def pairs(self) -> int:
        """Pairs to learn from."""
        return sum(pairs for _, pairs in self.training)


def examine(
    training: Sequence[Corpus],
    validation: Sequence[Corpus],
    data: DataConfig,
    report: Report = lambda _doing, _pairs: None,
) -> Health:
    """Look at all of it. What cannot be read is a `DataError`, just as when a model is trained."""
    text = _Examination([*training, *validation], len(training), report)
    text.read()
    text.compare()
    report("learning a vocabulary", 0)
    tokens, vocab_sizes = _tokens(text.sample, data, suitable_vocab_size(text.starts[len(training)]))
    text.judge(tokens, data.max_tokens)
    sizes = np.diff(text.starts).tolist()
    named = [(corpus.name, size) for corpus, size in zip(text.corpora, sizes, strict=True)]
    lengths = {**text.lengths, **{(side, "tokens"): Counter(tokens[:, n].tolist()) for n, side in enumerate(SIDES)}}
    findings = tuple(finding for finding in text.findings.values() if finding.count)
    learnt, held_out = tuple(named[: len(training)]), tuple(named[len(training) :])
    return Health(learnt, held_out, lengths, tokens, vocab_sizes, findings, tuple(text.notes))


class _Examination:
    """The two readings, and what is remembered between them."""

    def __init__(self, corpora: list[Corpus], training: int, report: Report) -> None:
        self.corpora, self.starts = corpora, [0]  # all pairs are numbered: those of corpus c from starts[c] on
        self.findings = {kind: Finding(kind) for kind in get_args(Kind)}
        self.lengths = {(side, unit): Counter[int]() for unit in ("words", "characters") for side in SIDES}
        self.sample: list[Pair] = []
        self.notes: list[str] = []
        self._training, self._report = training, report
        self._hashes = array("q"), array("q")  # Python's own, of 64 bits: two different texts hardly ever share one
        self._languages = Languages()
        self._wanted: list[dict[int, list[tuple[Kind, str]]]] = [{} for _ in corpora]  # by corpus and line

    def read(self) -> None:
        """The first reading: each text by itself, and what all of them are like."""
        stride, held = 1, 0
        for corpus in self.corpora:
            learning = len(self.starts) <= self._training
            for pairs in _pieces(corpus):
                for pair in pairs:
                    self._look(corpus, pair, learning=learning)
                self._report("reading", len(self._hashes[0]))
                if learning:
                    self._languages.learn(pairs)
                    chosen = pairs[::stride]
                    self.sample += chosen
                    held += sum(len(pair.source) + len(pair.target) for pair in chosen)
                while held > 2 * _SAMPLE:
                    self.sample, stride, held = self.sample[::2], stride * 2, held // 2
            self.starts.append(len(self._hashes[0]))
            if self.starts[-1] == self.starts[-2]:
                raise DataError(f"{corpus.name} is empty")

    def _look(self, corpus: Corpus, pair: Pair, *, learning: bool) -> None:
        plain = []
        for side, text in enumerate((pair.source, pair.target)):
            words = text.split()
            plain.append(" ".join(words))
            self._hashes[side].append(hash(plain[-1]))
            if learning:
                self.lengths[SIDES[side], "words"][len(words)] += 1
                self.lengths[SIDES[side], "characters"][len(text)] += 1
            if not text.isprintable() or _SUSPICIOUS.search(text):
                for kind, pattern in _CHARACTERS.items():
                    if found := pattern.search(text):
                        self._add(kind, corpus, pair, _around(text, *found.span()), side)
            if not text.isascii() and not unicodedata.is_normalized("NFC", text):
                self._add("decomposed", corpus, pair, text[:_SHOWN], side)
        if not all(plain):
            self._add("empty", corpus, pair)
        elif plain[0] == plain[1]:
            self._add("copied", corpus, pair)

    def _add(
        self, kind: Kind, corpus: Corpus, pair: Pair, part: str = "", side: int = 0, *, also: str = "", count: int = 1
    ) -> None:
        finding = self.findings[kind]
        finding.count += count
        if len(finding.examples) < _EXAMPLES:
            texts = (part,) if part else (pair.source[:_SHOWN], pair.target[:_SHOWN])
            finding.examples.append(Example(_file(corpus, side), pair.line, texts, also))

    def compare(self) -> None:
        """Between the readings: which texts occur again. Their examples are for the second reading to show."""
        source, target = (np.frombuffer(hashes, np.int64) for hashes in self._hashes)
        whole = np.flatnonzero((source != hash("")) & (target != hash("")))
        training, validation = np.split(whole, np.searchsorted(whole, self.starts[self._training : self._training + 1]))
        pair = source * 31 + target  # wraps around, as hashes do
        later, before = _again(pair, training)
        self._found("repeated", later, before)
        new = np.ones(len(pair), bool)
        new[later] = False
        later, before = _again(source, training[new[training]])
        first = ~_among(before, later)
        self._found("ambiguous", later[first], before[first])
        leaked = validation[:0]
        for kind, hashes in zip(_LEAKS, (pair, source, target), strict=True):
            seen = validation[_among(hashes[validation], np.sort(hashes[training]))]
            seen = np.setdiff1d(seen, leaked, assume_unique=True)
            leaked = seen if kind == "leaked" else leaked
            learnt = [np.argmax(hashes[training] == hashes[number]) for number in seen[:_EXAMPLES]]
            self._found(kind, seen, training[learnt] if learnt else training[:0])

    def _found(self, kind: Kind, numbers: Integers, others: Integers) -> None:
        self.findings[kind].count = len(numbers)
        for number, other in zip(numbers[:_EXAMPLES].tolist(), others[:_EXAMPLES].tolist(), strict=True):
            (corpus, line), (where, also) = self._place(number), self._place(other)
            self._wanted[corpus].setdefault(line, []).append((kind, f"{_file(self.corpora[where])}:{also}"))

    def _place(self, number: int) -> tuple[int, int]:
        corpus = int(np.searchsorted(self.starts, number, side="right")) - 1
        return corpus, number - self.starts[corpus] + 1

    def judge(self, tokens: Integers, max_tokens: int) -> None:
        """The second reading: each pair by what is usual in all of them."""
        characters = np.array([(len(pair.source), len(pair.target)) for pair in self.sample])
        usual = np.maximum(characters.mean(0), 1)
        tokens_each = tokens.sum(0) / np.maximum(characters.sum(0), 1)
        self._languages.settle(self.sample[:: -(-len(self.sample) // _USUAL)])
        few = self.starts[self._training] < _FEW
        if few:
            self.notes.append(f"fewer than {_FEW} pairs do not tell which text is in the wrong language")
        elif self._languages.alike:
            self.notes.append("both sides read alike (one language, or many swapped), so none is called swapped")
        for number, corpus in enumerate(self.corpora):
            for pairs in _pieces(corpus):
                self._report("judging", self.starts[number] + pairs[0].line)
                lengths = np.array([(len(pair.source), len(pair.target)) for pair in pairs])
                whole: NDArray[np.bool_] = np.all(lengths > 0, axis=1)
                relative = lengths / usual + 0.2  # what is short may well be several times shorter
                self._mark("too_long", corpus, pairs, (lengths * tokens_each > max_tokens).any(1))
                self._mark("unequal", corpus, pairs, whole & (relative.max(1) > _UNEQUAL * relative.min(1)))
                if not few:
                    self._judge_languages(corpus, pairs, whole)
                for line, kinds in self._wanted[number].items():
                    for kind, also in kinds if pairs[0].line <= line <= pairs[-1].line else ():
                        self._add(kind, corpus, pairs[line - pairs[0].line], also=also, count=0)  # counted before

    def _judge_languages(self, corpus: Corpus, pairs: list[Pair], whole: NDArray[np.bool_]) -> None:
        different = whole & np.array([pair.source != pair.target for pair in pairs])
        (source, target), unlike = self._languages.judge(pairs)
        self._mark("swapped", corpus, pairs, different & source & target)
        self._mark("source_foreign", corpus, pairs, different & source & ~target)
        self._mark("target_foreign", corpus, pairs, different & target & ~source)
        self._mark("unlike", corpus, pairs, different & unlike.any(0))

    def _mark(self, kind: Kind, corpus: Corpus, pairs: list[Pair], marked: NDArray[np.bool_]) -> None:
        for number in np.flatnonzero(marked).tolist():
            self._add(kind, corpus, pairs[number])


def _pieces(corpus: Corpus) -> Iterator[list[Pair]]:
    pairs = read_pairs(corpus)
    while piece := list(islice(pairs, _PIECE)):
        yield piece


def _file(corpus: Corpus, side: int = 0) -> str:
    return str(corpus.pairs or (corpus.target if side else corpus.source))


def _around(text: str, start: int, end: int) -> str:
    """A part of a text and what is beside it."""
    before, after = max(0, start - 20), end + 40
    return "…" * (before > 0) + text[before:after] + "…" * (after < len(text))


def _again(hashes: Integers, numbers: Integers) -> tuple[Integers, Integers]:
    """Those of the numbered texts that were there before, in order, and where each was the last time before."""
    ranked = np.sort(hashes[numbers])
    numbers = numbers[_among(hashes[numbers], ranked[1:][ranked[1:] == ranked[:-1]])]  # only what occurs again at all
    numbers = numbers[np.argsort(hashes[numbers], kind="stable")]
    same = hashes[numbers[1:]] == hashes[numbers[:-1]]
    later, before = numbers[1:][same], numbers[:-1][same]
    order = np.argsort(later)
    return later[order], before[order]


def _among(values: Integers, ranked: Integers) -> NDArray[np.bool_]:
    """Which of the values are among others, which are sorted; in less memory than numpy's isin."""
    place = np.searchsorted(ranked, values)
    place[place == len(ranked)] = 0
    return ranked[place] == values if len(ranked) else np.zeros(len(values), bool)


def _tokens(sample: list[Pair], data: DataConfig, suitable: int) -> tuple[Integers, tuple[int, int]]:
    """How many tokens the texts of a sample have with a tokenizer learnt from it, and how many different ones."""
    sides = [[pair.source for pair in sample], [pair.target for pair in sample]]
    size = data.vocab_size or suitable
    if data.separate_vocabularies:
        source, target = (Tokenizer.train(texts, data.tokenizer, size) for texts in sides)
    else:
        source = target = Tokenizer.train(sides[0] + sides[1], data.tokenizer, size)
    lengths = [[len(ids) for ids in one.encode(texts)] for one, texts in zip((source, target), sides, strict=True)]
    return np.array(lengths).T, (source.vocab_size, target.vocab_size)
