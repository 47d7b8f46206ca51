"""Greedy search and sampling: one hypothesis per sentence, in batches that finished sentences leave.

The sample drawn for a sentence depends only on the seed, its sentence id and the step, so batch size and order do not
change it.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import S, SearchOps, Start
from heed.backends.protocol import Hypothesis, Prefixes
from heed.decoding.search import Constraints, score_dtype
from heed.errors import InputError
from heed.search_config import SearchConfig

# Chooses a token per row from the constrained log-probabilities, the rows' indices in the batch, and the step.
ChooseTokens: TypeAlias = Callable[[Float[Tensor, "B V"], Int[Tensor, "B"], int], Int[Tensor, "B"]]


class NextToken(NamedTuple):
    """The token chosen for one sentence at one step."""

    sentence: int  # its index in the batch
    token: int
    log_prob: float  # of the hypothesis so far
    truncated: bool  # the token is eos only because of the length limit


@torch.no_grad()
def decode_steps(start: Start[S], constraints: Constraints, choose: ChooseTokens) -> Iterator[list[NextToken]]:
    """Yield the tokens of each step, for all unfinished sentences; the last token of a sentence is eos."""
    state, ids = start.state, start.first
    live = torch.arange(len(ids), device=ids.device)
    sentences = live.tolist()
    written = ids.new_empty(len(ids), 1, 0)
    totals = torch.zeros(len(ids), dtype=score_dtype(ids.device), device=ids.device)
    while sentences:
        log_probs, state = start.step(ids, state)
        constrained = constraints.apply(log_probs.float()[:, None], written)
        allowed = constrained.log_probs[:, 0]
        ids = choose(allowed, live, written.shape[-1])
        totals = totals + allowed.gather(1, ids[:, None])[:, 0]
        written = torch.cat((written, ids[:, None, None]), -1)
        tokens = ids.tolist()
        truncated = [False] * len(tokens) if constrained.truncated is None else constrained.truncated[:, 0].tolist()
        columns = zip(sentences, tokens, totals.tolist(), truncated, strict=True)
        yield [NextToken(*values) for values in columns]
        unfinished = [row for row, token in enumerate(tokens) if token != start.eos_id]
        if len(unfinished) < len(sentences):
            sentences = [sentences[row] for row in unfinished]
            rows = torch.tensor(unfinished, dtype=torch.int64, device=ids.device)
            ids, written, totals, live = ids[rows], written[rows], totals[rows], live[rows]
            state, constraints = state.select(rows[:, None], rows), constraints.select(rows)


def decode(start: Start[S], constraints: Constraints, choose: ChooseTokens, alpha: float) -> list[Hypothesis]:
    """Run `decode_steps` to the end: one finished hypothesis per sentence."""
    written: list[list[int]] = [[] for _ in start.first]
    finished: dict[int, Hypothesis] = {}
    for tokens in decode_steps(start, constraints, choose):
        for sentence, token, log_prob, truncated in tokens:
            if token == start.eos_id:
                constraints.check(sentence, log_prob)
                finished[sentence] = Hypothesis.of(written[sentence], log_prob, alpha, truncated=truncated)
            else:
                written[sentence].append(token)
    return [finished[sentence] for sentence in range(len(written))]


def choose_argmax(start: Start[S]) -> ChooseTokens:
    """Greedy choice: the most probable token."""
    return lambda allowed, _live, _step: start.ops.argmax(allowed)


def greedy_search(
    start: Start[S], max_lengths: Sequence[int], config: SearchConfig, prefixes: Prefixes = None
) -> list[Hypothesis]:
    """The most probable token at each step; equals beam search with a beam of 1."""
    constraints = Constraints.of(start, max_lengths, config, prefixes)
    return decode(start, constraints, choose_argmax(start), config.length_penalty)


def greedy_stream(
    start: Start[S], max_length: int, config: SearchConfig, prefix: Sequence[int] = ()
) -> Generator[int, None, bool]:
    """Yield the tokens of one sentence by greedy search, as they are chosen, the prefix included.

    Returns whether the length limit truncated it.
    """
    constraints, truncated = Constraints.of(start, [max_length], config, [prefix]), False
    for [chosen] in decode_steps(start, constraints, choose_argmax(start)):
        constraints.check(chosen.sentence, chosen.log_prob)
        truncated = chosen.truncated
        if chosen.token != start.eos_id:
            yield chosen.token
    return truncated


def sample(
    start: Start[S],
    max_lengths: Sequence[int],
    config: SearchConfig,
    sentence_ids: Sequence[int],
    prefixes: Prefixes = None,
) -> list[list[Hypothesis]]:
    """`nbest` samples per sentence, best score first. sentence_ids: seed the random numbers of each sentence.

    The log-probability of a sample is the model's own, before temperature, top-k and top-p.
    """
    if len(sentence_ids) != len(start.first):
        raise InputError(f"found {len(sentence_ids)} sentence ids for {len(start.first)} sentences: expected one each")
    count, device = config.nbest, start.first.device
    constraints = Constraints.of(start, max_lengths, config, prefixes)
    copies = torch.arange(len(start.first), device=device).repeat_interleave(count)  # a row per sample
    repeated = replace(start, state=start.state.select(copies[:, None], copies), first=start.first[copies])
    random = torch.from_numpy(
        np.stack(
            [
                uniform_numbers(config.seed, sentence, copy, max(max_lengths))
                for sentence in sentence_ids
                for copy in range(count)
            ]
        )
    ).to(device, score_dtype(device))

    def choose(allowed: Float[Tensor, "B V"], live: Int[Tensor, "B"], step: int) -> Int[Tensor, "B"]:
        return sample_tokens(allowed, random[live, step], config, start.ops)

    samples = decode(repeated, constraints.select(copies), choose, config.length_penalty)
    by_sentence = [samples[first : first + count] for first in range(0, len(samples), count)]
    return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in by_sentence]


def uniform_numbers(seed: int, sentence: int, copy: int, max_length: int) -> Float[np.ndarray, "steps"]:
    """A random number in [0, 1) per step, eos included; a larger `max_length` appends numbers and changes none."""
    generator = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(sentence, copy)))
    return (generator.random_raw(max_length + 1) >> 11) * 2.0**-53


def sample_tokens(
    log_probs: Float[Tensor, "B V"], random: Float[Tensor, "B"], config: SearchConfig, ops: SearchOps
) -> Int[Tensor, "B"]:
    """Inverse transform sampling: the first token, by decreasing probability, whose cumulative sum exceeds `random`.

    Temperature comes first, then top-k, then top-p; the remaining probabilities are renormalised.
    """
    values, tokens = ops.topk(log_probs, config.top_k or log_probs.shape[-1])
    values = values.to(random.dtype)
    probabilities = ((values - values[:, :1]) / config.temperature).softmax(-1)
    sums = probabilities.cumsum(-1)
    kept = probabilities > 0
    if config.top_p is not None:
        kept &= sums - probabilities < config.top_p  # always the first token, up to the one that reaches top_p
    last = kept.sum(-1, keepdim=True).sub(1).clamp(min=0)
    rank = torch.searchsorted(sums, random[:, None] * sums.gather(1, last), right=True)
    return tokens.gather(1, rank.minimum(last))[:, 0]  # rounding errors may lead past `last`
