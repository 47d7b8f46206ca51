"""Computes the gradients of a batch: forward and backward pass, eagerly or by replaying a CUDA graph.

Both ways give the same gradients: `EagerGradients` runs on any device and with any batch; `GraphGradients` replays a
CUDA graph on batches of one static shape. The operations come from a backend (`heed.backends.base.TrainingOps`).
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
from heed.training.bucketing import BucketShape, split_to_fit
from heed.training.tasks import task_of

_WARM_UP = 3  # passes before capture: kernels are compiled, libraries allocate their workspaces


@runtime_checkable
class Gradients(Protocol):
    """Accumulates the gradients of batches in the model's parameters."""

    def prepare(self, batch: Batch) -> list[Batch]:
        """What can be done for a batch ahead of time: the batches to run instead of it, in host memory."""

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        """Accumulate the gradients of a batch's loss times `scale`; returns the loss. seed: of dropout."""

    def zero_grad(self) -> None:
        """Set all gradients to None."""


def make_gradients(model: Transformer, config: RunConfig, plan: TrainingPlan, shape: BucketShape | None) -> Gradients:
    """The `Gradients` that the plan asks for. shape: the static shape of batches, where a graph is captured."""
    if plan.is_captured and shape is not None:
        return GraphGradients(model, config, plan, shape)
    return EagerGradients(model, config, plan)


class EagerGradients:
    """Forward and backward pass in eager mode."""

    def __init__(self, model: Transformer, config: RunConfig, plan: TrainingPlan) -> None:
        self._model, self._config, self._task = model, config, task_of(config)
        self._device, self._bfloat16 = model.device, plan.bfloat16
        self._ops = training_ops(model, plan.eager(), is_sharded=config.training.shard)

    def logits_bytes(self, tokens: int) -> int:
        """Memory for the logits of a batch, their gradients and the intermediate results of the loss."""
        model, r_drop, held = self._config.model, self._config.training.r_drop, self._ops.logits_in_memory
        logits = tokens * (model.labels or model.vocab_size)
        if held is None or model.labels:
            return 4 * 4 * logits * (2 if r_drop else 1)
        return 4 * min(held, logits)

    def prepare(self, batch: Batch) -> list[Batch]:
        return [batch]

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        torch.manual_seed(seed)
        (batch,) = (part.to(self._device) for part in prepared)
        ops = self._ops
        ops.model.train()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            total = self._task.loss(ops.model, batch, self._config, ops.attend, ops.fused_loss)
        (total * scale).backward()
        return total.detach()

    def zero_grad(self) -> None:
        self._model.zero_grad()


class GraphGradients:
    """Forward and backward pass captured once as a CUDA graph, then replayed for every batch.

    A small model's many small kernels take longer to launch than to run; a replay launches them all at once. Every
    batch is padded to one static shape and copied to the graph's input buffers. In bfloat16 the graph runs a copy of
    the model: it first casts the float32 weights into the copy, and last casts the copy's gradients to float32. Dropout
    follows the generator's seed, which the graph reads at each replay.
    """

    def __init__(self, model: Transformer, config: RunConfig, plan: TrainingPlan, shape: BucketShape) -> None:
        self._config, self._shape, self._task = config, shape, task_of(config)
        self._device = device = model.device
        self._batch = shape.batch(torch.zeros(shape.numel, dtype=torch.int64, device=device))
        self._scale = torch.zeros((), dtype=torch.float32, device=device)
        self._loss = torch.zeros((), dtype=torch.float32, device=device)
        self._ops, self._is_copy = training_ops(model, plan, is_sharded=False), plan.bfloat16
        self._weights: list[Tensor] = list(model.parameters())
        self._gradients = [torch.empty_like(weight) for weight in self._weights] if self._is_copy else []
        self._graph: Captured | None = None

    def prepare(self, batch: Batch) -> list[Batch]:
        """The batch, split if it is too large, padded to the static shape, in pinned memory."""
        shape = self._shape
        return [shape.batch(shape.pad(part).pin_memory(), part.tokens) for part in split_to_fit(batch, shape)]

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        total = torch.zeros_like(self._loss)
        self._scale.fill_(scale)
        for index, part in enumerate(prepared):
            for buffer, new in zip(self._batch.tensors(), part.tensors(), strict=True):
                buffer.copy_(new, non_blocking=True)
            if self._graph is None:
                self._graph = capture(self._forward_and_backward, self._device, warm_up=_WARM_UP)
                self.zero_grad()
            torch.manual_seed(seed + index)
            self._accumulate_gradients(self._graph)
            total += self._loss
        return total

    def zero_grad(self) -> None:
        for weight in self._weights:
            weight.grad = None

    def _accumulate_gradients(self, graph: Captured) -> None:
        """Replay the graph. It overwrites its gradient buffers, so earlier gradients are saved and added back."""
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
