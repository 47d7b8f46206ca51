"""A step that a GPU repeats: forward and back, captured once as a CUDA graph.

A small model's many small kernels take longer to be asked for than to run, so nothing is asked for twice: every batch
is filled up to one shape and copied to one place, and the graph reads it there. Attention, the loss and layer norm's
way back are kernels of our own. In bfloat16 a twin of the model does the work: the graph begins by rounding the weights
into it and ends by adding its gradients to theirs, so that all between, sums of residuals too, moves half as many
bytes. Compiled, the twin's layers are fused and their dropout hashed. What is random follows from the generator's seed,
which a graph asks anew.
"""

import copy
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from heed.config import RunConfig
from heed.kernels.attention import packed_attention
from heed.kernels.cross_entropy import linear_cross_entropy
from heed.kernels.dropout import with_hashed_dropout
from heed.kernels.layer_norm import with_quick_norms
from heed.model.transformer import Transformer
from heed.model.twin import sharing_weights
from heed.training.batches import Batch
from heed.training.filled import Shape, parts
from heed.training.learner import compile_layers, is_half, layers_of, will_compile
from heed.training.tasks import task_of

_PASSES_BEFORE = 3  # in which kernels are built and libraries take the memory they want


class Captured:
    """Finds gradients by replaying a graph."""

    def __init__(self, model: Transformer, config: RunConfig, device: torch.device, shape: Shape) -> None:
        self._config, self._device, self._shape, self._task = config, device, shape, task_of(config)
        self._batch = shape.batch(torch.zeros(shape.numbers, dtype=torch.int64, device=device))
        self._scale = torch.zeros((), device=device)
        self._loss = torch.zeros((), device=device)
        self._half = is_half(config, device)
        self._twin = copy.deepcopy(model).to(torch.bfloat16) if self._half else sharing_weights(model)
        self._twin.train()
        with_quick_norms(self._twin)
        self._seeds = None
        if will_compile(config, device):
            self._seeds = with_hashed_dropout(layers_of(self._twin), device)
            compile_layers(self._twin, dynamic=False)
        self._weights: list[Tensor] = list(model.parameters())
        for weight in self._weights:
            weight.grad = torch.zeros_like(weight)
        self._gradients = [cast("Tensor", weight.grad) for weight in self._weights]
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self, batch: Batch) -> list[Batch]:
        """The batch filled up, or its parts, in memory that the GPU can fetch from."""
        return [
            self._shape.batch(self._shape.fill(part).pin_memory(), part.tokens) for part in parts(batch, self._shape)
        ]

    def learn(self, prepared: list[Batch], scale: float, seed: int) -> Float[Tensor, ""]:
        """Copy and replay."""
        total = torch.zeros_like(self._loss)
        self._scale.fill_(scale)
        for number, part in enumerate(prepared):
            for own, new in zip(self._batch.tensors(), part.tensors(), strict=True):
                own.copy_(new, non_blocking=True)
            if self._graph is None:
                self._graph = self._capture()
            torch.manual_seed(seed + number)
            self._graph.replay()
            total += self._loss
        return total

    def forget(self) -> None:
        """Set the gradients to zero where they are: the graph adds to them there."""
        torch._foreach_zero_(self._gradients)

    def _capture(self) -> torch.cuda.CUDAGraph:
        aside, now = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        aside.wait_stream(now)
        with torch.cuda.stream(aside):
            for _ in range(_PASSES_BEFORE):
                self._forward_and_back()
        now.wait_stream(aside)
        self.forget()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._loss = self._forward_and_back()
        return graph

    def _forward_and_back(self) -> Float[Tensor, ""]:
        if self._seeds is not None:
            torch.randint(-(2**31), 2**31, self._seeds.shape, out=self._seeds)
        if self._half:
            with torch.no_grad():
                torch._foreach_copy_(list(self._twin.parameters()), self._weights)
            self._twin.zero_grad()
        total = self._task.loss(self._twin, self._batch, self._config, packed_attention, linear_cross_entropy)
        (total * self._scale).backward()
        if self._half:
            rounded = [cast("Tensor", weight.grad) for weight in self._twin.parameters()]
            exact = [torch.empty_like(gradient) for gradient in self._gradients]
            torch._foreach_copy_(exact, rounded)
            torch._foreach_add_(self._gradients, exact)
        return total.detach()
