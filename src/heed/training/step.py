"""One step of learning: the batches of a group to one change of the weights.

Exactness rests on one rule: what is random is a function of seed, step and batch, never a state carried along. The
losses of all batches, on all processes, are divided once by all their tokens, so it does not matter how a step is cut
into batches or shared out among processes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from heed.training.batches import Batch, Numbers
from heed.training.distributed import Team, whole
from heed.training.learner import Learner
from heed.training.run import Run
from heed.training.schedule import learning_rate


@dataclass(frozen=True)
class Share:
    """A batch that this process learns from: its number in the step, and how much its loss counts."""

    index: int
    weight: float
    tokens: int
    prepared: list[Batch]


@dataclass(frozen=True)
class Taken:
    """A step that was asked for. To read its loss (a token) or its gradients' norm is to wait until it is done.

    If one of them is not finite, the step changed nothing: neither weights nor moments nor the EMA.
    """

    tokens: int
    rate: float
    loss: Callable[[], float]
    gradient_norm: Callable[[], float]


def take_step(run: Run, learner: Learner, batches: list[Share], step: int) -> Taken:
    """Learn from a group of batches. A loss or a gradient that is not finite changes no weights.

    A GPU that works alone sees to that itself, so that nobody need wait for the loss before asking for more. Several
    processes decide alike: each compares the same sums.
    """
    settings, team = run.config.training, run.team
    rate = learning_rate(step, settings, run.config.model.d_model)
    tokens = round(team.add_up(sum(one.tokens for one in batches if one.weight))[0])
    learnt = [
        learner.learn(one.prepared, one.weight / tokens, _seed(settings.seed, step, one.index)) for one in batches
    ]
    losses = [loss for loss, one in zip(learnt, batches, strict=True) if one.weight]
    if not settings.shard:
        team.add_up_gradients(list(run.model.parameters()))
    norm = _gradient_norm(run)
    if run.is_ahead:
        together = torch.stack((*losses, norm))
        read = _sent(together)
        _change_weights(run, rate, step, norm, skip=(~together.isfinite().all()).float())
        learner.forget()
        return Taken(tokens, rate, lambda: sum(one / tokens for one in read()[:-1]), lambda: read()[-1])
    total, length = team.add_up(sum(one.item() / tokens for one in losses))[0], norm.item()
    if math.isfinite(total) and math.isfinite(length):
        _change_weights(run, rate, step, norm)
    learner.forget()
    return Taken(tokens, rate, lambda: total, lambda: length)


def _gradient_norm(run: Run) -> Float[Tensor, ""]:
    """The L2 norm of all gradients together. Not finite if one of them is not, or is so large that its square is not.

    Such a square is what Adam keeps, so that step, too, would leave something behind that never goes away.
    """
    return whole(get_total_norm([weight.grad for weight in run.model.parameters() if weight.grad is not None]))


def _sent(numbers: Float[Tensor, "any"]) -> Callable[[], list[float]]:
    """Send numbers of a GPU's on their way; returns what waits for them, and not for whatever is asked for later."""
    here = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        return here.tolist()

    return read


def share(run: Run, learner: Learner, group: list[Numbers], epoch: int) -> list[Share]:
    """The batches of a group that are this process's to learn from, made ready for that."""
    sharded = run.config.training.shard and run.team.size > 1
    shares = []
    for index, numbers, weight in _own(group, run.team, sharded=sharded):
        batch = run.batches.batch(numbers, epoch)
        shares.append(Share(index, weight, batch.tokens, learner.prepare(batch)))
    return shares


def _own(group: list[Numbers], team: Team, *, sharded: bool) -> list[tuple[int, Numbers, float]]:
    """This process's part of a group: the number of each batch, its pairs, and how much its loss counts.

    Where weights are shared out, every process must take part in every pass, so one that has nothing to do repeats a
    batch that does not count; and gradients come back as a mean, so each loss counts as often as there are processes.
    """
    own = [(index, group[index], 1.0) for index in range(team.rank, len(group), team.size)]
    if not sharded:
        return own
    passes = -(-len(group) // team.size)
    idle = [(index, group[0], 0.0) for index in range(passes - len(own))]
    return [(index, numbers, float(team.size)) for index, numbers, _ in own] + idle


def _change_weights(
    run: Run, rate: float, step: int, norm: Float[Tensor, ""], skip: Float[Tensor, ""] | None = None
) -> None:
    """Clip, step, EMA. skip: 1 where all is to stay as it is, known to the device alone.

    torch's fused Adam reads it by the name of `found_inf`, as from a GradScaler.
    """
    settings = run.config.training
    if skip is not None:
        run.optimizer.found_inf = skip  # type: ignore[attr-defined]
    if settings.clip_norm is not None:
        clip_grads_with_norm_(run.model.parameters(), settings.clip_norm, norm)
    for weights in run.optimizer.param_groups:
        weights["lr"] = rate
    run.optimizer.step()
    if run.mean is not None:
        run.mean.update(step, skip)


def _seed(*numbers: int) -> int:
    """One number that stands for several, to seed dropout with."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
