"""How fast a model learns on this machine: the steps that `heed train` takes, on sentences that mean nothing.

Enters: settings. Leaves: target tokens a second, memory, and the share of what the machine could do at most. Words are
random, lengths are those of real sentences; batches, learner, optimiser and schedule are the trainer's own.
"""

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from heed.backends.machine import device_name
from heed.benchmarking.limits import Arithmetic, now, operations_a_second, peak_memory, training_operations
from heed.config import ModelConfig, RunConfig
from heed.errors import ConfigError
from heed.model.size import parameters
from heed.model.transformer import Transformer
from heed.text.prepared import Kept, Prepared, Side
from heed.text.tokenizer import SPECIAL
from heed.training.batches import Batches, Numbers, ahead
from heed.training.ema import RunningMean
from heed.training.learner import can_capture, check_precision, is_half
from heed.training.run import Run, make_optimizer
from heed.training.step import Taken, share, take_step

Step = Callable[[], int]  # takes a step, returns its target tokens
Pair = tuple[int, int]  # tokens of a source and its target, the one that ends each included

_LONGEST, _MEAN = 128, 30  # tokens of a target
_BATCHES = 40  # that there are sentences for, in an epoch
_WARM_UP = {"cpu": 2, "cuda": 12}  # steps
_FEWEST = 3  # steps that are timed


@dataclass(frozen=True)
class Learnt:
    """How fast it was."""

    device: str
    parameters: int
    steps: int  # that were timed
    tokens_per_step: float  # real target tokens, on average
    tokens_per_second: float
    seconds_per_step: float
    arithmetic: Arithmetic
    operations_per_second: float  # in matrix products
    limit: float  # operations a second of a large product
    share: float  # of the limit
    peak_memory: int | None  # bytes


def pair_lengths(count: int) -> list[Pair]:
    """Lengths like those of real sentence pairs: about 28 tokens of a source, 30 of a target, 128 at most."""
    draw, found = random.Random(0), list[Pair]()  # noqa: S311 - nothing here is secret
    while len(found) < count:
        source = round(math.exp(draw.gauss(3.2, 0.55)))
        target = max(2, round(source * math.exp(draw.gauss(0.05, 0.18))))
        if 3 <= source <= _LONGEST and target <= _LONGEST:
            found.append((source, target))
    return found


def random_pairs(lengths: Sequence[Pair], config: ModelConfig) -> Prepared:
    """Pairs of such lengths, of words drawn at random."""
    draw = np.random.default_rng(0)

    def words(side: int, vocabulary: int) -> Side:
        ends = np.cumsum([pair[side] - 1 for pair in lengths])
        return Side(draw.integers(len(SPECIAL), vocabulary, ends[-1]).astype(np.uint32), ends)

    source, target = words(0, config.source_vocab_size or config.vocab_size), words(1, config.vocab_size)
    return Prepared(Path(), source, target, (Kept("", 1.0, len(lengths), 0, 0, _LONGEST),))


def training_steps(config: RunConfig, pairs: Prepared, device: torch.device) -> Step:
    """What takes the steps of `heed train`, one a call, for ever. Nothing is validated, saved or written down."""
    settings = config.training
    torch.manual_seed(settings.seed)
    model = Transformer(config.model).to(device)
    batches = Batches(pairs, settings.tokens_per_batch, settings.seed, mixed=can_capture(config, device))
    mean = None if settings.ema_decay is None else RunningMean(model, settings.ema_decay)
    optimizer = make_optimizer(model, config)
    run = Run(Path(), config, model, optimizer, batches, lambda *_: {}, None, device, mean=mean)
    learner = run.learner()

    def groups() -> Iterator[tuple[list[Numbers], int]]:
        for epoch in range(10**9):
            order = batches.epoch(epoch)
            for start in range(0, len(order), settings.accumulate):
                yield order[start : start + settings.accumulate], epoch

    waiting = (share(run, learner, *group) for group in groups())
    if device.type == "cuda":  # as the trainer does: a CPU has no time to spare
        waiting = ahead(lambda group: share(run, learner, *group), groups())
    shares = enumerate(waiting, 1)
    under_way: deque[Taken] = deque()

    def step() -> int:
        number, own = next(shares)
        under_way.append(take_step(run, learner, own, number))
        if len(under_way) > 1:  # nor does it let a GPU wait for a loss to be read
            under_way.popleft().loss()
        return under_way[-1].tokens

    return step


def measure_training(
    config: RunConfig, device: torch.device, seconds: float, report: Callable[[str], None] = lambda _: None
) -> Learnt:
    """Take steps for about so many seconds, after some that warm up. The limit is measured before and after."""
    settings = config.training
    check_precision(config, device)
    if settings.shard:
        raise ConfigError("training.shard = True needs several processes: only one is measured here")
    lengths = pair_lengths(max(1000, _BATCHES * settings.tokens_per_batch * settings.accumulate // _MEAN))
    sources, targets = (sum(pair[side] for pair in lengths) for side in (0, 1))
    arithmetic: Arithmetic = "bfloat16" if is_half(config, device) else "float32"
    report("the limit: products of large matrices")
    limit = operations_a_second(arithmetic, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    report("warming up: the first step")
    step = training_steps(config, random_pairs(lengths, config.model), device)
    for number in range(_WARM_UP[device.type]):
        step()
        report(f"warming up: {number + 1} of {_WARM_UP[device.type]} steps")
    steps, tokens, took = _timed(step, seconds, device, report)
    memory = peak_memory(device)
    report("the limit once more")
    limit = max(limit, operations_a_second(arithmetic, device))
    speed = tokens / took
    operations = speed * training_operations(config.model, sources / targets, 1.0)
    return Learnt(
        device=device_name(device),
        parameters=sum(part.total for part in parameters(config.model)),
        steps=steps,
        tokens_per_step=tokens / steps,
        tokens_per_second=speed,
        seconds_per_step=took / steps,
        arithmetic=arithmetic,
        operations_per_second=operations,
        limit=limit,
        share=operations / limit,
        peak_memory=memory,
    )


def _timed(step: Step, seconds: float, device: torch.device, report: Callable[[str], None]) -> tuple[int, int, float]:
    """Steps, their target tokens and the seconds they took."""
    steps, tokens, began = 0, 0, now(device)
    while steps < _FEWEST or time.perf_counter() - began < seconds:
        tokens += step()
        steps += 1
        report(f"{steps} steps, {tokens / (time.perf_counter() - began):,.0f} target tokens/s")
    return steps, tokens, now(device) - began
