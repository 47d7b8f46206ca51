"""Reference beam search: one sentence at a time, tuples and lists instead of tensors, and no cache."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from heed.backends.protocol import Hypothesis
from heed.search_config import SearchConfig

NextLogProbs: TypeAlias = Callable[
    [tuple[int, ...]], Sequence[float]
]  # a prefix to the log-probability of every next token
Scored: TypeAlias = tuple[float, tuple[int, ...]]

IMPOSSIBLE = float("-inf")


def score(log_prob: float, length: int, alpha: float) -> float:
    return log_prob / ((5 + length) / 6) ** alpha


def repeats(tokens: tuple[int, ...], size: int | None) -> bool:
    """Whether the last `size` tokens occur earlier."""
    if size is None or len(tokens) < size:
        return False
    last = tokens[-size:]
    return any(tokens[start : start + size] == last for start in range(len(tokens) - size))


def continuations(
    live: list[Scored], model: NextLogProbs, eos: int, config: SearchConfig, max_length: int, prefix: tuple[int, ...]
) -> Iterator[Scored]:
    """Every allowed next hypothesis, EOS included, in the order in which equal ones are ranked."""
    for log_prob, tokens in live:
        for token, value in enumerate(model(tokens)):
            if len(tokens) < len(prefix):
                allowed = token == prefix[len(tokens)]
            elif token == eos:
                allowed = len(tokens) >= config.min_length
            else:
                allowed = len(tokens) < max_length and not repeats((*tokens, token), config.no_repeat_ngram)
            if allowed and log_prob + value > IMPOSSIBLE:
                yield log_prob + value, (*tokens, token)


def would_continue(tokens: tuple[int, ...], model: NextLogProbs, eos: int, config: SearchConfig) -> bool:
    """Whether the most probable token that does not repeat an n-gram is not EOS; of equal ones the first counts."""
    allowed = [
        IMPOSSIBLE if token != eos and repeats((*tokens, token), config.no_repeat_ngram) else value
        for token, value in enumerate(model(tokens))
    ]
    return allowed.index(max(allowed)) != eos


def reference_beam(
    model: NextLogProbs,
    eos: int,
    config: SearchConfig,
    max_length: int,
    prefix: tuple[int, ...] = (),
) -> list[Hypothesis]:
    """The expected result of `beam_search`, without its early stop: it continues to the maximum length."""
    live: list[Scored] = [(0.0, ())]
    finished: list[Hypothesis] = []
    while live:
        ranked = sorted(continuations(live, model, eos, config, max_length, prefix), key=lambda scored: -scored[0])
        finished += [
            Hypothesis(
                tokens[:-1],
                log_prob,
                score(log_prob, len(tokens), config.length_penalty),
                len(tokens) - 1 == max_length and would_continue(tokens[:-1], model, eos, config),
            )
            for log_prob, tokens in ranked[: config.beam]
            if tokens[-1] == eos
        ]
        if len(finished) >= config.nbest and (config.stop == "first" or config.beam == 1):
            break
        live = [scored for scored in ranked if scored[1][-1] != eos][: config.beam]
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)[: config.nbest]


def exhaustive(model: NextLogProbs, eos: int, config: SearchConfig, max_length: int) -> list[Hypothesis]:
    """All possible sequences, best first."""
    finished: list[Scored] = []
    live: list[Scored] = [(0.0, ())]
    while live:
        extended = list(continuations(live, model, eos, config, max_length, ()))
        finished += [(log_prob, tokens) for log_prob, tokens in extended if tokens[-1] == eos]
        live = [(log_prob, tokens) for log_prob, tokens in extended if tokens[-1] != eos]
    hypotheses = [
        Hypothesis(tokens[:-1], log_prob, score(log_prob, len(tokens), config.length_penalty))
        for log_prob, tokens in finished
    ]
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
