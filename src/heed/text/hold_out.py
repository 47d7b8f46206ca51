"""Holds out training pairs for validation when no validation set is given.

Enters: surveyed corpora (prepare.py). Leaves: the same corpora as a training and a held-out subset. A pair is chosen by
a hash of its text: the choice is the same in every run, and all copies of a pair are in the same subset.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappush, heappushpop

from heed.errors import ConfigError
from heed.text.corpus import PairSubset, pair_hash, read_pairs
from heed.text.prepare import SurveyedCorpora

_SHARE, _MAX_HELD_OUT = 0.05, 1000  # of the pairs, and at most so many
_MIN_PAIRS = 1000  # a smaller corpus is not split
_MAX_REPEATED = 0.01  # pairs whose copies are more than this share of all pairs stay in training


def pairs_to_hold_out(pairs: int, setting: int | None) -> int:
    """The number of pairs to hold out. setting: data.hold_out."""
    if setting is None:
        return min(int(pairs * _SHARE), _MAX_HELD_OUT) if pairs >= _MIN_PAIRS else 0
    if setting >= pairs:
        raise ConfigError(f"data.hold_out = {setting} leaves no training data: there are {pairs:,} pairs")
    return setting


def hold_out(
    surveyed: SurveyedCorpora, count: int, sides: Sequence[str], report: Callable[[int], None]
) -> tuple[SurveyedCorpora, SurveyedCorpora]:
    """Split corpora into training and held-out subsets. sides: pairs in which one of them is empty are not held out."""
    chosen, copies = _choose(surveyed, count, sides, report)
    if not chosen:
        return surveyed, []
    key = hashlib.blake2b(repr(sorted(chosen)).encode(), digest_size=16).hexdigest()
    training: SurveyedCorpora = []
    validation: SurveyedCorpora = []
    for (corpus, survey), corpus_copies in zip(surveyed, copies, strict=True):
        held_out = sum(corpus_copies[code] for code in chosen)
        subsets = ((training, survey.pairs - held_out, "training"), (validation, held_out, "held out"))
        for corpora, pairs, name in subsets:
            if pairs:
                subset = replace(corpus, subset=PairSubset(frozenset(chosen), held_out=corpora is validation))
                corpora.append((subset, replace(survey, pairs=pairs, digest=f"{survey.digest} {name} {key}")))
    return training, validation


def _choose(
    surveyed: SurveyedCorpora, count: int, sides: Sequence[str], report: Callable[[int], None]
) -> tuple[set[int], list[Counter[int]]]:
    """The hashes of the pairs to hold out, and for each corpus how often each hash occurs in it."""
    smallest, copies = _SmallestHashes(count), [Counter[int]() for _ in surveyed]
    labels, done = Counter[str](), 0
    for (corpus, _), corpus_copies in zip(surveyed, copies, strict=True):
        for done, pair in enumerate(read_pairs(corpus), done + 1):  # noqa: B020 - counts on from corpus to corpus
            if done % 10_000 == 0:
                report(done)
            if corpus.labelled:
                labels[pair.target] += 1
            if all(getattr(pair, side).strip() for side in (*sides, "target")):
                code = pair_hash(pair)
                if smallest.offer(code, pair.target):
                    corpus_copies[code] += 1
    total_copies = {code: sum(counts[code] for counts in copies) for code in smallest.targets}
    chosen = {code for code, count in total_copies.items() if count <= max(1, done * _MAX_REPEATED)}
    if labels:  # never hold out all texts of a label
        held_out = Counter(smallest.targets[code] for code in chosen for _ in range(total_copies[code]))
        chosen = {code for code in chosen if held_out[smallest.targets[code]] < labels[smallest.targets[code]]}
    return chosen, copies


class _SmallestHashes:
    """The smallest pair hashes so far, with the targets of their pairs."""

    def __init__(self, count: int) -> None:
        self.targets: dict[int, str] = {}
        self._count = count
        self._heap: list[int] = []  # negated, so that the root is the largest

    def offer(self, code: int, target: str) -> bool:
        """Add a pair if its hash is among the smallest so far; returns whether it is."""
        if code not in self.targets:
            if len(self._heap) < self._count:
                heappush(self._heap, -code)
            elif (largest := -heappushpop(self._heap, -code)) == code:
                return False
            else:
                del self.targets[largest]
            self.targets[code] = target
        return True
