"""Chunked linear + cross-entropy: the loss and its gradients at once, the logits never materialised as a whole.

For 25,000 tokens and a vocabulary of 32,000 the logits are 800 million numbers, and their gradients as many. Here a
chunk of tokens at a time is multiplied out; a kernel reads its logits, computes the losses and leaves the gradient in
their place; two matmuls take it to the hidden states and the weight; the next chunk uses the same memory. The backward
pass has nothing left to do but to scale. `cuda/loss.py` and `cpu/loss.py` bring the kernel.

The reference is `training.loss.smoothed_cross_entropy` of `model.vocabulary.logits`.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

ToGradient: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]  # of logits, right words, and where losses are put


@runtime_checkable
class Matmul(Protocol):
    """A product of matrices."""

    def __call__(
        self, a: Tensor, b: Tensor, bias: Tensor | None = None, *, to: Tensor | None = None, adds: bool = False
    ) -> Tensor:
        """A B, and a bias for each row; put, or added, to a matrix that is there already."""


def torch_matmul(
    a: Tensor, b: Tensor, bias: Tensor | None = None, *, to: Tensor | None = None, adds: bool = False
) -> Tensor:
    """By torch's own, on any device. A sum may be more exact than what is added to it."""
    if to is None:
        return a @ b if bias is None else torch.addmm(bias, a, b)
    if not adds:
        return torch.mm(a, b, out=to)
    return to.addmm_(a, b) if to.dtype == a.dtype else to.add_(a @ b)


def loss_and_gradients(
    vectors: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tgt_out: Int[Tensor, "N"],
    to_gradient: ToGradient,
    size: int,
    multiply: Matmul = torch_matmul,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N D"], Float[Tensor, "V D"], Float[Tensor, "any"]]:
    """The loss, and its gradients by vectors, weight and bias; size: of a slice, at most."""
    slices = -(-len(vectors) // size) or 1
    size = -(-len(vectors) // slices) or 1  # all about the same
    losses = torch.empty(len(vectors), dtype=torch.float32, device=vectors.device)
    by_vectors = torch.empty_like(vectors)
    by_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    by_bias = torch.zeros(0 if bias is None else len(bias), dtype=torch.float32, device=weight.device)
    for start in range(0, len(vectors), size):
        tokens = slice(start, start + size)
        logits = multiply(vectors[tokens], weight.t(), bias)
        to_gradient(logits, tgt_out[tokens], losses[tokens])
        multiply(logits, weight, to=by_vectors[tokens])
        multiply(logits.t(), vectors[tokens], to=by_weight, adds=True)
        if bias is not None:
            by_bias += logits.sum(0, dtype=torch.float32)
    return losses.sum(), by_vectors, by_weight.to(weight.dtype), by_bias.to(weight.dtype)
