"""Sequences drawn at random, each token by its probability.

The random numbers are a function, not a state: one for each (seed, sentence, sample, step), the same on every machine.
So what is drawn for a sentence depends on its own number alone, never on what else is in the batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.config import SearchConfig
from heed.decoding.greedy import whole_walk
from heed.decoding.ranking import likeliest
from heed.decoding.search import Hypothesis, Prefixes, Rules, S, Start, precise
from heed.errors import InputError


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
    copied = Start(start.step, start.state.select(copies[:, None], copies), start.first[copies], start.eos_id)
    random = torch.from_numpy(
        np.stack([uniform(config.seed, number, copy, max(max_lengths)) for number in numbers for copy in range(count)])
    ).to(device, precise(device))

    def choose(allowed: Float[Tensor, "B V"], going: Int[Tensor, "B"], length: int) -> Int[Tensor, "B"]:
        return draw(allowed, random[going, length], config)

    drawn = whole_walk(copied, rules.select(copies), choose, config.length_penalty)
    each = [drawn[first : first + count] for first in range(0, len(drawn), count)]
    return [sorted(samples, key=lambda each: -each.score) for samples in each]


def uniform(seed: int, sentence: int, copy: int, max_length: int) -> Float[np.ndarray, "steps"]:
    """Numbers from 0 up to 1, one a step, the end's included; a greater length adds numbers and changes none."""
    source = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(sentence, copy)))
    return (source.random_raw(max_length + 1) >> 11) * 2.0**-53


def draw(log_probs: Float[Tensor, "B V"], random: Float[Tensor, "B"], config: SearchConfig) -> Int[Tensor, "B"]:
    """The token at which the probabilities, summed from the likeliest down, first exceed the random number.

    Temperature comes first, then top-k, then top-p; what is left is scaled to sum to one.
    """
    values, tokens = likeliest(log_probs, config.top_k or log_probs.shape[-1])
    values = values.to(random.dtype)
    probabilities = ((values - values[:, :1]) / config.temperature).softmax(-1)
    sums = probabilities.cumsum(-1)
    kept = probabilities > 0
    if config.top_p is not None:
        kept &= sums - probabilities < config.top_p  # always the first, and that which reaches top_p
    last = kept.sum(-1, keepdim=True).sub(1).clamp(min=0)
    place = torch.searchsorted(sums, random[:, None] * sums.gather(1, last), right=True)
    return tokens.gather(1, place.minimum(last))[:, 0]  # `last`, should rounding have led beyond
