"""Pairs held out of training to validate on, where nobody gave text for that.

Enters: corpora that have been read through. Leaves: the same corpora in two parts. A pair is chosen by a hash of its
text: the choice is the same in every run, and a pair that occurs twice is in one part only.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappush, heappushpop

from heed.errors import ConfigError
from heed.text.corpus import PairSubset, pair_hash, read_pairs
from heed.text.prepare import SurveyedCorpora

_SHARE, _MOST, _FEW = 0.05, 1000, 1000  # of the pairs; at most so many; of fewer pairs none are held out
_REPEATED = 0.01  # of all pairs: what is repeated more often than that stays in training


def pairs_to_hold_out(pairs: int, wanted: int | None) -> int:
    """How many of so many pairs are held out. wanted: data.hold_out, if it is set."""
    if wanted is None:
        return min(int(pairs * _SHARE), _MOST) if pairs >= _FEW else 0
    if wanted >= pairs:
        raise ConfigError(f"data.hold_out = {wanted} leaves nothing to learn from: there are {pairs:,} pairs")
    return wanted


def hold_out(
    surveyed: SurveyedCorpora, count: int, sides: Sequence[str], report: Callable[[int], None]
) -> tuple[SurveyedCorpora, SurveyedCorpora]:
    """The corpora without the pairs held out, and those pairs. sides: those that a pair must have to be chosen."""
    chosen, times = _choose(surveyed, count, sides, report)
    key = hashlib.blake2b(repr(sorted(chosen)).encode(), digest_size=16).hexdigest()
    parts: tuple[SurveyedCorpora, SurveyedCorpora] = ([], [])
    for number, (corpus, survey) in enumerate(surveyed):
        held_out = sum(times[number][code] for code in chosen)
        for part, pairs, name in ((parts[0], survey.pairs - held_out, "training"), (parts[1], held_out, "held out")):
            if pairs:
                split = replace(corpus, subset=PairSubset(frozenset(chosen), held_out=part is parts[1]))
                part.append((split, replace(survey, pairs=pairs, digest=f"{survey.digest} {name} {key}")))
    return parts


def _choose(
    surveyed: SurveyedCorpora, count: int, sides: Sequence[str], report: Callable[[int], None]
) -> tuple[set[int], list[Counter[int]]]:
    """The hashes of the pairs with the smallest hashes, and how often each is in each corpus."""
    smallest, times, labels, done = _Smallest(count), [Counter[int]() for _ in surveyed], Counter[str](), 0
    for number, (corpus, _) in enumerate(surveyed):
        for done, pair in enumerate(read_pairs(corpus), done + 1):  # noqa: B020 - counts on from corpus to corpus
            if done % 10_000 == 0:
                report(done)
            if corpus.labelled:
                labels[pair.target] += 1
            if all(getattr(pair, side).strip() for side in (*sides, "target")):
                code = pair_hash(pair)
                if smallest.take(code, pair.target):
                    times[number][code] += 1
    often = {code: sum(counts[code] for counts in times) for code in smallest.targets}
    chosen = {code for code, count in often.items() if count <= max(1, done * _REPEATED)}
    if labels:  # no label may be held out with all its texts
        held_out = Counter(smallest.targets[code] for code in chosen for _ in range(often[code]))
        chosen = {code for code in chosen if held_out[smallest.targets[code]] < labels[smallest.targets[code]]}
    return chosen, times


class _Smallest:
    """The pairs with the smallest hashes so far, each with its target."""

    def __init__(self, count: int) -> None:
        self.targets: dict[int, str] = {}
        self._count = count
        self._heap: list[int] = []  # negative, so that the largest comes first

    def take(self, code: int, target: str) -> bool:
        """Offer a pair; returns whether it is among the smallest so far."""
        if code not in self.targets:
            if len(self._heap) < self._count:
                heappush(self._heap, -code)
            elif (largest := -heappushpop(self._heap, -code)) == code:
                return False
            else:
                del self.targets[largest]
            self.targets[code] = target
        return True
