"""What training would take on this machine: found out by trying, in a few seconds.

Enters: settings, and how long texts are. Leaves: time and memory. A model of these settings takes a few real steps of
its task, by whatever learner training would have, on random ids in texts of the corpus's lengths; on a slow machine in
smaller batches, and the rest is arithmetic. So it is an estimate: validation and saving are not in it, nor whatever
else the machine has to do.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.machine import device_name, memory_of
from heed.config import RunConfig
from heed.errors import TrainingError
from heed.model.transformer import Transformer
from heed.text.labels import FIRST
from heed.text.tokenizer import SPECIAL
from heed.training.batches import Batch, Ragged
from heed.training.bucketing import Shape
from heed.training.contention import ProcessorShare
from heed.training.learner import Plain, can_capture, check_precision, make_learner
from heed.training.run import make_optimizer
from heed.training.tasks import task_of

_FIRST = 128  # tokens to begin with on a CPU
_SMALLEST = 16  # tokens; where these do not fit into a GPU's memory, nothing will
_LONG_ENOUGH = 0.4  # seconds a step: larger batches would tell no more
_TIMED = 12  # steps, if there is time: on a busy machine most are disturbed
_EXAMPLES = 16  # batches that say how large batches are
_PATIENCE = 6.0  # seconds for everything; a step that has begun is finished


@dataclass(frozen=True)
class Estimate:
    """What training would take; memory in bytes, time in seconds."""

    device: str
    tokens_per_step: int  # of what a batch is counted by: targets, or the texts of a classifier
    tokens_timed: int
    tokens_per_second: float
    seconds_per_step: float  # of the fastest step
    median_seconds_per_step: float
    max_steps: int
    seconds: float
    memory: int
    memory_measured: bool  # else computed from what a smaller batch keeps for its gradients
    memory_there: int | None
    processor_share: float  # of what was asked for, 1.0 where nobody else wanted it; on a GPU it says nothing


def estimate(config: RunConfig, lengths: NDArray[np.int64], device: torch.device) -> Estimate:
    """What training with these settings would take; lengths: tokens of source and target, (pairs, 2), of a label 1."""
    settings = config.training
    check_precision(config, device)
    began, given = time.monotonic(), ProcessorShare()
    try:
        trial = _Trial(config, lengths, device)
        tokens, step = trial.find_size(settings.tokens_per_batch)
    except torch.OutOfMemoryError:
        raise TrainingError(f"such a model does not fit into the memory of {device_name(device)}") from None
    steps = [step]
    tokens_per_step = settings.tokens_per_batch * settings.accumulate
    while len(steps) < _TIMED and time.monotonic() - began < _PATIENCE:
        steps.append(trial.step(tokens))
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
        memory_there=memory_of(device),
        processor_share=given.so_far(),
    )


class _Trial:
    """A model that is trained on nothing in particular."""

    def __init__(self, config: RunConfig, lengths: NDArray[np.int64], device: torch.device) -> None:
        self._config, self._device, self._task = config, device, task_of(config)
        self._counted = 1 if "target" in self._task.sides else 0  # the side that a batch is counted by
        ranked = lengths[np.lexsort((lengths[:, 0], lengths[:, 1]))]  # a batch has sentences of like length, so
        self._lengths = np.concatenate((ranked, ranked[::-1]))  # whoever comes to the end goes back
        self._random = np.random.default_rng(config.training.seed)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._model = Transformer(config.model).to(device).train()
        self._optimizer = make_optimizer(self._model, config)
        self._learner = make_learner(self._model, config, device, self._shape())
        self._kept = 0.0  # bytes a token

    def _shape(self) -> Shape | None:
        """As `Run.learner` has it."""
        if not can_capture(self._config, self._device):
            return None
        examples = [self._batch(self._config.training.tokens_per_batch)[0] for _ in range(_EXAMPLES)]
        return Shape.for_batches_like(examples, self._config.data.max_tokens + 1)

    def find_size(self, budget: int) -> tuple[int, tuple[float, float]]:
        """Warm up, and find a batch of at most `budget` tokens that takes neither too long nor too short to be timed.

        Returns its tokens, and what a step with it took.
        """
        self.step(_SMALLEST)  # the first step of all is slow whatever its size
        tokens, fits = budget if self._device.type == "cuda" else min(budget, _FIRST), True
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
            if not fits:
                self._learner = Plain(self._model, self._config, self._device)  # the other has room for whole batches
                self._optimizer.zero_grad()
                gc.collect()  # the error holds on to all that did fit

    def step(self, tokens: int) -> tuple[float, float]:
        """Seconds a token for the gradients of a batch, and seconds for the change of the weights."""
        batch, size = self._batch(tokens)
        prepared = self._learner.prepare(batch)
        began = self._now()
        with self._counting(size) if isinstance(self._learner, Plain) else nullcontext():
            self._learner.learn(prepared, 1 / batch.tokens, self._config.training.seed)
        learnt = self._now()
        self._optimizer.step()
        self._learner.forget()
        return (learnt - began) / size, self._now() - learnt

    @contextmanager
    def _counting(self, tokens: int) -> Iterator[None]:
        """While this is on, count what the forward pass keeps for the backward pass, each piece of memory once."""
        weights = {weight.untyped_storage().data_ptr() for weight in self._model.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()  # which, unlike the tensor, does not hold what holds it

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
        self._kept = sum(kept.values()) / tokens

    def memory(self, budget: int) -> int:
        """Bytes for batches of this size: weights, gradients, what the optimiser keeps, and what a batch needs."""
        settings = self._config.training
        copies = 4 if settings.ema_decay is None else 5  # weight, gradient and Adam's two moments; a running mean
        weights = sum(weight.numel() * weight.element_size() for weight in self._model.parameters())
        scores = cast("Plain", self._learner).bytes_of_scores(budget)  # memory is measured where another learns
        return round(copies * weights + self._kept * budget + scores)

    def _batch(self, tokens: int) -> tuple[Batch, int]:
        """Random ids in texts that lie next to one another in length, of at most `tokens` tokens or one; how many."""
        start = self._random.integers(len(self._lengths))
        rows = np.resize(np.roll(self._lengths, -start, 0), (tokens, 2))
        sizes = np.cumsum(rows[:, self._counted] + 1)
        count = max(1, int(np.searchsorted(sizes, tokens, side="right")))
        model = self._config.model
        targets = model.vocab_size if model.labels is None else FIRST + model.labels
        source, target = (
            Ragged.of([self._random.integers(len(SPECIAL), size, length).tolist() for length in rows[:count, side]])
            for side, size in enumerate((model.source_vocab_size or model.vocab_size, targets))
        )
        return self._task.collate(source, target, self._random), int(sizes[count - 1])

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.monotonic()
