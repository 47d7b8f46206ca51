"""What is wrong with the text of a run, found before a model learns it.

Enters: corpora, read twice. Leaves: how many pairs there are, how long they are, and what was found in them (`faults`).

Two texts are the same if their words are. No text is kept but a sample of bounded size: of a pair, 16 bytes (a hash of
each side) stay, so millions of pairs fit into a few hundred MB; of documents, the lines they begin on besides. Knows
nothing of torch, terminals or remedies.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from heed.config import DataConfig
from heed.errors import DataError
from heed.text.corpus import Corpus, Pair, read_pairs
from heed.text.faults import SHOWN, Example, Finding, Form, Health, Integers, Kind, bad_characters
from heed.text.labels import JoinedTexts
from heed.text.languages import Languages
from heed.text.tokenizer import Tokenizer, suitable_vocab_size

Report = Callable[[str, int], None]  # what is being done, and pairs done

SIDES = ("source", "target")
_TEXTS: dict[Form, tuple[int, ...]] = {"pairs": (0, 1), "texts": (1,), "labelled": (0,)}  # the sides that are text
_LEAKS: dict[Form, tuple[Kind, ...]] = {
    "pairs": ("leaked", "leaked_source", "leaked_target"),
    "texts": ("leaked",),
    "labelled": ("leaked", "leaked_source"),
}
_PARTED_BY: dict[Form, str] = {"texts": "\n", "labelled": "\t"}  # lines of a document; two texts that share a label
_EXAMPLES = 3
_PIECE = 5_000  # pairs looked at together
_SAMPLE = 8_000_000  # characters, more or less, to learn a vocabulary from
_USUAL = 5_000  # pairs of them tell what is usual
_FEW = 200  # pairs do not tell languages apart
_UNEQUAL = 3.0  # times as long as the other side, each measured by the mean of its side


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
    tokens, vocab_sizes = _tokens(text.sample, text.form, data, suitable_vocab_size(text.starts[len(training)]))
    text.judge(tokens, data.max_tokens)
    sizes = np.diff(text.starts).tolist()
    named = [(corpus.name, size) for corpus, size in zip(text.corpora, sizes, strict=True)]
    lengths = {**text.lengths, **{(SIDES[n], "tokens"): Counter(tokens[:, n].tolist()) for n in text.sides}}
    findings = tuple(finding for finding in text.findings.values() if finding.count)
    learnt, held_out = tuple(named[: len(training)]), tuple(named[len(training) :])
    return Health(
        text.form, learnt, held_out, lengths, tokens, vocab_sizes, text.both_labels(), findings, tuple(text.notes)
    )


def _form(corpora: Sequence[Corpus]) -> Form:
    forms: set[Form] = {"texts" if one.text else "labelled" if one.labelled else "pairs" for one in corpora}
    if len(forms) > 1:
        raise DataError(f"texts alone, with labels and in pairs cannot be learnt from together, found {sorted(forms)}")
    return forms.pop()


class _Examination:
    """The two readings, and what is remembered between them."""

    def __init__(self, corpora: list[Corpus], training: int, report: Report) -> None:
        self.corpora, self.starts = corpora, [0]  # all pairs are numbered: those of corpus c from starts[c] on
        self.form = _form(corpora)
        self.sides = _TEXTS[self.form]
        self.findings = {kind: Finding(kind) for kind in get_args(Kind)}
        self.lengths = {(SIDES[side], unit): Counter[int]() for unit in ("words", "characters") for side in self.sides}
        self.labels = Counter[str](), Counter[str]()  # in training and in validation
        self.sample: list[Pair] = []
        self.notes: list[str] = []
        self._training, self._report = training, report
        self._hashes = array("q"), array("q")  # Python's own, of 64 bits: two different texts hardly ever share one
        self._lines = [array("q") for _ in corpora]  # on which each document begins; of all else, one a line
        self._languages = Languages()
        self._wanted: list[dict[int, list[tuple[Kind, str]]]] = [{} for _ in corpora]  # by corpus and place in it

    def read(self) -> None:
        """The first reading: each text by itself, and what all of them are like."""
        stride, held = 1, 0
        for corpus in self.corpora:
            learning = len(self.starts) <= self._training
            for pairs in _pieces(corpus):
                for pair in pairs:
                    self._look(corpus, pair, learning=learning)
                self._report("reading", len(self._hashes[0]))
                if corpus.documents:
                    self._lines[len(self.starts) - 1].extend(pair.line for pair in pairs)
                if learning:
                    if self.form == "pairs":
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
            if side not in self.sides:
                continue
            if learning:
                self.lengths[SIDES[side], "words"][len(words)] += 1
                self.lengths[SIDES[side], "characters"][len(text)] += 1
            pieces = [text] if self.form == "pairs" else text.split(_PARTED_BY[self.form])
            found = {kind: part for piece in reversed(pieces) for kind, part in bad_characters(piece)}
            for kind, part in found.items():
                self._add(kind, corpus, pair, part, side)
        if self.form == "labelled":
            self._look_at_label(corpus, pair, learning=learning)
        needed = [*pair.source.split("\t"), pair.target] if self.form == "labelled" else [plain[n] for n in self.sides]
        if not all(text.strip() for text in needed):
            self._add("empty", corpus, pair)
        elif self.form == "pairs" and plain[0] == plain[1]:
            self._add("copied", corpus, pair)

    def _look_at_label(self, corpus: Corpus, pair: Pair, *, learning: bool) -> None:
        self.labels[not learning][pair.target] += 1
        if pair.target and not learning and pair.target not in self.labels[0]:  # all of training has been read
            self._add("unknown_label", corpus, pair)

    def both_labels(self) -> dict[str, tuple[int, int]]:
        """How often each label is in training and in validation."""
        learnt, held_out = self.labels
        ranked = [label for label, _ in (learnt + held_out).most_common() if label]
        return {label: (learnt[label], held_out[label]) for label in ranked}

    def _add(
        self, kind: Kind, corpus: Corpus, pair: Pair, part: str = "", side: int = 0, *, also: str = "", count: int = 1
    ) -> None:
        finding = self.findings[kind]
        finding.count += count
        if len(finding.examples) < _EXAMPLES:
            texts = (part,) if part else tuple(text[:SHOWN] for text in self._texts(pair))
            finding.examples.append(Example(_file(corpus, side), pair.line, texts, also))

    def _texts(self, pair: Pair) -> tuple[str, ...]:
        """What there is to show of a pair: the label of a text stands before it, as in its file."""
        return {
            "pairs": (pair.source, pair.target),
            "texts": (pair.target,),
            "labelled": (f"{pair.target}: {pair.source}",),
        }[self.form]

    def compare(self) -> None:
        """Between the readings: which texts occur again. Their examples are for the second reading to show."""
        source, target = (np.frombuffer(hashes, np.int64) for hashes in self._hashes)
        there = {0: source != hash(""), 1: target != hash("")}
        needed = (1,) if self.form == "texts" else (0, 1)
        whole = np.flatnonzero(np.all([there[side] for side in needed], axis=0))
        training, validation = np.split(whole, np.searchsorted(whole, self.starts[self._training : self._training + 1]))
        pair = source * 31 + target  # wraps around, as hashes do
        later, before = _again(pair, training)
        self._found("repeated", later, before)
        new = np.ones(len(pair), bool)
        new[later] = False
        if self.form != "texts":
            later, before = _again(source, training[new[training]])
            first = ~_among(before, later)
            self._found("ambiguous", later[first], before[first])
        leaked = validation[:0]
        for kind, hashes in zip(_LEAKS[self.form], (pair, source, target), strict=False):
            seen = validation[_among(hashes[validation], np.sort(hashes[training]))]
            seen = np.setdiff1d(seen, leaked, assume_unique=True)
            leaked = seen if kind == "leaked" else leaked
            learnt = [np.argmax(hashes[training] == hashes[number]) for number in seen[:_EXAMPLES]]
            self._found(kind, seen, training[learnt] if learnt else training[:0])

    def _found(self, kind: Kind, numbers: Integers, others: Integers) -> None:
        self.findings[kind].count = len(numbers)
        for number, other in zip(numbers[:_EXAMPLES].tolist(), others[:_EXAMPLES].tolist(), strict=True):
            (corpus, place), (where, also) = self._place(number), self._place(other)
            line = self._lines[where][also] if self._lines[where] else also + 1
            self._wanted[corpus].setdefault(place, []).append((kind, f"{_file(self.corpora[where])}:{line}"))

    def _place(self, number: int) -> tuple[int, int]:
        corpus = int(np.searchsorted(self.starts, number, side="right")) - 1
        return corpus, number - self.starts[corpus]

    def judge(self, tokens: Integers, max_tokens: int) -> None:
        """The second reading: each pair by what is usual in all of them."""
        characters = np.array([(len(pair.source), len(pair.target)) for pair in self.sample])
        usual = np.maximum(characters.mean(0), 1)
        tokens_each = tokens.sum(0) / np.maximum(characters.sum(0), 1)
        languages = self.form == "pairs" and self._settle_languages()
        for number, corpus in enumerate(self.corpora):
            place = 0
            for pairs in _pieces(corpus):
                self._report("judging", self.starts[number] + place)
                lengths = np.array([(len(pair.source), len(pair.target)) for pair in pairs])
                long = (lengths * tokens_each > max_tokens)[:, self.sides].any(1)
                self._mark("too_long", corpus, pairs, long & (not corpus.documents))  # documents are cut
                if self.form == "pairs":
                    whole: NDArray[np.bool_] = np.all(lengths > 0, axis=1)
                    relative = lengths / usual + 0.2  # what is short may well be several times shorter
                    self._mark("unequal", corpus, pairs, whole & (relative.max(1) > _UNEQUAL * relative.min(1)))
                    if languages:
                        self._judge_languages(corpus, pairs, whole)
                for wanted, kinds in self._wanted[number].items():
                    for kind, also in kinds if place <= wanted < place + len(pairs) else ():
                        self._add(kind, corpus, pairs[wanted - place], also=also, count=0)  # counted before
                place += len(pairs)

    def _settle_languages(self) -> bool:
        """Whether there is enough text to tell which is in the wrong language."""
        self._languages.settle(self.sample[:: -(-len(self.sample) // _USUAL)])
        if self.starts[self._training] < _FEW:
            self.notes.append(f"fewer than {_FEW} pairs do not tell which text is in the wrong language")
            return False
        if self._languages.alike:
            self.notes.append("both sides read alike (one language, or many swapped), so none is called swapped")
        return True

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
    return str(corpus.pairs or corpus.text or (corpus.target if side else corpus.source))


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


def _tokens(sample: list[Pair], form: Form, data: DataConfig, suitable: int) -> tuple[Integers, tuple[int, int]]:
    """How many tokens the texts of a sample have with a tokenizer learnt from it, and how many different ones.

    A label is one token; texts alone have sources of none.
    """
    sides = [[pair.source for pair in sample], [pair.target for pair in sample]]
    size = data.vocab_size or suitable
    if form != "pairs":
        (side,) = _TEXTS[form]
        one = Tokenizer.train([part for text in sides[side] for part in text.split("\t")], data.tokenizer, size)
        encoder = JoinedTexts(one) if form == "labelled" else one
        tokens = np.full((len(sample), 2), form == "labelled", np.int64)
        tokens[:, side] = [len(ids) for ids in encoder.encode(sides[side])]
        return tokens, (one.vocab_size, one.vocab_size)
    if data.separate_vocabularies:
        source, target = (Tokenizer.train(texts, data.tokenizer, size) for texts in sides)
    else:
        source = target = Tokenizer.train(sides[0] + sides[1], data.tokenizer, size)
    lengths = [[len(ids) for ids in one.encode(texts)] for one, texts in zip((source, target), sides, strict=True)]
    return np.array(lengths).T, (source.vocab_size, target.vocab_size)
