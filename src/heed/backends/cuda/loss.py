"""Chunked linear + cross-entropy on a GPU: a Triton loss kernel under `backends.chunked_loss`."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.chunked_loss import loss_and_gradients
from heed.backends.cuda.triton import training as programs

_SLICE = 8192  # tokens whose logits exist at a time
_BLOCK = 4096  # words that one kernel looks at together


def linear_cross_entropy(
    vectors: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tgt_out: Int[Tensor, "N"],
    pad_id: int,
    smoothing: float,
) -> Float[Tensor, ""]:
    """Label-smoothed cross-entropy summed over all tokens but padding."""
    return _loss_and_gradients(vectors, weight, bias, tgt_out, pad_id, smoothing)[0]


@torch.library.custom_op("heed::linear_cross_entropy", mutates_args=())
def _loss_and_gradients(
    vectors: Tensor, weight: Tensor, bias: Tensor | None, tgt_out: Tensor, pad_id: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients by vectors, weight and bias."""

    def to_gradient(logits: Tensor, right: Tensor, losses: Tensor) -> None:
        tokens, words = logits.shape
        programs.to_gradient[(tokens,)](logits, right, losses, words, pad_id, smoothing, BLOCK=_BLOCK, num_warps=8)

    return loss_and_gradients(vectors, weight, bias, tgt_out, to_gradient, _SLICE)


@_loss_and_gradients.register_fake
def _(vectors: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = vectors.new_empty((), dtype=torch.float32)
    by_bias = weight.new_empty(0) if bias is None else torch.empty_like(bias)
    return loss, torch.empty_like(vectors), torch.empty_like(weight), by_bias


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.has_bias = inputs[2] is not None
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _back(ctx, above: Tensor, *_: object) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    by_vectors, by_weight, by_bias = (gradient * above.to(gradient.dtype) for gradient in ctx.saved_tensors)
    return by_vectors, by_weight, by_bias if ctx.has_bias else None, None, None, None


_loss_and_gradients.register_autograd(_back, setup_context=_remember)
