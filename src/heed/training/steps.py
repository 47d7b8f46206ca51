"""The steps of a run, one after another: the one training loop of the trainer, `heed bench train` and `heed doctor`.

Enters: a run and the progress to start from. Leaves: steps, each launched when the iterator is advanced. Exactness
rests on one rule: whatever is random is a function of seed, step and batch, never a state carried along. The losses of
all batches, on all processes, are divided once by all their tokens, so it does not matter how a step is split into
micro-batches or distributed over processes. Knows nothing of validation, checkpoints or files.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from heed.artifacts.checkpoint import Progress
from heed.training.batches import Batch, Numbers
from heed.training.distributed import ProcessGroup, full_tensor
from heed.training.gradients import Gradients
from heed.training.optimizer import learning_rate
from heed.training.run import Run

Item = TypeVar("Item")
Made = TypeVar("Made")
_PREFETCHED = 3  # enough to cover a slow one, few enough to fit into memory


@dataclass(frozen=True)
class MicroBatch:
    """A batch of this process's part of a step: its number within the step, and the factor on its loss."""

    index: int
    weight: float
    tokens: int
    prepared: list[Batch]


@dataclass(frozen=True)
class PendingStep:
    """A step that was launched. Reading its loss (per token) or gradient norm waits until it is done.

    If one of them is not finite, the step changed nothing: neither weights nor moments nor the EMA.
    """

    step: int
    after: tuple[int, int]  # epoch and position after it
    tokens: int
    rate: float
    began: float
    loss: Callable[[], float]
    gradient_norm: Callable[[], float]


def launch_steps(run: Run, gradients: Gradients, start: Progress) -> Generator[PendingStep]:
    """Launch the run's steps after `start`, one per `next`, for ever.

    On a GPU, batches are prefetched by a thread and a step is launched before the loss of the one before it is read,
    so that the GPU never waits. A CPU has no time to spare: two threads of torch's slow each other down.
    """

    def prepare(batches: tuple[list[Numbers], int, tuple[int, int]]) -> tuple[list[MicroBatch], tuple[int, int]]:
        numbers, epoch, after = batches
        return micro_batches(run, gradients, numbers, epoch), after

    planned = _plan(run, start)
    ready = prefetch(prepare, planned) if run.device.type == "cuda" else (prepare(batches) for batches in planned)
    previous: PendingStep | None = None
    with closing(ready):
        for step, (micro, after) in enumerate(ready, start.step + 1):
            pending = take_step(run, gradients, micro, step, after)
            if previous is not None:
                previous.loss()  # never more than one step ahead of what is known
            previous = pending
            yield pending


def _plan(run: Run, start: Progress) -> Iterator[tuple[list[Numbers], int, tuple[int, int]]]:
    """The batches of each step, their epoch, and the epoch and position after them. The last may be short."""
    epoch, position = start.epoch, start.position
    per_step = run.config.training.accumulate * run.group.size
    while True:
        order = run.batches.epoch(epoch)
        for begin in range(position, len(order), per_step):
            batches = order[begin : begin + per_step]
            done = begin + len(batches) == len(order)
            yield batches, epoch, (epoch + 1, 0) if done else (epoch, begin + len(batches))
        epoch, position = epoch + 1, 0


def prefetch(make: Callable[[Item], Made], items: Iterable[Item]) -> Generator[Made]:
    """`make(item)` of each item, in order, the next few made by another thread while one is in use.

    An exception in that thread is raised here, when its item's turn comes.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > _PREFETCHED:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def micro_batches(run: Run, gradients: Gradients, numbers: list[Numbers], epoch: int) -> list[MicroBatch]:
    """This process's part of a step's batches, prepared."""
    sharded = run.config.training.shard and run.group.size > 1
    made = []
    for index, own, weight in _own(numbers, run.group, sharded=sharded):
        batch = run.batches.batch(own, epoch)
        made.append(MicroBatch(index, weight, batch.tokens, gradients.prepare(batch)))
    return made


def _own(numbers: list[Numbers], group: ProcessGroup, *, sharded: bool) -> list[tuple[int, Numbers, float]]:
    """This process's part of a step: the index of each batch, its pairs, and the factor on its loss.

    With sharded weights every process must take part in every pass, so an idle one repeats a batch with weight 0; and
    gradients are averaged, so each loss is multiplied by the number of processes.
    """
    own = [(index, numbers[index], 1.0) for index in range(group.rank, len(numbers), group.size)]
    if not sharded:
        return own
    passes = -(-len(numbers) // group.size)
    idle = [(index, numbers[0], 0.0) for index in range(passes - len(own))]
    return [(index, pairs, float(group.size)) for index, pairs, _ in own] + idle


def take_step(
    run: Run, gradients: Gradients, micro: list[MicroBatch], step: int, after: tuple[int, int] = (0, 0)
) -> PendingStep:
    """Gradients of all micro-batches, then one update. A loss or a gradient that is not finite changes no weights.

    A single GPU skips such an update itself, so that nobody has to read the loss before launching more. Several
    processes decide alike: each compares the same sums.
    """
    began = time.monotonic()
    settings, group = run.config.training, run.group
    rate = learning_rate(step, settings, run.config.model.d_model)
    tokens = round(group.sum(sum(one.tokens for one in micro if one.weight))[0])
    all_losses = [
        gradients.backward(one.prepared, one.weight / tokens, _seed(settings.seed, step, one.index)) for one in micro
    ]
    losses = [loss for loss, one in zip(all_losses, micro, strict=True) if one.weight]
    if not settings.shard:
        group.sum_gradients(list(run.model.parameters()))
    norm = _gradient_norm(run)
    if run.reads_losses_late:
        together = torch.stack((*losses, norm))
        read = _copy_to_cpu(together)
        _update_weights(run, rate, step, norm, skip=(~together.isfinite().all()).float())
        gradients.zero_grad()
        return PendingStep(
            step, after, tokens, rate, began, lambda: sum(one / tokens for one in read()[:-1]), lambda: read()[-1]
        )
    loss, gradient_norm = group.sum(sum(one.item() / tokens for one in losses))[0], norm.item()
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        _update_weights(run, rate, step, norm)
    gradients.zero_grad()
    return PendingStep(step, after, tokens, rate, began, lambda: loss, lambda: gradient_norm)


def _gradient_norm(run: Run) -> Float[Tensor, ""]:
    """The global L2 norm of the gradients: not finite if one of them is not, or if its square overflows.

    Adam keeps such a square, so that step, too, would leave something behind that never goes away.
    """
    return full_tensor(get_total_norm([weight.grad for weight in run.model.parameters() if weight.grad is not None]))


def _copy_to_cpu(numbers: Float[Tensor, "any"]) -> Callable[[], list[float]]:
    """Start copying a GPU's numbers; returns a function that waits for the copy, not for kernels queued later."""
    copied = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
    copied.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        return copied.tolist()

    return read


def _update_weights(
    run: Run, rate: float, step: int, norm: Float[Tensor, ""], skip: Float[Tensor, ""] | None = None
) -> None:
    """Clip, step, EMA. skip: a device scalar, 1 where nothing is to change.

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
    if run.ema is not None:
        run.ema.update(step, skip)


def _seed(*numbers: int) -> int:
    """One seed for several numbers, for dropout."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
