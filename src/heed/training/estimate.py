"""What training would take on this machine: estimated from a few real steps, in a few seconds.

Enters: settings, and the lengths of texts. Leaves: time and memory. A model of these settings takes steps of its task
exactly as `heed train` would, on random ids in texts of the corpus's lengths; on a slow machine in smaller batches,
scaled up. So it is an estimate: it leaves out validation, saving, and whatever else the machine has to do. `heed bench
train` measures such a run, too.
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

_FIRST = 128  # tokens to begin with on a CPU
_SMALLEST = 16  # tokens; where these do not fit into a GPU's memory, nothing will
_LONG_ENOUGH = 0.4  # seconds per step: larger batches would tell no more
_TIMED = 12  # steps, if there is time: on a busy machine most are disturbed
_BATCHES = 20  # that there are random texts for
_TIME_LIMIT = 6.0  # seconds for everything; a step that has begun is finished
_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Estimate:
    """What training would take; memory in bytes, time in seconds."""

    device: str
    tokens_per_step: int  # as batches are counted: of targets, or of a classifier's texts
    tokens_timed: int
    tokens_per_second: float
    seconds_per_step: float  # of the fastest step
    median_seconds_per_step: float
    max_steps: int
    seconds: float
    memory: int
    memory_measured: bool  # else computed from what a smaller batch saves for the backward pass
    memory_there: int | None
    processor_share: float  # of the processor time requested, 1.0 where nobody else wanted it; meaningless on a GPU


def estimate(config: RunConfig, lengths: NDArray[np.int64], device: torch.device) -> Estimate:
    """What training with these settings would take; lengths: tokens of source and target, (pairs, 2), of a label 1."""
    settings = config.training
    began, processor = time.monotonic(), ProcessorShare()
    try:
        trial = _Trial(config, lengths, device)
        tokens, step = trial.find_size(settings.tokens_per_batch)
    except torch.OutOfMemoryError:
        raise TrainingError(f"such a model does not fit into the memory of {device_name(device)}") from None
    steps = [step]
    tokens_per_step = settings.tokens_per_batch * settings.accumulate
    while len(steps) < _TIMED and time.monotonic() - began < _TIME_LIMIT:
        steps.append(trial.step(tokens))
    trial.close()
    # What disturbs a step only ever makes it longer.
    seconds, median = (float(of(steps, 0) @ (tokens_per_step, 1)) for of in (np.min, np.median))
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
        processor_share=processor.so_far(),
    )


def pairs_of_random_ids(lengths: NDArray[np.int64], config: ModelConfig) -> Prepared:
    """Pairs of random ids; lengths: of source and target, (pairs, 2)."""
    random = np.random.default_rng(0)

    def side(number: int, vocabulary: int) -> TokenizedSide:
        ends = np.cumsum(lengths[:, number])
        return TokenizedSide(random.integers(len(SPECIAL), vocabulary, ends[-1]).astype(np.uint32), ends)

    targets = config.vocab_size if config.labels is None else FIRST_LABEL_ID + config.labels
    source, target = side(0, config.source_vocab_size or config.vocab_size), side(1, targets)
    return Prepared(Path(), source, target, (CorpusCounts("", 1.0, len(lengths), 0, 0, int(lengths.max())),))


def trial_run(config: RunConfig, pairs: Prepared, device: torch.device) -> Run:
    """A run as `heed train` would make it, on these pairs; it has no folder, nothing is validated or saved."""
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
    """A model that is trained on random ids, in batches of any size."""

    def __init__(self, config: RunConfig, lengths: NDArray[np.int64], device: torch.device) -> None:
        one_batch = config.training.model_copy(update={"accumulate": 1})
        self._config = config = config.model_copy(update={"training": one_batch})
        self._counted = 1 if "target" in task_of(config).sides else 0  # the side that a batch is counted by
        mean = float(lengths[:, self._counted].mean()) + 1
        count = max(1, round(_BATCHES * config.training.tokens_per_batch / mean))
        drawn = lengths[np.random.default_rng(config.training.seed).integers(len(lengths), size=count)]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._run = trial_run(config, pairs_of_random_ids(drawn, config.model), device)
        self._meter = _Meter(self._run.gradients(), self._run, self._counted)
        self._steps: Generator[PendingStep] | None = None
        self._tokens = 0

    def find_size(self, budget: int) -> tuple[int, tuple[float, float]]:
        """Warm up, and find a batch of at most `budget` tokens that takes neither too long nor too short to be timed.

        Returns its tokens, and the times of a step with it.
        """
        self.step(_SMALLEST)  # the first step of all is slow whatever its size
        tokens, fits = budget if self._run.device.type == "cuda" else min(budget, _FIRST), True
        while True:
            try:
                taken = min(self.step(tokens), self.step(tokens))
                if not fits or tokens == budget or taken[0] * tokens > _LONG_ENOUGH:
                    return tokens, taken
                tokens = min(budget, 4 * tokens)
            except torch.OutOfMemoryError:
                if tokens <= _SMALLEST:
                    raise
                tokens, fits = max(tokens // 2, _SMALLEST), False
            if not fits:  # a captured step has the size of whole batches
                self.close()
                eager = EagerGradients(self._run.model, self._config, self._run.plan)
                self._meter = _Meter(eager, self._run, self._counted)
                self._run.optimizer.zero_grad()
                gc.collect()  # the error holds on to all that did fit

    def step(self, tokens: int) -> tuple[float, float]:
        """Seconds per token for the gradients of a batch, and seconds for the rest of the step: the update."""
        if self._steps is None or tokens != self._tokens:
            self.close()
            self._tokens, batches = tokens, self._run.batches.with_budget(tokens)
            self._steps = launch_steps(replace(self._run, batches=batches), self._meter, Progress())
        began = _now(self._run.device)
        next(self._steps)
        seconds = _now(self._run.device) - began
        return self._meter.seconds / self._meter.tokens, seconds - self._meter.seconds

    def close(self) -> None:
        """End the prefetching."""
        if self._steps is not None:
            self._steps.close()
        self._steps = None

    def memory(self, budget: int) -> int:
        """Bytes for batches of this size: weights, gradients, optimiser state, and what the backward pass needs."""
        copies = 4 if self._run.ema is None else 5  # weight, gradient and Adam's two moments; the EMA
        weights = sum(weight.numel() * weight.element_size() for weight in self._run.model.parameters())
        eager = cast("EagerGradients", self._meter.gradients)  # with captured steps, memory is measured
        return round(copies * weights + self._meter.saved * budget + eager.bytes_of_logits(budget))


class _Meter:
    """Times how others compute gradients, and counts the bytes that their forward pass saves."""

    def __init__(self, gradients: Gradients, run: Run, counted: int) -> None:
        self.gradients, self._run, self._counted = gradients, run, counted
        self._sizes: deque[int] = deque()  # of the batches that are prepared and not used yet
        self.seconds, self.tokens = 0.0, 0  # of the last batch
        self.saved = 0.0  # bytes per token

    def prepare(self, batch: Batch) -> list[Batch]:
        """As what is measured does."""
        self._sizes.append(len(batch.tgt_out if self._counted else batch.src))
        return self.gradients.prepare(batch)

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Tensor:
        """As what is measured does."""
        began = _now(self._run.device)
        self.tokens = self._sizes.popleft()
        with self._counting() if isinstance(self.gradients, EagerGradients) else nullcontext():
            loss = self.gradients.backward(prepared, scale, seed)
        self.seconds = _now(self._run.device) - began
        return loss

    def zero_grad(self) -> None:
        """As what is measured does."""
        self.gradients.zero_grad()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Within it, count what the forward pass saves for the backward pass, each storage once."""
        weights = {weight.untyped_storage().data_ptr() for weight in self._run.model.parameters()}
        saved: dict[int, int] = {}

        def save(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()  # which, unlike the tensor, does not hold what holds it

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            yield
        self.saved = sum(saved.values()) / self.tokens


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


class ProcessorShare:
    """The share of the processor time that this process wanted and got, since this object was made."""

    def __init__(self) -> None:
        self._scheduled = _scheduled()
        self._began, self._worked = time.monotonic(), time.thread_time()

    def so_far(self) -> float:
        """1.0 where no thread had to wait for a processor. Where the system does not say, that of this thread."""
        ran, waited = (now - before for now, before in zip(_scheduled(), self._scheduled, strict=True))
        if ran > 0:
            return ran / (ran + waited)
        return (time.thread_time() - self._worked) / (time.monotonic() - self._began)


def _scheduled() -> tuple[int, int]:
    """Nanoseconds that all threads of this process have run, and have waited while they could have (Linux).

    Processor time alone does not tell: a thread that waits for one that was descheduled is busy waiting.
    """
    ran = waited = 0
    try:
        for task in _TASKS.iterdir():
            running, waiting, _ = map(int, (task / "schedstat").read_text().split())
            ran, waited = ran + running, waited + waiting
    except (OSError, ValueError):  # another system, or a thread that has just ended
        return 0, 0
    return ran, max(waited, 0)
