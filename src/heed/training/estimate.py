"""Estimates time and memory of a training run on this machine from a few real training steps.

Enters: settings, and the lengths of texts. Leaves: time and memory. The steps are those of `heed train`, on random ids
with the corpus's lengths; on a slow machine in smaller batches, scaled up. The estimate leaves out validation, saving
and whatever else the machine is doing. `heed bench train` measures the same kind of run.
"""

import gc
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.artifacts.checkpoint import Progress
from heed.backends.machine import device_name, total_memory
from heed.backends.select import training_plan
from heed.config import ModelConfig, RunConfig
from heed.errors import TrainingError
from heed.model.transformer import Transformer
from heed.text.labels import FIRST_LABEL_ID
from heed.text.prepared import CorpusCounts, Prepared, TokenizedSide
from heed.text.tokenizer import SPECIAL
from heed.training.batches import Batch, Batches
from heed.training.gradients import EagerGradients, Gradients
from heed.training.optimizer import EMA, make_optimizer
from heed.training.run import Run
from heed.training.steps import PendingStep, launch_steps
from heed.training.tasks import task_of

_FIRST_TOKENS = 128  # size of the first batch on a CPU
_MIN_TOKENS = 16  # smallest batch to try when memory runs out
_LONG_STEP = 0.4  # seconds: steps this long are accurate enough, larger batches are not tried
_TIMED_STEPS = 12  # if there is time: on a busy machine most steps are slowed down
_BATCHES = 20  # batches' worth of random texts
_TIME_LIMIT = 6.0  # seconds for everything; a step that has begun is finished
_THREADS = Path("/proc/self/task")


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run; memory in bytes, time in seconds."""

    device: str
    tokens_per_step: int  # in the unit of tokens_per_batch: target tokens, or for a classifier tokens of the text
    tokens_timed: int  # size of the batches that were timed
    tokens_per_second: float
    seconds_per_step: float  # of the fastest step
    median_seconds_per_step: float
    max_steps: int
    seconds: float
    memory: int
    memory_measured: bool  # otherwise extrapolated from the activations that a smaller batch saves
    memory_there: int | None  # the device's; None where unknown
    processor_share: float  # CPU time this process got of what it could have used; meaningless on a GPU


def estimate(config: RunConfig, lengths: NDArray[np.int64], device: torch.device) -> Estimate:
    """Estimate a run with these settings. lengths: source and target tokens of each pair, (pairs, 2); a label has 1."""
    settings = config.training
    began, share = time.monotonic(), ProcessorShare()
    try:
        trial = _Trial(config, lengths, device)
        tokens, step = trial.find_size(settings.tokens_per_batch)
    except torch.OutOfMemoryError:
        raise TrainingError(f"this model does not fit into the memory of {device_name(device)}") from None
    steps = [step]
    tokens_per_step = settings.tokens_per_batch * settings.accumulate
    while len(steps) < _TIMED_STEPS and time.monotonic() - began < _TIME_LIMIT:
        steps.append(trial.step(tokens))
    trial.close()
    # Other work on the machine only ever makes a step longer, so the fastest step is the best estimate.
    seconds, median = (float(reduce(steps, 0) @ (tokens_per_step, 1)) for reduce in (np.min, np.median))
    measured = device.type == "cuda" and tokens == settings.tokens_per_batch
    return Estimate(
        device=device_name(device),
        tokens_per_step=tokens_per_step,
        tokens_timed=tokens,
        tokens_per_second=tokens_per_step / seconds,
        seconds_per_step=seconds,
        max_steps=settings.max_steps,
        seconds=seconds * settings.max_steps,
        median_seconds_per_step=median,
        memory=torch.cuda.max_memory_allocated(device) if measured else trial.memory(settings.tokens_per_batch),
        memory_measured=measured,
        memory_there=total_memory(device),
        processor_share=share.so_far(),
    )


def pairs_of_random_ids(lengths: NDArray[np.int64], config: ModelConfig) -> Prepared:
    """Pairs of random ids. lengths: source and target tokens of each pair without EOS, (pairs, 2)."""
    random = np.random.default_rng(0)

    def side(column: int, vocab_size: int) -> TokenizedSide:
        ends = np.cumsum(lengths[:, column])
        return TokenizedSide(random.integers(len(SPECIAL), vocab_size, ends[-1]).astype(np.uint32), ends)

    target_vocab_size = config.vocab_size if config.labels is None else FIRST_LABEL_ID + config.labels
    source, target = side(0, config.source_vocab_size or config.vocab_size), side(1, target_vocab_size)
    return Prepared(Path(), source, target, (CorpusCounts("", 1.0, len(lengths), 0, 0, int(lengths.max())),))


def trial_run(config: RunConfig, pairs: Prepared, device: torch.device) -> Run:
    """A run as `heed train` would make it, on these pairs, but without a folder, validation or checkpoints."""
    settings, task, plan = config.training, task_of(config), training_plan(config, device)
    torch.manual_seed(settings.seed)
    model = Transformer(config.model).to(device)
    batches = Batches(
        pairs,
        settings.tokens_per_batch,
        settings.seed,
        mixed=plan.is_captured,
        collate=task.collate,
        sizes=task.sizes,
    )
    ema = None if settings.ema_decay is None else EMA(model, settings.ema_decay)
    return Run(
        Path(), config, model, make_optimizer(model, config), batches, lambda *_: {}, None, device, plan, ema=ema
    )


class _Trial:
    """A run on random ids whose steps are timed, with batches of any size."""

    def __init__(self, config: RunConfig, lengths: NDArray[np.int64], device: torch.device) -> None:
        single_batch = config.training.model_copy(update={"accumulate": 1})
        self._config = config = config.model_copy(update={"training": single_batch})
        self._counted_side = 1 if "target" in task_of(config).sides else 0  # whose tokens the batch size counts
        mean = float(lengths[:, self._counted_side].mean()) + 1
        count = max(1, round(_BATCHES * config.training.tokens_per_batch / mean))
        sampled = lengths[np.random.default_rng(config.training.seed).integers(len(lengths), size=count)]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._run = trial_run(config, pairs_of_random_ids(sampled, config.model), device)
        self._gradients = _MeteredGradients(self._run.gradients(), self._run, self._counted_side)
        self._steps: Generator[PendingStep] | None = None
        self._tokens = 0

    def find_size(self, budget: int) -> tuple[int, tuple[float, float]]:
        """Warm up, and find a batch of at most `budget` tokens that fits into memory and takes long enough to time.

        Returns its tokens, and the times of a step with it, as `step` does.
        """
        self.step(_MIN_TOKENS)  # the very first step is slow whatever its size
        tokens, fits = budget if self._run.device.type == "cuda" else min(budget, _FIRST_TOKENS), True
        while True:
            try:
                times = min(self.step(tokens), self.step(tokens))
                if not fits or tokens == budget or times[0] * tokens > _LONG_STEP:
                    return tokens, times
                tokens = min(budget, 4 * tokens)
            except torch.OutOfMemoryError:
                if tokens <= _MIN_TOKENS:
                    raise
                tokens, fits = max(tokens // 2, _MIN_TOKENS), False
            if not fits:  # a captured step always has the size of whole batches
                self.close()
                eager = EagerGradients(self._run.model, self._config, self._run.plan)
                self._gradients = _MeteredGradients(eager, self._run, self._counted_side)
                self._run.optimizer.zero_grad()
                gc.collect()  # the exception's traceback keeps the tensors of the failed step alive

    def step(self, tokens: int) -> tuple[float, float]:
        """Take a step: seconds per token for forward and backward pass, and seconds for the optimiser update."""
        if self._steps is None or tokens != self._tokens:
            self.close()
            self._tokens, batches = tokens, self._run.batches.with_budget(tokens)
            self._steps = launch_steps(replace(self._run, batches=batches), self._gradients, Progress())
        began = _now(self._run.device)
        next(self._steps)
        seconds = _now(self._run.device) - began
        gradient_seconds = self._gradients.seconds
        return gradient_seconds / self._gradients.tokens, seconds - gradient_seconds

    def close(self) -> None:
        """Stop the prefetching thread."""
        if self._steps is not None:
            self._steps.close()
        self._steps = None

    def memory(self, budget: int) -> int:
        """Bytes for batches of this size: weights, gradients, optimiser state, saved activations and logits."""
        copies = 4 if self._run.ema is None else 5  # weights, gradients, Adam's two moments, and the EMA
        weights = sum(weight.numel() * weight.element_size() for weight in self._run.model.parameters())
        eager = cast("EagerGradients", self._gradients.gradients)  # with captured steps, memory is measured
        return round(copies * weights + self._gradients.saved_bytes * budget + eager.logits_bytes(budget))


class _MeteredGradients:
    """Wraps `Gradients`: times each backward pass and counts the bytes that the forward pass saves for it."""

    def __init__(self, gradients: Gradients, run: Run, counted_side: int) -> None:
        self.gradients, self._run, self._counted_side = gradients, run, counted_side
        self._sizes: deque[int] = deque()  # tokens of the batches that were prepared and not used yet
        self.seconds, self.tokens = 0.0, 0  # of the last batch
        self.saved_bytes = 0.0  # per token

    def prepare(self, batch: Batch) -> list[Batch]:
        self._sizes.append(len(batch.tgt_out if self._counted_side else batch.src))
        return self.gradients.prepare(batch)

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Tensor:
        began = _now(self._run.device)
        self.tokens = self._sizes.popleft()
        with self._counting_saved_bytes() if isinstance(self.gradients, EagerGradients) else nullcontext():
            loss = self.gradients.backward(prepared, scale, seed)
        self.seconds = _now(self._run.device) - began
        return loss

    def zero_grad(self) -> None:
        self.gradients.zero_grad()

    @contextmanager
    def _counting_saved_bytes(self) -> Iterator[None]:
        """Count the bytes that autograd saves for the backward pass in this context, each storage once."""
        weights = {weight.untyped_storage().data_ptr() for weight in self._run.model.parameters()}
        saved: dict[int, int] = {}

        def save(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()  # the tensor itself would make a reference cycle with its graph

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            yield
        self.saved_bytes = sum(saved.values()) / self.tokens


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


class ProcessorShare:
    """The share of CPU time that this process got of what its threads could have used, since this object was made."""

    def __init__(self) -> None:
        self._scheduled = _scheduled()
        self._began, self._worked = time.monotonic(), time.thread_time()

    def so_far(self) -> float:
        """1.0 where no thread waited for a CPU. Where the system does not report waiting, this thread's CPU share."""
        ran, waited = (now - before for now, before in zip(_scheduled(), self._scheduled, strict=True))
        if ran > 0:
            return ran / (ran + waited)
        return (time.thread_time() - self._worked) / (time.monotonic() - self._began)


def _scheduled() -> tuple[int, int]:
    """Nanoseconds that all threads of this process have run, and have waited for a CPU (Linux).

    CPU time alone is not enough: a thread that waits for a descheduled one spins, and so uses CPU time.
    """
    ran = waited = 0
    try:
        for thread in _THREADS.iterdir():
            running, waiting, _ = map(int, (thread / "schedstat").read_text().split())
            ran, waited = ran + running, waited + waiting
    except (OSError, ValueError):  # another system, or a thread that has just ended
        return 0, 0
    return ran, max(waited, 0)
