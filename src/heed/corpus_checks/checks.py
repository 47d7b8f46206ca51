"""Checks training and validation data for errors, in two passes over the text.

Enters: corpora. Leaves: a `CorpusReport` with sizes, lengths and errors (text_errors.py). The first pass checks each
text by itself and collects statistics; hashes then identify repeated texts; the second pass checks each pair against
the statistics. Texts are equal if they have the same words. Only a bounded sample of the text is held, and 21 bytes per
pair (a hash of each side, its line, its error code): millions of pairs fit into a few hundred MB. Knows nothing of
torch, terminals or remedies.
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
    MAX_SHOWN,
    TEXT_SEPARATOR,
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
from heed.text.corpus_defaults import choose_tokenizers, choose_vocab_size
from heed.text.labels import too_many_labels
from heed.text.language_identification import SideLanguages
from heed.text.text_statistics import text_statistics

_ERROR_LOCATION = re.compile(r"(.*?):(\d+): (.*)", re.DOTALL)  # file, line and reason of an error

CheckProgress = Callable[[str, int], None]  # the stage, and the number of pairs done

SIDES = ("source", "target")
_MAX_EXAMPLES, _MAX_UNREADABLE = 3, 1000  # examples of each error type, and of unreadable rows
_BATCH_PAIRS = 5_000  # pairs checked together
_SAMPLE = 8_000_000  # characters, approximately, to train a tokenizer on
_LANGUAGE_SAMPLE = 5_000  # pairs of the sample for language statistics
_MIN_LANGUAGE_PAIRS = 200  # fewer pairs are not checked for the wrong language
_MAX_LENGTH_RATIO = 3.0  # of the two sides, each divided by the mean length of its side


def check_corpora(
    training: Sequence[Corpus],
    validation: Sequence[Corpus],
    data: DataConfig,
    report: CheckProgress = lambda _stage, _pairs: None,
    max_length: int | None = None,
    *,
    tokenizer_is_set: bool = True,
) -> CorpusReport:
    """Check all data. A file that cannot be opened or has no valid row raises.

    max_length: search.max_length. tokenizer_is_set: count tokens with those of `data`, else with those that training
    would choose for this text.
    """
    checks = _CorpusChecks([*training, *validation], len(training), report)
    checks.first_pass()
    checks.find_repeated_texts()
    sides = tuple(text_statistics(getattr(pair, side) for pair in checks.sample) for side in SIDES)
    if not tokenizer_is_set and checks.form == "pairs":
        data = data.model_copy(update={choice.name: choice.value for choice in choose_tokenizers(sides)})
    report("training a tokenizer", 0)
    vocab_size = data.vocab_size or choose_vocab_size(checks.starts[len(training)]).value
    tokens, vocab_sizes = count_tokens(checks.sample, checks.form, data, vocab_size)
    checks.second_pass(tokens, data.max_tokens, max_length)
    sizes = np.diff(checks.starts).tolist()
    named = [(corpus.name, size) for corpus, size in zip(checks.corpora, sizes, strict=True)]
    lengths = {**checks.lengths, **{(SIDES[n], "tokens"): Counter(tokens[:, n].tolist()) for n in checks.sides}}
    findings = tuple(finding for finding in checks.findings.values() if finding.count)
    in_training, in_validation = tuple(named[: len(training)]), tuple(named[len(training) :])
    return CorpusReport(
        checks.form, in_training, in_validation, lengths, tokens, vocab_sizes, checks.both_labels(), findings,
        tuple(checks.notes), sides, np.frombuffer(checks.dropped.codes, np.uint8)[: checks.starts[len(training)]],
    )  # fmt: skip


def _form(corpora: Sequence[Corpus]) -> CorpusForm:
    forms: set[CorpusForm] = {
        "texts" if corpus.text else "labelled" if corpus.labelled else "pairs" for corpus in corpora
    }
    if len(forms) > 1:
        raise DataError(f"monolingual, labelled and parallel text cannot be mixed, found {sorted(forms)}")
    return forms.pop()


class _CorpusChecks:
    """The two passes over the data, and the state between them."""

    def __init__(self, corpora: list[Corpus], training: int, report: CheckProgress) -> None:
        self.corpora = corpora
        self.starts = [0]  # pairs are indexed over all corpora: those of corpus c from starts[c] on
        self.form = _form(corpora)
        self.sides = TEXTS[self.form]
        self.findings = {kind: TextErrorSummary(kind) for kind in get_args(TextErrorType)}
        self.lengths = {(SIDES[side], unit): Counter[int]() for unit in ("words", "characters") for side in self.sides}
        self.labels = Counter[str](), Counter[str]()  # in training and in validation
        self.sample: list[Pair] = []
        self.notes: list[str] = []
        self.longest = 0  # target beyond the maximum translation length, in tokens
        self._training, self._report = training, report
        self._hashes = array("q"), array("q")  # Python's 64-bit hashes: collisions are negligible
        self._lines = [array("I") for _ in corpora]  # the first line of each pair
        self.dropped = DropMarks()
        self._languages = SideLanguages()
        # By corpus, and by a pair's index in it.
        self._pending_examples: list[dict[int, list[tuple[TextErrorType, str]]]] = [{} for _ in corpora]

    def first_pass(self) -> None:
        """Check each text by itself, and collect statistics."""
        stride, sampled_characters = 1, 0
        for corpus in self.corpora:
            is_training = len(self.starts) <= self._training
            for batch in pair_batches(corpus, _BATCH_PAIRS, self._add_unreadable, 0):
                pairs = batch.pairs
                for pair in pairs:
                    self.dropped.add_pair()
                    self._check_pair(corpus, pair, is_training=is_training)
                self._report("reading", len(self._hashes[0]))
                self._lines[len(self.starts) - 1].extend(pair.line for pair in pairs)
                if is_training:
                    if self.form == "pairs":
                        self._languages.add_counts(pairs)
                    sampled = pairs[::stride]
                    self.sample += sampled
                    sampled_characters += sum(len(pair.source) + len(pair.target) for pair in sampled)
                while sampled_characters > 2 * _SAMPLE:
                    self.sample, stride, sampled_characters = self.sample[::2], stride * 2, sampled_characters // 2
            self.starts.append(len(self._hashes[0]))
            if self.starts[-1] == self.starts[-2]:
                unreadable = self.findings["unreadable"].examples
                raise DataError(
                    f"{corpus.name} {f'has no valid row: {unreadable[-1].texts[0]}' if unreadable else 'is empty'}"
                )
        if self.form == "labelled" and too_many_labels(len(self.labels[0]), self.labels[0].total()):
            for pair in self.sample[:_MAX_EXAMPLES]:
                self._add("swapped", self.corpora[0], pair, count=0)
            self.findings["swapped"].count = self.starts[self._training]

    def _add_unreadable(self, error: DataError) -> None:
        finding = self.findings["unreadable"]
        finding.count += 1
        if len(finding.examples) < _MAX_UNREADABLE and (match := _ERROR_LOCATION.fullmatch(str(error))):
            finding.examples.append(TextErrorExample(match[1], int(match[2]), (match[3],)))

    def _check_pair(self, corpus: Corpus, pair: Pair, *, is_training: bool) -> None:
        normalised = []
        for side, text in enumerate((pair.source, pair.target)):
            words = text.split()
            normalised.append(" ".join(words))
            self._hashes[side].append(hash(normalised[-1]))
            if side not in self.sides:
                continue
            if is_training:
                self.lengths[SIDES[side], "words"][len(words)] += 1
                self.lengths[SIDES[side], "characters"][len(text)] += 1
            texts = [text] if self.form == "pairs" else text.split(TEXT_SEPARATOR[self.form])
            errors = {kind: excerpt for part in reversed(texts) for kind, excerpt in bad_characters(part)}
            for kind, excerpt in errors.items():
                self._add(kind, corpus, pair, excerpt, side)
                self.dropped.mark(kind, (-1,))
        if self.form == "labelled":
            self._check_label(corpus, pair, is_training=is_training)
        required = (
            [*pair.source.split("\t"), pair.target]
            if self.form == "labelled"
            else [normalised[side] for side in self.sides]
        )
        if not all(text.strip() for text in required):
            self._add("empty", corpus, pair)
            self.dropped.mark("empty", (-1,))
        elif self.form == "pairs" and normalised[0] == normalised[1]:
            self._add("copied", corpus, pair)
            self.dropped.mark("copied", (-1,))

    def _check_label(self, corpus: Corpus, pair: Pair, *, is_training: bool) -> None:
        self.labels[not is_training][pair.target] += 1
        if pair.target and not is_training and pair.target not in self.labels[0]:  # training corpora come first
            self._add("unknown_label", corpus, pair)

    def both_labels(self) -> dict[str, tuple[int, int]]:
        """The count of each label in training and in validation."""
        training, validation = self.labels
        ranked = [label for label, _ in (training + validation).most_common() if label]
        return {label: (training[label], validation[label]) for label in ranked}

    def _add(
        self,
        kind: TextErrorType,
        corpus: Corpus,
        pair: Pair,
        excerpt: str = "",
        side: int = 0,
        *,
        also: str = "",
        count: int = 1,
    ) -> None:
        finding = self.findings[kind]
        finding.count += count
        if len(finding.examples) < _MAX_EXAMPLES:
            texts = (excerpt,) if excerpt else tuple(text[:MAX_SHOWN] for text in self._texts(pair))
            finding.examples.append(TextErrorExample(_file(corpus, side), pair.line, texts, also))

    def _texts(self, pair: Pair) -> tuple[str, ...]:
        """The texts of a pair to show; a label comes before its text, as in the file."""
        return {
            "pairs": (pair.source, pair.target),
            "texts": (pair.target,),
            "labelled": (f"{pair.target}: {pair.source}",),
        }[self.form]

    def find_repeated_texts(self) -> None:
        """Find duplicates and leaks by hashes; the second pass collects the text of their examples."""
        source, target = (np.frombuffer(hashes, np.int64) for hashes in self._hashes)
        not_empty = {0: source != hash(""), 1: target != hash("")}
        required = (1,) if self.form == "texts" else (0, 1)
        complete = np.flatnonzero(np.all([not_empty[side] for side in required], axis=0))
        training, validation = np.split(
            complete, np.searchsorted(complete, self.starts[self._training : self._training + 1])
        )
        pair = source * 31 + target  # wraps around, as hashes do
        later, previous = find_repeats(pair, training)
        self._record("repeated", later, previous)
        self.dropped.mark("repeated", later.tolist())
        self.dropped.mark("leaked", training[in_sorted(pair[training], np.sort(pair[validation]))].tolist())
        first_seen = np.ones(len(pair), bool)
        first_seen[later] = False
        if self.form != "texts":
            later, previous = find_repeats(source, training[first_seen[training]])
            first = ~in_sorted(previous, later)
            self._record("ambiguous", later[first], previous[first])
        leaked = validation[:0]
        for kind, hashes in zip(LEAKS[self.form], (pair, source, target), strict=False):
            seen = validation[in_sorted(hashes[validation], np.sort(hashes[training]))]
            seen = np.setdiff1d(seen, leaked, assume_unique=True)
            leaked = seen if kind == "leaked" else leaked
            training_index = [np.argmax(hashes[training] == hashes[index]) for index in seen[:_MAX_EXAMPLES]]
            self._record(kind, seen, training[training_index] if training_index else training[:0])

    def _record(self, kind: TextErrorType, indices: Integers, others: Integers) -> None:
        self.findings[kind].count = len(indices)
        for index, other in zip(indices[:_MAX_EXAMPLES].tolist(), others[:_MAX_EXAMPLES].tolist(), strict=True):
            (corpus, offset), (other_corpus, other_offset) = self._locate(index), self._locate(other)
            other_line = f"{_file(self.corpora[other_corpus])}:{self._lines[other_corpus][other_offset]}"
            self._pending_examples[corpus].setdefault(offset, []).append((kind, other_line))

    def _locate(self, index: int) -> tuple[int, int]:
        """The corpus of a pair, and the pair's index in it."""
        corpus = int(np.searchsorted(self.starts, index, side="right")) - 1
        return corpus, index - self.starts[corpus]

    def second_pass(self, tokens: Integers, max_tokens: int, max_length: int | None) -> None:
        """Check each pair against the statistics of all pairs."""
        characters = np.array([(len(pair.source), len(pair.target)) for pair in self.sample])
        mean_characters = np.maximum(characters.mean(0), 1)
        tokens_per_character = tokens.sum(0) / np.maximum(characters.sum(0), 1)
        check_languages = self.form == "pairs" and self._fit_languages()
        for corpus_index, corpus in enumerate(self.corpora):
            for batch in pair_batches(corpus, _BATCH_PAIRS, lambda _: None, self.starts[corpus_index]):
                self._report("checking", batch.start)
                lengths = np.array([(len(pair.source), len(pair.target)) for pair in batch.pairs])
                long = (lengths * tokens_per_character > max_tokens)[:, self.sides].any(1)
                self._mark("too_long", batch, long & (not corpus.documents))  # documents are split into chunks
                if self.form == "pairs":
                    complete: NDArray[np.bool_] = np.all(lengths > 0, axis=1)
                    relative = lengths / mean_characters + 0.2  # short texts may differ by a larger factor
                    unequal = complete & (relative.max(1) > _MAX_LENGTH_RATIO * relative.min(1))
                    self._mark("unequal", batch, unequal)
                    if max_length is not None:
                        candidates = complete & ~unequal & ~long
                        self._mark_cut_off(batch, candidates, lengths * tokens_per_character, max_length)
                    if check_languages:
                        self._check_languages(batch, complete)
                for offset, kinds in self._pending_examples[corpus_index].items():
                    index = self.starts[corpus_index] + offset - batch.start
                    for kind, also in kinds if 0 <= index < len(batch.pairs) else ():
                        self._add(kind, corpus, batch.pairs[index], also=also, count=0)  # already counted

    def _mark_cut_off(
        self, batch: PairBatch, candidates: NDArray[np.bool_], tokens: NDArray[np.float64], max_length: int
    ) -> None:
        cut_off = candidates & (tokens[:, 1] > max_length)
        self._mark("cut_off", batch, cut_off)
        if cut_off.any():
            self.longest = max(self.longest, -(-int(tokens[cut_off, 1].max() + 1) // 100) * 100)
            self.findings["cut_off"].advice = f"search.max_length={self.longest} would allow all of them."

    def _fit_languages(self) -> bool:
        """Fit the language statistics; returns whether there is enough text for them."""
        self._languages.fit(self.sample[:: -(-len(self.sample) // _LANGUAGE_SAMPLE)])
        if self.starts[self._training] < _MIN_LANGUAGE_PAIRS:
            self.notes.append(f"fewer than {_MIN_LANGUAGE_PAIRS} pairs are too few to find texts in the wrong language")
            return False
        if self._languages.same_language:
            self.notes.append(
                "both sides have similar trigrams (one language, or many swapped): swapped pairs cannot be found"
            )
        return True

    def _check_languages(self, batch: PairBatch, complete: NDArray[np.bool_]) -> None:
        different = complete & np.array([pair.source != pair.target for pair in batch.pairs])
        (source, target), outliers = self._languages.classify(batch.pairs)
        self._mark("swapped", batch, different & source & target)
        self._mark("source_foreign", batch, different & source & ~target)
        self._mark("target_foreign", batch, different & target & ~source)
        self._mark("unlike", batch, different & outliers.any(0))

    def _mark(self, kind: TextErrorType, batch: PairBatch, marked: NDArray[np.bool_]) -> None:
        indices = np.flatnonzero(marked)
        self.dropped.mark(kind, (batch.start + indices).tolist())
        for index in indices.tolist():
            self._add(kind, batch.corpus, batch.pairs[index])


def _file(corpus: Corpus, side: int = 0) -> str:
    return str(corpus.pairs or corpus.text or (corpus.target if side else corpus.source))
