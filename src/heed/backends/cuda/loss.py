"""Chunked linear + cross-entropy on a GPU: a Triton loss kernel under `backends.chunked_loss`."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.chunked_loss import loss_and_gradients
from heed.backends.cuda.triton import training as programs

_CHUNK_SIZE = 8192  # tokens whose logits are materialised at a time
_BLOCK = 4096  # vocabulary entries per block


def linear_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tgt_out: Int[Tensor, "N"],
    pad_id: int,
    smoothing: float,
    r_drop: float,
) -> Float[Tensor, ""]:
    """Label-smoothed cross-entropy summed over all tokens but padding; with R-Drop also the divergence."""
    return _loss_and_gradients(hidden, weight, bias, tgt_out, pad_id, smoothing, r_drop)[0]


@torch.library.custom_op("heed::linear_cross_entropy", mutates_args=())
def _loss_and_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tgt_out: Tensor, pad_id: int, smoothing: float, r_drop: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients with respect to hidden states, weight and bias."""

    def to_gradient(logits: Tensor, targets: Tensor, losses: Tensor) -> None:
        tokens, vocab_size = logits.shape
        arguments = (logits, targets, losses, vocab_size, pad_id, smoothing)
        if r_drop:
            programs.r_drop_gradient[(tokens // 2,)](*arguments, r_drop, BLOCK=_BLOCK // 2, num_warps=8)
        else:
            programs.cross_entropy_gradient[(tokens,)](*arguments, BLOCK=_BLOCK, num_warps=8)

    return loss_and_gradients(hidden, weight, bias, tgt_out, to_gradient, _CHUNK_SIZE, copies=2 if r_drop else 1)


@_loss_and_gradients.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = hidden.new_empty((), dtype=torch.float32)
    grad_bias = weight.new_empty(0) if bias is None else torch.empty_like(bias)
    return loss, torch.empty_like(hidden), torch.empty_like(weight), grad_bias


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.has_bias = inputs[2] is not None
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_loss: Tensor, *_: object) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    grad_hidden, grad_weight, grad_bias = (gradient * grad_loss.to(gradient.dtype) for gradient in ctx.saved_tensors)
    return grad_hidden, grad_weight, grad_bias if ctx.has_bias else None, None, None, None, None


_loss_and_gradients.register_autograd(_backward, setup_context=_save_for_backward)
