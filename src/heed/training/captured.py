"""A step that a GPU repeats: forward and back, captured once as a CUDA graph.

A small model's many small kernels take longer to be asked for than to run, so nothing is asked for twice: every batch
is filled up to one shape and copied to one place, and the graph reads it there. Attention, the loss and layer norm's
way back are kernels of our own, and products of the same vectors are one. In bfloat16 a twin of the model does the
work: the graph begins by rounding the weights into it and ends by copying its gradients to theirs, so that all between,
sums of residuals too, moves half as many bytes. Compiled, the twin's layers are fused and their dropout hashed. What is
random follows from the generator's seed, which a graph asks anew.
"""

import copy
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from heed.backends.cuda.attention import packed_attention
from heed.backends.cuda.dropout import with_hashed_dropout
from heed.backends.cuda.fused_qkv import with_joined_products
from heed.backends.cuda.layer_norm import with_quick_norms
from heed.backends.cuda.loss import linear_cross_entropy
from heed.config import RunConfig
from heed.model.transformer import Transformer, sharing_weights
from heed.training.batches import Batch
from heed.training.bucketing import Shape, parts
from heed.training.learner import compile_layers, is_half, layers_of, will_compile
from heed.training.tasks import task_of

_PASSES_BEFORE = 3  # in which kernels are built and libraries take the memory they want


class Captured:
    """Finds gradients by replaying a graph."""

    def __init__(self, model: Transformer, config: RunConfig, device: torch.device, shape: Shape) -> None:
        self._config, self._device, self._shape, self._task = config, device, shape, task_of(config)
        self._batch = shape.batch(torch.zeros(shape.numbers, dtype=torch.int64, device=device))
        self._scale = torch.zeros((), dtype=torch.float32, device=device)
        self._loss = torch.zeros((), dtype=torch.float32, device=device)
        self._half = is_half(config, device)
        self._twin = copy.deepcopy(model).to(torch.bfloat16) if self._half else sharing_weights(model)
        self._twin.train()
        with_joined_products(self._twin)
        with_quick_norms(self._twin)
        self._seeds = None
        if will_compile(config, device):
            self._seeds = with_hashed_dropout(layers_of(self._twin), device)
            compile_layers(self._twin, dynamic=False)
        self._weights: list[Tensor] = list(model.parameters())
        self._gradients = [torch.empty_like(weight) for weight in self._weights] if self._half else []
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
            self._add_gradients(self._graph)
            total += self._loss
        return total

    def forget(self) -> None:
        """Drop the gradients."""
        for weight in self._weights:
            weight.grad = None

    def _add_gradients(self, graph: torch.cuda.CUDAGraph) -> None:
        """A graph puts gradients in the place of its last ones; so whatever was there already is kept and added."""
        if self._weights[0].grad is None:
            graph.replay()
            for weight, gradient in zip(self._weights, self._gradients, strict=True):
                weight.grad = gradient
        else:
            earlier = [gradient.clone() for gradient in self._gradients]
            graph.replay()
            torch._foreach_add_(self._gradients, earlier)

    def _capture(self) -> torch.cuda.CUDAGraph:
        aside, now = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        aside.wait_stream(now)
        with torch.cuda.stream(aside):
            for _ in range(_PASSES_BEFORE):
                self._forward_and_back()
        now.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._loss = self._forward_and_back()
        self.forget()
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
        found = [cast("Tensor", weight.grad) for weight in self._twin.parameters()]
        if self._half:
            torch._foreach_copy_(self._gradients, found)
        else:
            self._gradients = found
        return total.detach()
