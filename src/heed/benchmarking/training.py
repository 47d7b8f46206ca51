"""Measures training speed on this machine: target tokens/s of the steps of `heed train`, on random ids.

Enters: settings. Leaves: target tokens/s, memory, and the share of the machine's limit. Lengths are like those of real
sentences; batches, gradients, optimiser and training loop are those of the trainer.
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
from heed.benchmarking.limits import MatmulDtype, matmul_throughput, now, peak_memory, training_flops
from heed.config import ModelConfig, RunConfig
from heed.errors import ConfigError
from heed.model.size import parameter_counts
from heed.text.prepared import Prepared
from heed.training.estimate import pairs_of_random_ids, trial_run
from heed.training.steps import launch_steps

TrainStep = Callable[[], int]  # takes a training step, returns its number of target tokens
PairLengths = tuple[int, int]  # source and target tokens, EOS included

_LONGEST, _MEAN = 128, 30  # tokens of a target
_BATCHES = 40  # batches in an epoch
_WARM_UP = {"cpu": 2, "cuda": 12}  # steps
_MIN_STEPS = 3  # to time


@dataclass(frozen=True)
class TrainingSpeed:
    """Measured speed and memory of training steps."""

    device: str
    parameters: int
    steps: int  # timed steps
    tokens_per_step: float  # target tokens without padding, on average
    tokens_per_second: float
    seconds_per_step: float
    arithmetic: MatmulDtype
    operations_per_second: float  # in matmuls
    limit: float  # operations/s of a large matmul
    share: float  # of the limit
    peak_memory: int | None  # bytes


def pair_lengths(count: int) -> list[PairLengths]:
    """Lengths like those of real sentence pairs: about 28 source and 30 target tokens, at most 128; always the same."""
    draw, lengths = random.Random(0), list[PairLengths]()  # noqa: S311 - nothing here is secret
    while len(lengths) < count:
        source = round(math.exp(draw.gauss(3.2, 0.55)))
        target = max(2, round(source * math.exp(draw.gauss(0.05, 0.18))))
        if 3 <= source <= _LONGEST and target <= _LONGEST:
            lengths.append((source, target))
    return lengths


def random_pairs(lengths: Sequence[PairLengths], config: ModelConfig) -> Prepared:
    """Pairs of random ids with these lengths."""
    return pairs_of_random_ids(np.array(lengths) - 1, config)


def training_steps(config: RunConfig, pairs: Prepared, device: torch.device) -> TrainStep:
    """A function that takes the next step of `heed train`; nothing is validated, saved or logged."""
    run = trial_run(config, pairs, device)
    steps = launch_steps(run, run.gradients(), Progress())
    return lambda: next(steps).tokens


def measure_training(
    config: RunConfig, device: torch.device, seconds: float, report: Callable[[str], None] = lambda _: None
) -> TrainingSpeed:
    """Time training steps for about this many seconds, after a warm-up; matmul throughput before and after."""
    settings = config.training
    plan = training_plan(config, device)
    if settings.shard:
        raise ConfigError("training.shard = true needs several processes: only one is measured here")
    lengths = pair_lengths(max(1000, _BATCHES * settings.tokens_per_batch * settings.accumulate // _MEAN))
    sources, targets = (sum(pair[side] for pair in lengths) for side in (0, 1))
    arithmetic: MatmulDtype = "bfloat16" if plan.bfloat16 else "float32"
    report("measuring the limit: large matmuls")
    limit = matmul_throughput(arithmetic, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    report("warming up: the first step")
    step = training_steps(config, random_pairs(lengths, config.model), device)
    for number in range(_WARM_UP[device.type]):
        step()
        report(f"warming up: {number + 1} of {_WARM_UP[device.type]} steps")
    steps, tokens, elapsed = _time_steps(step, seconds, device, report)
    memory = peak_memory(device)
    report("measuring the limit again")
    limit = max(limit, matmul_throughput(arithmetic, device))
    speed = tokens / elapsed
    operations = speed * training_flops(config.model, sources / targets, 1.0)
    return TrainingSpeed(
        device=device_name(device),
        parameters=sum(part.total for part in parameter_counts(config.model)),
        steps=steps,
        tokens_per_step=tokens / steps,
        tokens_per_second=speed,
        seconds_per_step=elapsed / steps,
        arithmetic=arithmetic,
        operations_per_second=operations,
        limit=limit,
        share=operations / limit,
        peak_memory=memory,
    )


def _time_steps(
    step: TrainStep, seconds: float, device: torch.device, report: Callable[[str], None]
) -> tuple[int, int, float]:
    """The number of steps, their target tokens and the seconds they took."""
    steps, tokens, began = 0, 0, now(device)
    while steps < _MIN_STEPS or time.perf_counter() - began < seconds:
        tokens += step()
        steps += 1
        report(f"{steps} steps, {tokens / (time.perf_counter() - began):,.0f} target tokens/s")
    return steps, tokens, now(device) - began
