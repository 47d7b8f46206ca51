"""Training speed on this machine: the steps that `heed train` takes, on random ids.

Enters: settings. Leaves: target tokens/s, memory, and the share of the machine's limit. Lengths are like those of real
sentences; batches, learner, optimiser and loop are the trainer's own.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from heed.artifacts.checkpoint import Progress
from heed.backends.machine import device_name
from heed.backends.select import training_plan
from heed.benchmarking.limits import Dtype, matmul_throughput, now, peak_memory, training_flops
from heed.config import ModelConfig, RunConfig
from heed.errors import ConfigError
from heed.model.size import parameter_counts
from heed.text.prepared import Prepared
from heed.training.estimate import pairs_of_random_ids, trial_run
from heed.training.steps import launch_steps

Step = Callable[[], int]  # takes a step, returns its target tokens
Pair = tuple[int, int]  # tokens of a source and its target, EOS included

_LONGEST, _MEAN = 128, 30  # tokens of a target
_BATCHES = 40  # that there are sentences for, in an epoch
_WARM_UP = {"cpu": 2, "cuda": 12}  # steps
_FEWEST = 3  # steps that are timed


@dataclass(frozen=True)
class TrainingSpeed:
    """Measured speed and memory of training steps."""

    device: str
    parameters: int
    steps: int  # that were timed
    tokens_per_step: float  # real target tokens, on average
    tokens_per_second: float
    seconds_per_step: float
    arithmetic: Dtype
    operations_per_second: float  # in matmuls
    limit: float  # operations/s of a large matmul
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
    """Pairs of random ids, of such lengths."""
    return pairs_of_random_ids(np.array(lengths) - 1, config)


def training_steps(config: RunConfig, pairs: Prepared, device: torch.device) -> Step:
    """A function that takes the next step of `heed train`, for ever; nothing is validated, saved or written down."""
    run = trial_run(config, pairs, device)
    steps = launch_steps(run, run.gradients(), Progress())
    return lambda: next(steps).tokens


def measure_training(
    config: RunConfig, device: torch.device, seconds: float, report: Callable[[str], None] = lambda _: None
) -> TrainingSpeed:
    """Take steps for about so many seconds, after a warm-up. The limit is measured before and after."""
    settings = config.training
    plan = training_plan(config, device)
    if settings.shard:
        raise ConfigError("training.shard = True needs several processes: only one is measured here")
    lengths = pair_lengths(max(1000, _BATCHES * settings.tokens_per_batch * settings.accumulate // _MEAN))
    sources, targets = (sum(pair[side] for pair in lengths) for side in (0, 1))
    arithmetic: Dtype = "bfloat16" if plan.bfloat16 else "float32"
    report("the limit: large matmuls")
    limit = matmul_throughput(arithmetic, device)
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
    limit = max(limit, matmul_throughput(arithmetic, device))
    speed = tokens / took
    operations = speed * training_flops(config.model, sources / targets, 1.0)
    return TrainingSpeed(
        device=device_name(device),
        parameters=sum(part.total for part in parameter_counts(config.model)),
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
