"""The training loop: optimiser steps over micro-batches, shared by the trainer, `heed bench train` and `heed doctor`.

Enters: a run and the progress to start from. Leaves: steps, each launched when the iterator is advanced. Resuming is
exact because all randomness is a function of seed, step and batch; no random state is carried along. The losses of all
micro-batches, on all processes, are divided once by all their tokens, so it does not matter how a step is split into
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
from heed.training.batches import Batch, IntArray
from heed.training.distributed import ProcessGroup, full_tensor
from heed.training.gradients import Gradients
from heed.training.optimizer import learning_rate
from heed.training.run import Run

Item = TypeVar("Item")
Result = TypeVar("Result")
Position = tuple[int, int]  # epoch, and batches of it that are done
_PREFETCHED = 3  # steps' batches: enough to cover a slow one, few enough to fit into memory


@dataclass(frozen=True)
class MicroBatch:
    """One of this process's batches of a step: its index within the step, and the weight of its loss."""

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
    after: Position  # of the next step
    tokens: int
    rate: float  # learning rate
    began: float  # time.monotonic()
    loss: Callable[[], float]
    gradient_norm: Callable[[], float]


def launch_steps(run: Run, gradients: Gradients, start: Progress) -> Generator[PendingStep]:
    """Launch the run's steps after `start`, one per `next`, without end.

    On a GPU, a thread prefetches batches, and a step is launched before the previous step's loss is read, so that the
    GPU never idles. On a CPU nothing is prefetched: a second thread would slow down the first.
    """

    def prepare(planned: tuple[list[IntArray], int, Position]) -> tuple[list[MicroBatch], Position]:
        batches, epoch, after = planned
        return micro_batches(run, gradients, batches, epoch), after

    plans = _plan_steps(run, start)
    prepared = prefetch(prepare, plans) if run.device.type == "cuda" else (prepare(planned) for planned in plans)
    previous: PendingStep | None = None
    with closing(prepared):
        for step, (micro, after) in enumerate(prepared, start.step + 1):
            pending = take_step(run, gradients, micro, step, after)
            if previous is not None:
                previous.loss()  # wait: at most one step is in flight
            previous = pending
            yield pending


def _plan_steps(run: Run, start: Progress) -> Iterator[tuple[list[IntArray], int, Position]]:
    """The batches of each step as pair indices, their epoch, and the position after them.

    The last step of an epoch may have fewer batches.
    """
    epoch, position = start.epoch, start.position
    per_step = run.config.training.accumulate * run.group.size
    while True:
        order = run.batches.epoch(epoch)
        for begin in range(position, len(order), per_step):
            batches = order[begin : begin + per_step]
            done = begin + len(batches) == len(order)
            yield batches, epoch, (epoch + 1, 0) if done else (epoch, begin + len(batches))
        epoch, position = epoch + 1, 0


def prefetch(make: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
    """`make(item)` for each item, in order; a thread computes the next few while one is in use.

    An exception in that thread is raised here, when its item's turn comes.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > _PREFETCHED:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def micro_batches(run: Run, gradients: Gradients, batches: list[IntArray], epoch: int) -> list[MicroBatch]:
    """This process's micro-batches of a step, prepared. batches: the pair indices of all batches of the step."""
    sharded = run.config.training.shard and run.group.size > 1
    micro = []
    for index, pairs, weight in _batches_of_rank(batches, run.group, sharded=sharded):
        batch = run.batches.batch(pairs, epoch)
        micro.append(MicroBatch(index, weight, batch.tokens, gradients.prepare(batch)))
    return micro


def _batches_of_rank(
    batches: list[IntArray], group: ProcessGroup, *, sharded: bool
) -> list[tuple[int, IntArray, float]]:
    """This process's batches of a step: index, pairs, and weight of the loss.

    With sharded weights every process must take part in every pass, so an idle one repeats a batch with weight 0; and
    FSDP averages gradients, so each loss is multiplied by the number of processes.
    """
    assigned = [(index, batches[index], 1.0) for index in range(group.rank, len(batches), group.size)]
    if not sharded:
        return assigned
    passes = -(-len(batches) // group.size)
    idle = [(index, batches[0], 0.0) for index in range(passes - len(assigned))]
    return [(index, pairs, float(group.size)) for index, pairs, _ in assigned] + idle


def take_step(
    run: Run, gradients: Gradients, micro: list[MicroBatch], step: int, after: Position = (0, 0)
) -> PendingStep:
    """Accumulate the gradients of all micro-batches, then update once; skipped if a loss or gradient is not finite.

    A single GPU decides this on the device, so that the host need not read the loss before it launches more. Several
    processes take the same decision, since each has the same sums.
    """
    began = time.monotonic()
    settings, group = run.config.training, run.group
    rate = learning_rate(step, settings, run.config.model.d_model)
    tokens = round(group.sum(sum(batch.tokens for batch in micro if batch.weight))[0])
    all_losses = [
        gradients.backward(batch.prepared, batch.weight / tokens, _dropout_seed(settings.seed, step, batch.index))
        for batch in micro
    ]
    losses = [loss for loss, batch in zip(all_losses, micro, strict=True) if batch.weight]
    if not settings.shard:
        group.sum_gradients(list(run.model.parameters()))
    norm = _gradient_norm(run)
    if run.reads_losses_late:
        losses_and_norm = torch.stack((*losses, norm))
        read = _copy_to_cpu(losses_and_norm)
        _update_weights(run, rate, step, norm, skip=(~losses_and_norm.isfinite().all()).float())
        gradients.zero_grad()
        return PendingStep(
            step, after, tokens, rate, began, lambda: sum(loss / tokens for loss in read()[:-1]), lambda: read()[-1]
        )
    loss, gradient_norm = group.sum(sum(loss.item() / tokens for loss in losses))[0], norm.item()
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        _update_weights(run, rate, step, norm)
    gradients.zero_grad()
    return PendingStep(step, after, tokens, rate, began, lambda: loss, lambda: gradient_norm)


def _gradient_norm(run: Run) -> Float[Tensor, ""]:
    """The global L2 norm of the gradients: not finite if a gradient is not finite or its square overflows.

    An overflowing square must be caught, too: Adam's second moment would stay infinite for good.
    """
    return full_tensor(get_total_norm([weight.grad for weight in run.model.parameters() if weight.grad is not None]))


def _copy_to_cpu(tensor: Float[Tensor, "any"]) -> Callable[[], list[float]]:
    """Start an asynchronous copy; returns a function that waits for the copy, not for kernels queued after it."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def read() -> list[float]:
        copied.synchronize()
        return copy.tolist()

    return read


def _update_weights(
    run: Run, rate: float, step: int, norm: Float[Tensor, ""], skip: Float[Tensor, ""] | None = None
) -> None:
    """Clip gradients, step the optimiser, update the EMA. skip: a device scalar, 1 to change nothing.

    torch's fused Adam reads it as `found_inf`, the attribute that GradScaler sets.
    """
    settings = run.config.training
    if skip is not None:
        run.optimizer.found_inf = skip  # type: ignore[attr-defined]
    if settings.clip_norm is not None:
        clip_grads_with_norm_(run.model.parameters(), settings.clip_norm, norm)
    for parameters in run.optimizer.param_groups:
        parameters["lr"] = rate
    run.optimizer.step()
    if run.ema is not None:
        run.ema.update(step, skip)


def _dropout_seed(*numbers: int) -> int:
    """A seed that depends on all of these numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
