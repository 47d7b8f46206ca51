"""Chunked linear + cross-entropy: loss and gradients in one pass, without materialising all logits.

For 25,000 tokens and a vocabulary of 32,000 there are 800 million logits, and as many gradients. Here the logits are
computed for one chunk of tokens at a time; a kernel computes the losses and overwrites the logits with their gradient;
two matmuls propagate it to the hidden states and the weight; the next chunk reuses the memory. The backward pass only
scales the gradients. `cuda/loss.py` and `cpu/loss.py` provide the kernel.

The reference is `training.loss.loss_of_logits` of `model.vocabulary.logits`.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

LogitsToGradient: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]  # logits (overwritten), targets, losses (output)


@runtime_checkable
class MatmulFn(Protocol):
    """A matrix multiplication, such as `torch_matmul`."""

    def __call__(
        self, a: Tensor, b: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None, accumulate: bool = False
    ) -> Tensor:
        """A B + bias. out: written to, or added to if `accumulate`."""


def torch_matmul(
    a: Tensor, b: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None, accumulate: bool = False
) -> Tensor:
    """Matmul by torch, on any device; `out` may have a higher precision than what is added to it."""
    if out is None:
        return a @ b if bias is None else torch.addmm(bias, a, b)
    if not accumulate:
        return torch.mm(a, b, out=out)
    return out.addmm_(a, b) if out.dtype == a.dtype else out.add_(a @ b)


def loss_and_gradients(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tgt_out: Int[Tensor, "N"],
    logits_to_gradient: LogitsToGradient,
    chunk_size: int,
    matmul: MatmulFn = torch_matmul,
    *,
    copies: int = 1,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N D"], Float[Tensor, "V D"], Float[Tensor, "any"]]:
    """The loss, and its gradients of hidden states, weight and bias. chunk_size: tokens per chunk, about.

    copies: how many passes over the same tokens `hidden` holds, one after the other (R-Drop: 2). `logits_to_gradient`
    gets the copies of a token as neighbouring rows.
    """
    hidden, tgt_out = _transpose(hidden, copies), _transpose(tgt_out, copies)
    chunks = -(-len(hidden) // chunk_size) or 1
    chunk_size = -(-len(hidden) // (chunks * copies)) * copies or 1  # all chunks about equal
    losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    grad_bias = torch.zeros(0 if bias is None else len(bias), dtype=torch.float32, device=weight.device)
    for start in range(0, len(hidden), chunk_size):
        chunk = slice(start, start + chunk_size)
        logits = matmul(hidden[chunk], weight.t(), bias)
        logits_to_gradient(logits, tgt_out[chunk], losses[chunk])
        matmul(logits, weight, out=grad_hidden[chunk])
        matmul(logits.t(), hidden[chunk], out=grad_weight, accumulate=True)
        if bias is not None:
            grad_bias += logits.sum(0, dtype=torch.float32)
    grad_hidden = _transpose(grad_hidden, len(hidden) // copies)
    return losses.sum(), grad_hidden, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)


def _transpose(rows: Tensor, groups: int) -> Tensor:
    """The first row of each group, then the second of each, and so on."""
    if groups in {1, len(rows)}:
        return rows
    return rows.unflatten(0, (groups, -1)).transpose(0, 1).flatten(0, 1)
