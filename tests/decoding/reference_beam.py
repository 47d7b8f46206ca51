"""Beam search written plainly: one sentence, tuples and lists, no tensors, the whole sequence again at every step."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from heed.backends.base import Hypothesis
from heed.config import SearchConfig

NextLogProbs: TypeAlias = Callable[
    [tuple[int, ...]], Sequence[float]
]  # after these words, of each word of the vocabulary
Scored: TypeAlias = tuple[float, tuple[int, ...]]

NEVER = float("-inf")


def score(log_prob: float, length: int, alpha: float) -> float:
    return log_prob / ((5 + length) / 6) ** alpha


def repeats(words: tuple[int, ...], size: int | None) -> bool:
    """Whether the last `size` words stand somewhere before."""
    if size is None or len(words) < size:
        return False
    last = words[-size:]
    return any(words[at : at + size] == last for at in range(len(words) - size))


def continuations(
    live: list[Scored], model: NextLogProbs, eos: int, config: SearchConfig, max_length: int, prefix: tuple[int, ...]
) -> Iterator[Scored]:
    """Everything that may be said next, its eos written out; in the order in which equals are to be ranked."""
    for log_prob, words in live:
        for word, value in enumerate(model(words)):
            if len(words) < len(prefix):
                allowed = word == prefix[len(words)]
            elif word == eos:
                allowed = len(words) >= config.min_length
            else:
                allowed = len(words) < max_length and not repeats((*words, word), config.no_repeat_ngram)
            if allowed and log_prob + value > NEVER:
                yield log_prob + value, (*words, word)


def would_go_on(words: tuple[int, ...], model: NextLogProbs, eos: int, config: SearchConfig) -> bool:
    """Whether the most probable word that does not repeat is another than the eos; of equals the first."""
    free = [
        NEVER if word != eos and repeats((*words, word), config.no_repeat_ngram) else value
        for word, value in enumerate(model(words))
    ]
    return free.index(max(free)) != eos


def reference_beam(
    model: NextLogProbs,
    eos: int,
    config: SearchConfig,
    max_length: int,
    prefix: tuple[int, ...] = (),
) -> list[Hypothesis]:
    """What `beam_search` must find. Where that stops early, since nothing can change, this goes on to the end."""
    live: list[Scored] = [(0.0, ())]
    ended: list[Hypothesis] = []
    while live:
        ranked = sorted(continuations(live, model, eos, config, max_length, prefix), key=lambda each: -each[0])
        ended += [
            Hypothesis(
                words[:-1],
                log_prob,
                score(log_prob, len(words), config.length_penalty),
                len(words) - 1 == max_length and would_go_on(words[:-1], model, eos, config),
            )
            for log_prob, words in ranked[: config.beam]
            if words[-1] == eos
        ]
        if len(ended) >= config.nbest and (config.stop == "first" or config.beam == 1):
            break
        live = [each for each in ranked if each[1][-1] != eos][: config.beam]
    return sorted(ended, key=lambda hypothesis: -hypothesis.score)[: config.nbest]


def exhaustive(model: NextLogProbs, eos: int, config: SearchConfig, max_length: int) -> list[Hypothesis]:
    """All sequences that there are, best first."""
    ended: list[Scored] = []
    live: list[Scored] = [(0.0, ())]
    while live:
        longer = list(continuations(live, model, eos, config, max_length, ()))
        ended += [(log_prob, words) for log_prob, words in longer if words[-1] == eos]
        live = [(log_prob, words) for log_prob, words in longer if words[-1] != eos]
    found = [
        Hypothesis(words[:-1], log_prob, score(log_prob, len(words), config.length_penalty))
        for log_prob, words in ended
    ]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)
