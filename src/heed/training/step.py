"""One step of learning: the batches of a group to one change of the weights.

Exactness rests on one rule: what is random is a function of seed, step and batch, never a state carried along. The
losses of all batches, on all processes, are divided once by all their tokens, so it does not matter how a step is cut
into batches or shared out among processes.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heed.config import RunConfig
from heed.training.batches import Batch, Numbers
from heed.training.distributed import Team
from heed.training.loss import disagreement, smoothed_cross_entropy
from heed.training.run import Run
from heed.training.schedule import learning_rate


def take_step(
    run: Run, forward: Callable[..., Tensor], group: list[Numbers], epoch: int, step: int
) -> tuple[float, int, float]:
    """Learn from a group of batches; returns loss a token, tokens, learning rate. Nonsense changes nothing."""
    settings, team = run.config.training, run.team
    rate = learning_rate(step, settings, run.config.model.d_model)
    share = _share(group, team, sharded=settings.shard and team.size > 1)
    batches = [(index, run.batches.batch(numbers, epoch), weight) for index, numbers, weight in share]
    tokens = round(team.add_up(sum(batch.tokens for _, batch, weight in batches if weight))[0])
    run.model.train()
    own_loss = 0.0
    for index, batch, weight in batches:
        torch.manual_seed(_seed(settings.seed, step, index))
        with run.precision():
            total = _objective(forward, batch, run.config, run.device)
        (total * (weight / tokens)).backward()
        own_loss += total.item() / tokens if weight else 0.0
    loss = team.add_up(own_loss)[0]
    if math.isfinite(loss):
        _change_weights(run, rate, step)
    run.optimizer.zero_grad()
    return loss, tokens, rate


def _share(group: list[Numbers], team: Team, *, sharded: bool) -> list[tuple[int, Numbers, float]]:
    """This process's batches of a group: the number of each, its pairs, and how much its loss counts.

    Where weights are shared out, every process must take part in every pass, so one that has nothing to do repeats a
    batch that does not count; and gradients come back as a mean, so each loss counts as often as there are processes.
    """
    own = [(index, group[index], 1.0) for index in range(team.rank, len(group), team.size)]
    if not sharded:
        return own
    passes = -(-len(group) // team.size)
    idle = [(index, group[0], 0.0) for index in range(passes - len(own))]
    return [(index, numbers, float(team.size)) for index, numbers, _ in own] + idle


def _objective(
    forward: Callable[..., Tensor], batch: Batch, config: RunConfig, device: torch.device
) -> Float[Tensor, ""]:
    """What is to become smaller, summed over the batch's tokens."""
    pad_id, settings = config.model.pad_id, config.training
    if not settings.r_drop:
        batch = batch.to(device)
        logits = forward(batch.src, batch.tgt_in, batch.src_layout, batch.tgt_layout)
        return smoothed_cross_entropy(logits, batch.tgt_out, pad_id, settings.label_smoothing)[0]
    batch = batch.twice().to(device)
    logits = forward(batch.src, batch.tgt_in, batch.src_layout, batch.tgt_layout)
    total, _ = smoothed_cross_entropy(logits, batch.tgt_out, pad_id, settings.label_smoothing)
    one, other = logits.chunk(2)
    return (total + settings.r_drop * disagreement(one, other)) / 2


def _change_weights(run: Run, rate: float, step: int) -> None:
    settings = run.config.training
    if not settings.shard:
        run.team.add_up_gradients(list(run.model.parameters()))
    if settings.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.clip_norm)
    for weights in run.optimizer.param_groups:
        weights["lr"] = rate
    run.optimizer.step()
    if run.mean is not None:
        run.mean.update(step)


def _seed(*numbers: int) -> int:
    """One number that stands for several, to seed dropout with."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
