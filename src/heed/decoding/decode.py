"""Searches of one hypothesis per sentence: greedy and sampling, in batches that sentences leave when they end.

What is sampled for a sentence is a function of seed, sentence number and step alone: batch size and order change
nothing.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Hypothesis, Prefixes, S, SearchOps, Start
from heed.config import SearchConfig
from heed.decoding.search import Rules, precise
from heed.errors import InputError

# From the log-probabilities the rules allow, the numbers of their sentences and how many tokens are written.
Choose: TypeAlias = Callable[[Float[Tensor, "B V"], Int[Tensor, "B"], int], Int[Tensor, "B"]]


class Chosen(NamedTuple):
    """The token that a sentence goes on with, or ends with."""

    number: int  # of the sentence
    token: int
    log_prob: float  # of the sentence so far
    truncated: bool  # it is an eos that only the length limit asked for


@torch.no_grad()
def walk(start: Start[S], rules: Rules, choose: Choose) -> Iterator[list[Chosen]]:
    """Each step's tokens, of all sentences that have not ended; the last token of a sentence is eos."""
    state, ids = start.state, start.first
    going = torch.arange(len(ids), device=ids.device)
    numbers = going.tolist()
    written = ids.new_empty(len(ids), 1, 0)
    totals = torch.zeros(len(ids), dtype=precise(ids.device), device=ids.device)
    while numbers:
        log_probs, state = start.step(ids, state)
        permitted = rules.allow(log_probs.float()[:, None], written)
        allowed = permitted.log_probs[:, 0]
        ids = choose(allowed, going, written.shape[-1])
        totals = totals + allowed.gather(1, ids[:, None])[:, 0]
        written = torch.cat((written, ids[:, None, None]), -1)
        tokens, so_far = ids.tolist(), totals.tolist()
        cut_off = [False] * len(tokens) if permitted.truncated is None else permitted.truncated[:, 0].tolist()
        yield [Chosen(*each) for each in zip(numbers, tokens, so_far, cut_off, strict=True)]
        stay = [row for row, token in enumerate(tokens) if token != start.eos_id]
        if len(stay) < len(numbers):
            numbers = [numbers[row] for row in stay]
            left = torch.tensor(stay, dtype=torch.int64, device=ids.device)
            ids, written, totals, going = ids[left], written[left], totals[left], going[left]
            state, rules = state.select(left[:, None], left), rules.select(left)


def whole_walk(start: Start[S], rules: Rules, choose: Choose, alpha: float) -> list[Hypothesis]:
    """Where the walk of each sentence ended."""
    written: list[list[int]] = [[] for _ in start.first]
    ended: dict[int, Hypothesis] = {}
    for tokens in walk(start, rules, choose):
        for number, token, log_prob, truncated in tokens:
            if token == start.eos_id:
                rules.check(number, log_prob)
                ended[number] = Hypothesis.of(written[number], log_prob, alpha, truncated=truncated)
            else:
                written[number].append(token)
    return [ended[number] for number in range(len(written))]


def greedily(start: Start[S]) -> Choose:
    """Choose the most probable token."""
    return lambda allowed, _going, _length: start.ops.argmax(allowed)


def greedy_search(
    start: Start[S], max_lengths: Sequence[int], config: SearchConfig, prefixes: Prefixes = None
) -> list[Hypothesis]:
    """What a beam of one finds, without a beam: the tokens that follow one another most likely."""
    rules = Rules.of(start, max_lengths, config, prefixes)
    return whole_walk(start, rules, greedily(start), config.length_penalty)


def greedy_stream(
    start: Start[S], max_length: int, config: SearchConfig, prefix: Sequence[int] = ()
) -> Generator[int, None, bool]:
    """The tokens of one sentence by greedy search, each as soon as it is chosen, the prefix included.

    The generator's return value says whether the length limit ended it, and not the model.
    """
    rules, truncated = Rules.of(start, [max_length], config, [prefix]), False
    for [chosen] in walk(start, rules, greedily(start)):
        rules.check(chosen.number, chosen.log_prob)
        truncated = chosen.truncated
        if chosen.token != start.eos_id:
            yield chosen.token
    return truncated


def sample(
    start: Start[S],
    max_lengths: Sequence[int],
    config: SearchConfig,
    numbers: Sequence[int],
    prefixes: Prefixes = None,
) -> list[list[Hypothesis]]:
    """`nbest` samples of each sentence, the best score first; `numbers` are the sentences' own, in the whole text.

    The log-probability of a sample is the model's, whatever the temperature and however few tokens it was drawn from.
    """
    if len(numbers) != len(start.first):
        raise InputError(f"{len(numbers)} sentence numbers are given for {len(start.first)} sentences")
    count, device = config.nbest, start.first.device
    rules = Rules.of(start, max_lengths, config, prefixes)
    copies = torch.arange(len(start.first), device=device).repeat_interleave(count)  # each sample leaves when it ends
    copied = replace(start, state=start.state.select(copies[:, None], copies), first=start.first[copies])
    random = torch.from_numpy(
        np.stack([uniform(config.seed, number, copy, max(max_lengths)) for number in numbers for copy in range(count)])
    ).to(device, precise(device))

    def choose(allowed: Float[Tensor, "B V"], going: Int[Tensor, "B"], length: int) -> Int[Tensor, "B"]:
        return draw(allowed, random[going, length], config, start.ops)

    drawn = whole_walk(copied, rules.select(copies), choose, config.length_penalty)
    each = [drawn[first : first + count] for first in range(0, len(drawn), count)]
    return [sorted(samples, key=lambda each: -each.score) for samples in each]


def uniform(seed: int, sentence: int, copy: int, max_length: int) -> Float[np.ndarray, "steps"]:
    """Numbers from 0 up to 1, one a step, the end's included; a greater length adds numbers and changes none."""
    source = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(sentence, copy)))
    return (source.random_raw(max_length + 1) >> 11) * 2.0**-53


def draw(
    log_probs: Float[Tensor, "B V"], random: Float[Tensor, "B"], config: SearchConfig, ops: SearchOps
) -> Int[Tensor, "B"]:
    """The token at which the probabilities, summed from the likeliest down, first exceed the random number.

    Temperature comes first, then top-k, then top-p; what is left is scaled to sum to one.
    """
    values, tokens = ops.topk(log_probs, config.top_k or log_probs.shape[-1])
    values = values.to(random.dtype)
    probabilities = ((values - values[:, :1]) / config.temperature).softmax(-1)
    sums = probabilities.cumsum(-1)
    kept = probabilities > 0
    if config.top_p is not None:
        kept &= sums - probabilities < config.top_p  # always the first, and that which reaches top_p
    last = kept.sum(-1, keepdim=True).sub(1).clamp(min=0)
    place = torch.searchsorted(sums, random[:, None] * sums.gather(1, last), right=True)
    return tokens.gather(1, place.minimum(last))[:, 0]  # `last`, should rounding have led beyond
