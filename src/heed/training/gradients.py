"""A batch to gradients: the part of a training step that takes the time.

Two ways, and the same gradients: `EagerGradients` runs one operation after another, on any device and in any layout;
`GraphGradients` replays a CUDA graph. A backend brings the operations (`heed.backends.base.TrainingOps`).
"""

from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from heed.backends.cuda.graph import Captured, capture
from heed.backends.select import TrainingPlan, training_ops
from heed.config import RunConfig
from heed.model.transformer import Transformer
from heed.training.batches import Batch
from heed.training.bucketing import Shape, parts
from heed.training.tasks import task_of

_WARM_UP = 3  # passes in which kernels are built and libraries take the memory they want


@runtime_checkable
class Gradients(Protocol):
    """Whatever computes gradients."""

    def prepare(self, batch: Batch) -> list[Batch]:
        """What can be done for a batch ahead of time: the batches it is best run in, ready to be sent."""

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        """Add to the gradients those of a batch's loss times `scale`; returns the loss. The seed decides on dropout."""

    def zero_grad(self) -> None:
        """Begin anew: no gradients."""


def make_gradients(model: Transformer, config: RunConfig, plan: TrainingPlan, shape: Shape | None) -> Gradients:
    """By the plan; shape: to which all batches are padded, where a graph is captured."""
    if plan.is_captured and shape is not None:
        return GraphGradients(model, config, plan, shape)
    return EagerGradients(model, config, plan)


class EagerGradients:
    """One operation after another."""

    def __init__(self, model: Transformer, config: RunConfig, plan: TrainingPlan) -> None:
        self._model, self._config, self._task = model, config, task_of(config)
        self._device, self._bfloat16 = model.vocabulary.embedding.weight.device, plan.bfloat16
        self._ops = training_ops(model, plan.eager(), is_sharded=config.training.shard)

    def bytes_of_logits(self, tokens: int) -> int:
        """Memory for the logits of so many tokens, their gradients and such."""
        model, r_drop, held = self._config.model, self._config.training.r_drop, self._ops.logits_in_memory
        logits = tokens * (model.labels or model.vocab_size)
        if held is None or model.labels or r_drop:
            return 4 * 4 * logits * (2 if r_drop else 1)
        return 4 * min(held, logits)

    def prepare(self, batch: Batch) -> list[Batch]:
        """Nothing is to be done."""
        return [batch]

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        """Forward and backward pass."""
        torch.manual_seed(seed)
        (batch,) = (part.to(self._device) for part in prepared)
        ops = self._ops
        ops.model.train()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            total = self._task.loss(ops.model, batch, self._config, ops.attend, ops.fused_loss)
        (total * scale).backward()
        return total.detach()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._model.zero_grad()


class GraphGradients:
    """Forward and backward pass captured once as a CUDA graph, and replayed.

    A small model's many small kernels take longer to launch than to run, so nothing is launched twice: every batch is
    padded to one shape and copied to one place, and the graph reads it there. Where a copy of the model in bfloat16
    does the work, the graph begins by rounding the weights into it and ends by copying its gradients to theirs. What is
    random follows from the generator's seed, which a graph reads anew at each replay.
    """

    def __init__(self, model: Transformer, config: RunConfig, plan: TrainingPlan, shape: Shape) -> None:
        self._config, self._shape, self._task = config, shape, task_of(config)
        self._device = device = model.vocabulary.embedding.weight.device
        self._batch = shape.batch(torch.zeros(shape.numbers, dtype=torch.int64, device=device))
        self._scale = torch.zeros((), dtype=torch.float32, device=device)
        self._loss = torch.zeros((), dtype=torch.float32, device=device)
        self._ops, self._is_copy = training_ops(model, plan, is_sharded=False), plan.bfloat16
        self._weights: list[Tensor] = list(model.parameters())
        self._gradients = [torch.empty_like(weight) for weight in self._weights] if self._is_copy else []
        self._graph: Captured | None = None

    def prepare(self, batch: Batch) -> list[Batch]:
        """The batch padded to the shape, or its parts, in memory that the GPU can fetch from."""
        return [
            self._shape.batch(self._shape.fill(part).pin_memory(), part.tokens) for part in parts(batch, self._shape)
        ]

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        """Copy the batch and replay the graph."""
        total = torch.zeros_like(self._loss)
        self._scale.fill_(scale)
        for number, part in enumerate(prepared):
            for own, new in zip(self._batch.tensors(), part.tensors(), strict=True):
                own.copy_(new, non_blocking=True)
            if self._graph is None:
                self._graph = capture(self._forward_and_backward, self._device, warm_up=_WARM_UP)
                self.zero_grad()
            torch.manual_seed(seed + number)
            self._add_gradients(self._graph)
            total += self._loss
        return total

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for weight in self._weights:
            weight.grad = None

    def _add_gradients(self, graph: Captured) -> None:
        """A graph puts gradients in the place of its last ones; so whatever was there already is kept and added."""
        if self._weights[0].grad is None:
            graph()
            for weight, gradient in zip(self._weights, self._gradients, strict=True):
                weight.grad = gradient
        else:
            earlier = [gradient.clone() for gradient in self._gradients]
            graph()
            torch._foreach_add_(self._gradients, earlier)

    def _forward_and_backward(self) -> None:
        ops = self._ops
        if ops.dropout_seeds is not None:
            torch.randint(-(2**31), 2**31, ops.dropout_seeds.shape, out=ops.dropout_seeds)
        if self._is_copy:
            with torch.no_grad():
                torch._foreach_copy_(list(ops.model.parameters()), self._weights)
        ops.model.zero_grad()
        total = self._task.loss(ops.model, self._batch, self._config, ops.attend, ops.fused_loss)
        (total * self._scale).backward()
        computed = [cast("Tensor", weight.grad) for weight in ops.model.parameters()]
        if self._is_copy:
            torch._foreach_copy_(self._gradients, computed)
        else:
            self._gradients = computed
        self._loss = total.detach()
