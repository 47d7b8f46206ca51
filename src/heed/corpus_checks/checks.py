"""The checks of a run's text, over two passes.

Enters: corpora. Leaves: how many pairs there are, how long they are, and the findings (text_errors.py). The first pass
looks at each text by itself and counts what is usual; hashes then say which texts occur again; the second pass judges
each pair by what is usual. Texts are the same if their words are. No text is kept but a sample of bounded size: 21
bytes per pair (a hash of each side, its line, its fault), so that millions of pairs fit into a few hundred MB. Knows
nothing of torch, terminals or remedies.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from heed.config import DataConfig
from heed.corpus_checks.statistics import PairBatch, count_tokens, find_repeats, in_sorted, pair_batches
from heed.corpus_checks.text_errors import (
    LEAKS,
    PARTED_BY,
    SHOWN,
    TEXTS,
    CorpusForm,
    CorpusReport,
    DropMarks,
    Integers,
    TextErrorExample,
    TextErrorSummary,
    TextErrorType,
    bad_characters,
)
from heed.errors import DataError
from heed.text.corpus import Corpus, Pair
from heed.text.labels import too_many_labels
from heed.text.language_identification import SideLanguages
from heed.text.tokenizer import suitable_vocab_size

_WHERE = re.compile(r"(.*?):(\d+): (.*)", re.DOTALL)  # file, line and reason of an error

CheckProgress = Callable[[str, int], None]  # what is being done, and pairs done

SIDES = ("source", "target")
_EXAMPLES, _UNREADABLE = 3, 1000  # shown of each kind, and of rows that cannot be read
_EXTRA = 50  # a translation is at most this many tokens longer than its source, unless search.max_length is set
_PIECE = 5_000  # pairs looked at together
_SAMPLE = 8_000_000  # characters, more or less, to learn a vocabulary from
_USUAL = 5_000  # pairs of them tell what is usual
_FEW = 200  # pairs do not tell languages apart
_UNEQUAL = 3.0  # times as long as the other side, each measured by the mean of its side


def check_corpora(
    training: Sequence[Corpus],
    validation: Sequence[Corpus],
    data: DataConfig,
    report: CheckProgress = lambda _doing, _pairs: None,
    max_length: int | None = None,
) -> CorpusReport:
    """Look at all of it. max_length: search.max_length. A file that cannot be read at all is a `DataError`."""
    text = _Examination([*training, *validation], len(training), report)
    text.read()
    text.compare()
    report("learning a vocabulary", 0)
    tokens, vocab_sizes = count_tokens(text.sample, text.form, data, suitable_vocab_size(text.starts[len(training)]))
    text.judge(tokens, data.max_tokens, max_length)
    sizes = np.diff(text.starts).tolist()
    named = [(corpus.name, size) for corpus, size in zip(text.corpora, sizes, strict=True)]
    lengths = {**text.lengths, **{(SIDES[n], "tokens"): Counter(tokens[:, n].tolist()) for n in text.sides}}
    findings = tuple(finding for finding in text.findings.values() if finding.count)
    learnt, held_out = tuple(named[: len(training)]), tuple(named[len(training) :])
    return CorpusReport(
        text.form, learnt, held_out, lengths, tokens, vocab_sizes, text.both_labels(), findings, tuple(text.notes),
        np.frombuffer(text.dropped.faults, np.uint8)[: text.starts[len(training)]],
    )  # fmt: skip


def _form(corpora: Sequence[Corpus]) -> CorpusForm:
    forms: set[CorpusForm] = {"texts" if one.text else "labelled" if one.labelled else "pairs" for one in corpora}
    if len(forms) > 1:
        raise DataError(f"texts alone, with labels and in pairs cannot be learnt from together, found {sorted(forms)}")
    return forms.pop()


class _Examination:
    """The two readings, and what is remembered between them."""

    def __init__(self, corpora: list[Corpus], training: int, report: CheckProgress) -> None:
        self.corpora, self.starts = corpora, [0]  # all pairs are numbered: those of corpus c from starts[c] on
        self.form = _form(corpora)
        self.sides = TEXTS[self.form]
        self.findings = {kind: TextErrorSummary(kind) for kind in get_args(TextErrorType)}
        self.lengths = {(SIDES[side], unit): Counter[int]() for unit in ("words", "characters") for side in self.sides}
        self.labels = Counter[str](), Counter[str]()  # in training and in validation
        self.sample: list[Pair] = []
        self.notes: list[str] = []
        self.longest = 0  # target that is cut off, in tokens
        self._training, self._report = training, report
        self._hashes = array("q"), array("q")  # Python's own, of 64 bits: two different texts hardly ever share one
        self._lines = [array("I") for _ in corpora]  # on which each pair begins
        self.dropped = DropMarks()
        self._languages = SideLanguages()
        self._wanted: list[dict[int, list[tuple[TextErrorType, str]]]] = [
            {} for _ in corpora
        ]  # by corpus and place in it

    def read(self) -> None:
        """The first reading: each text by itself, and what all of them are like."""
        stride, held = 1, 0
        for corpus in self.corpora:
            learning = len(self.starts) <= self._training
            for here in pair_batches(corpus, _PIECE, self._add_unreadable, 0):
                pairs = here.pairs
                for pair in pairs:
                    self.dropped.add_pair()
                    self._look(corpus, pair, learning=learning)
                self._report("reading", len(self._hashes[0]))
                self._lines[len(self.starts) - 1].extend(pair.line for pair in pairs)
                if learning:
                    if self.form == "pairs":
                        self._languages.add_counts(pairs)
                    chosen = pairs[::stride]
                    self.sample += chosen
                    held += sum(len(pair.source) + len(pair.target) for pair in chosen)
                while held > 2 * _SAMPLE:
                    self.sample, stride, held = self.sample[::2], stride * 2, held // 2
            self.starts.append(len(self._hashes[0]))
            if self.starts[-1] == self.starts[-2]:
                bad = self.findings["unreadable"].examples
                raise DataError(
                    f"{corpus.name} {f'has no row that can be read: {bad[-1].texts[0]}' if bad else 'is empty'}"
                )
        if self.form == "labelled" and too_many_labels(len(self.labels[0]), self.labels[0].total()):
            for pair in self.sample[:_EXAMPLES]:
                self._add("swapped", self.corpora[0], pair, count=0)
            self.findings["swapped"].count = self.starts[self._training]

    def _add_unreadable(self, error: DataError) -> None:
        finding = self.findings["unreadable"]
        finding.count += 1
        if len(finding.examples) < _UNREADABLE and (where := _WHERE.fullmatch(str(error))):
            finding.examples.append(TextErrorExample(where[1], int(where[2]), (where[3],)))

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
            pair_batches = [text] if self.form == "pairs" else text.split(PARTED_BY[self.form])
            found = {kind: part for piece in reversed(pair_batches) for kind, part in bad_characters(piece)}
            for kind, part in found.items():
                self._add(kind, corpus, pair, part, side)
                self.dropped.mark(kind, (-1,))
        if self.form == "labelled":
            self._look_at_label(corpus, pair, learning=learning)
        needed = [*pair.source.split("\t"), pair.target] if self.form == "labelled" else [plain[n] for n in self.sides]
        if not all(text.strip() for text in needed):
            self._add("empty", corpus, pair)
            self.dropped.mark("empty", (-1,))
        elif self.form == "pairs" and plain[0] == plain[1]:
            self._add("copied", corpus, pair)
            self.dropped.mark("copied", (-1,))

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
        self,
        kind: TextErrorType,
        corpus: Corpus,
        pair: Pair,
        part: str = "",
        side: int = 0,
        *,
        also: str = "",
        count: int = 1,
    ) -> None:
        finding = self.findings[kind]
        finding.count += count
        if len(finding.examples) < _EXAMPLES:
            texts = (part,) if part else tuple(text[:SHOWN] for text in self._texts(pair))
            finding.examples.append(TextErrorExample(_file(corpus, side), pair.line, texts, also))

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
        later, before = find_repeats(pair, training)
        self._found("repeated", later, before)
        self.dropped.mark("repeated", later.tolist())
        self.dropped.mark("leaked", training[in_sorted(pair[training], np.sort(pair[validation]))].tolist())
        new = np.ones(len(pair), bool)
        new[later] = False
        if self.form != "texts":
            later, before = find_repeats(source, training[new[training]])
            first = ~in_sorted(before, later)
            self._found("ambiguous", later[first], before[first])
        leaked = validation[:0]
        for kind, hashes in zip(LEAKS[self.form], (pair, source, target), strict=False):
            seen = validation[in_sorted(hashes[validation], np.sort(hashes[training]))]
            seen = np.setdiff1d(seen, leaked, assume_unique=True)
            leaked = seen if kind == "leaked" else leaked
            learnt = [np.argmax(hashes[training] == hashes[number]) for number in seen[:_EXAMPLES]]
            self._found(kind, seen, training[learnt] if learnt else training[:0])

    def _found(self, kind: TextErrorType, numbers: Integers, others: Integers) -> None:
        self.findings[kind].count = len(numbers)
        for number, other in zip(numbers[:_EXAMPLES].tolist(), others[:_EXAMPLES].tolist(), strict=True):
            (corpus, place), (where, also) = self._place(number), self._place(other)
            other_place = f"{_file(self.corpora[where])}:{self._lines[where][also]}"
            self._wanted[corpus].setdefault(place, []).append((kind, other_place))

    def _place(self, number: int) -> tuple[int, int]:
        corpus = int(np.searchsorted(self.starts, number, side="right")) - 1
        return corpus, number - self.starts[corpus]

    def judge(self, tokens: Integers, max_tokens: int, max_length: int | None) -> None:
        """The second reading: each pair by what is usual in all of them."""
        characters = np.array([(len(pair.source), len(pair.target)) for pair in self.sample])
        usual = np.maximum(characters.mean(0), 1)
        tokens_each = tokens.sum(0) / np.maximum(characters.sum(0), 1)
        languages = self.form == "pairs" and self._settle_languages()
        for number, corpus in enumerate(self.corpora):
            for here in pair_batches(corpus, _PIECE, lambda _: None, self.starts[number]):
                self._report("judging", here.start)
                lengths = np.array([(len(pair.source), len(pair.target)) for pair in here.pairs])
                long = (lengths * tokens_each > max_tokens)[:, self.sides].any(1)
                self._mark("too_long", here, long & (not corpus.documents))  # documents are cut
                if self.form == "pairs":
                    whole: NDArray[np.bool_] = np.all(lengths > 0, axis=1)
                    relative = lengths / usual + 0.2  # what is short may well be several times shorter
                    unequal = whole & (relative.max(1) > _UNEQUAL * relative.min(1))
                    self._mark("unequal", here, unequal)
                    self._mark_cut_off(here, whole & ~unequal & ~long, lengths * tokens_each, max_length)
                    if languages:
                        self._judge_languages(here, whole)
                for wanted, kinds in self._wanted[number].items():
                    place = self.starts[number] + wanted - here.start
                    for kind, also in kinds if 0 <= place < len(here.pairs) else ():
                        self._add(kind, corpus, here.pairs[place], also=also, count=0)  # counted before

    def _mark_cut_off(
        self, here: PairBatch, good: NDArray[np.bool_], tokens: NDArray[np.float64], max_length: int | None
    ) -> None:
        limit = tokens[:, 0] + _EXTRA if max_length is None else max_length
        cut_off = good & (tokens[:, 1] > limit)
        self._mark("cut_off", here, cut_off)
        if cut_off.any():
            self.longest = max(self.longest, -(-int(tokens[cut_off, 1].max() + 1) // 100) * 100)
            self.findings["cut_off"].advice = f"search.max_length={self.longest} would let all of these through."

    def _settle_languages(self) -> bool:
        """Whether there is enough text to tell which is in the wrong language."""
        self._languages.fit(self.sample[:: -(-len(self.sample) // _USUAL)])
        if self.starts[self._training] < _FEW:
            self.notes.append(f"fewer than {_FEW} pairs do not tell which text is in the wrong language")
            return False
        if self._languages.same_language:
            self.notes.append("both sides read alike (one language, or many swapped), so none is called swapped")
        return True

    def _judge_languages(self, here: PairBatch, whole: NDArray[np.bool_]) -> None:
        different = whole & np.array([pair.source != pair.target for pair in here.pairs])
        (source, target), unlike = self._languages.classify(here.pairs)
        self._mark("swapped", here, different & source & target)
        self._mark("source_foreign", here, different & source & ~target)
        self._mark("target_foreign", here, different & target & ~source)
        self._mark("unlike", here, different & unlike.any(0))

    def _mark(self, kind: TextErrorType, here: PairBatch, marked: NDArray[np.bool_]) -> None:
        places = np.flatnonzero(marked)
        self.dropped.mark(kind, (here.start + places).tolist())
        for place in places.tolist():
            self._add(kind, here.corpus, here.pairs[place])


def _file(corpus: Corpus, side: int = 0) -> str:
    return str(corpus.pairs or corpus.text or (corpus.target if side else corpus.source))
