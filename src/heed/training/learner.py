"""A batch to gradients: the part of a step that takes the time.

Two ways, and the same gradients: `Plain` asks for one operation after another, on any device and in any layout;
`captured.Captured` has a GPU repeat what it has done once. `make_learner` chooses.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from heed.backends.cpu.attention import compiled_attention
from heed.backends.cpu.dropout import with_compiled_dropout
from heed.backends.cpu.linear import is_quicker_here, with_compiled_products
from heed.backends.cpu.loss import LOGITS_AT_A_TIME, compiled_cross_entropy
from heed.backends.cpu.packed_linear import can_compile
from heed.backends.cuda.dropout import with_raw_dropout
from heed.backends.cuda.graph import missing_for_capture
from heed.backends.memory import keep_freed_memory
from heed.config import RunConfig
from heed.errors import ConfigError
from heed.model.attention import Attend, fused_attention
from heed.model.layers import DecoderLayer, EncoderLayer
from heed.model.transformer import Transformer, sharing_weights
from heed.training.batches import Batch
from heed.training.bucketing import Shape
from heed.training.tasks import task_of
from heed.training.tasks.base import LossOfVectors

_MANY_STEPS = 5000


@runtime_checkable
class Learner(Protocol):
    """Whatever finds gradients."""

    def prepare(self, batch: Batch) -> list[Batch]:
        """What can be done for a batch ahead of time: the batches it is best learnt from in, ready to be sent."""

    def learn(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        """Add to the gradients those of a batch's loss times `scale`; returns the loss. The seed decides on dropout."""

    def forget(self) -> None:
        """Begin anew: no gradients."""


class Plain:
    """One operation after another."""

    def __init__(self, model: Transformer, config: RunConfig, device: torch.device) -> None:
        self._model, self._config, self._device, self._task = model, config, device, task_of(config)
        self._called = model
        self._attend: Attend = fused_attention
        self._loss_of_vectors: LossOfVectors | None = None
        if will_compile(config, device):
            self._called = sharing_weights(model)
            compile_layers(self._called, dynamic=True)
        elif device.type == "cpu":
            self._quicken()

    def _quicken(self) -> None:
        """On a CPU: keep memory, and do in compiled code what torch does slower, where there is a compiler."""
        keep_freed_memory()
        shares_out = self._config.training.shard
        if not shares_out:  # else the model itself: weights that are shared out allow no twin
            self._called = sharing_weights(self._model)
        if not can_compile(self._model.vocabulary.embedding.weight):
            with_raw_dropout(self._called)
            return
        with_compiled_dropout(self._called)
        self._attend = compiled_attention
        if not shares_out:
            self._loss_of_vectors = compiled_cross_entropy
            if is_quicker_here():
                with_compiled_products(self._called)

    def bytes_of_scores(self, tokens: int) -> int:
        """Memory for the scores of all words, or labels, for so many tokens, their gradients and such."""
        model, r_drop = self._config.model, self._config.training.r_drop
        scores = tokens * (model.labels or model.vocab_size)
        if self._loss_of_vectors is None or model.labels or r_drop:
            return 4 * 4 * scores * (2 if r_drop else 1)
        return 4 * min(LOGITS_AT_A_TIME, scores)

    def prepare(self, batch: Batch) -> list[Batch]:
        """Nothing."""
        return [batch]

    def learn(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        """Forward and back."""
        torch.manual_seed(seed)
        (batch,) = (one.to(self._device) for one in prepared)
        half = is_half(self._config, self._device)
        self._called.train()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
            total = self._task.loss(self._called, batch, self._config, self._attend, self._loss_of_vectors)
        (total * scale).backward()
        return total.detach()

    def forget(self) -> None:
        """Drop the gradients."""
        self._model.zero_grad()


def make_learner(model: Transformer, config: RunConfig, device: torch.device, shape: Shape | None) -> Learner:
    """The quickest way there is on this device; shape: that all batches can be filled up to, if there is one."""
    if shape is None or not can_capture(config, device):
        return Plain(model, config, device)
    from heed.training.captured import Captured  # noqa: PLC0415 - needs Triton, which not every machine has

    return Captured(model, config, device, shape)


def can_capture(config: RunConfig, device: torch.device) -> bool:
    """Whether steps are captured: on a GPU, unless set otherwise, by a process that holds all of the weights."""
    settings = config.training
    return settings.capture and device.type == "cuda" and not settings.shard and missing_for_capture() is None


def will_compile(config: RunConfig, device: torch.device) -> bool:
    """Whether layers are compiled: if so set, or where it is worth the half a minute it takes."""
    settings = config.training
    if settings.compile is not None:
        return settings.compile
    return can_capture(config, device) and settings.max_steps >= _MANY_STEPS


def is_half(config: RunConfig, device: torch.device) -> bool:
    """Whether the arithmetic is done in bfloat16."""
    wanted = config.training.precision
    return wanted == "bfloat16" or (wanted == "auto" and device.type == "cuda")


def check_precision(config: RunConfig, device: torch.device) -> None:
    """Refuse what would end the process rather than be slow."""
    if config.training.precision == "bfloat16" and device.type == "cpu":
        raise ConfigError("training.precision = 'bfloat16' needs a GPU: some CPUs advertise it and crash the process")


def layers_of(model: Transformer) -> list[EncoderLayer | DecoderLayer]:
    """All layers of a model."""
    return [part for part in model.modules() if isinstance(part, EncoderLayer | DecoderLayer)]


def compile_layers(model: Transformer, *, dynamic: bool) -> None:
    """Compile every layer: each kind once, for all layers of it."""
    for layer in layers_of(model):
        layer.compile(dynamic=dynamic, fullgraph=True)
