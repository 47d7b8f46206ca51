"""The loss of a batch straight from the vectors before the output matrix.

For 25,000 tokens and 32,000 words the logits are 800 million numbers, and their gradients as many. Here a slice of
tokens at a time is multiplied out; one kernel reads its logits, adds up the loss and leaves the gradient in their
place; two products take it to the vectors and the matrix; the next slice uses the same memory. The way back has nothing
left to do but to scale.

The twin is `training.loss.smoothed_cross_entropy` of `model.vocabulary.logits`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.kernels.programs import cross_entropy as programs

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
    losses = torch.empty(len(vectors), dtype=torch.float32, device=vectors.device)
    by_vectors = torch.empty_like(vectors)
    by_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    by_bias = torch.zeros(0 if bias is None else len(bias), dtype=torch.float32, device=weight.device)
    for start in range(0, len(vectors), _SLICE):
        tokens = slice(start, start + _SLICE)
        logits = torch.nn.functional.linear(vectors[tokens], weight, bias)
        programs.to_gradient[(len(logits),)](
            logits, tgt_out[tokens], losses[tokens], logits.shape[1], pad_id, smoothing, BLOCK=_BLOCK, num_warps=8
        )
        torch.mm(logits, weight, out=by_vectors[tokens])
        by_weight += logits.t() @ vectors[tokens]
        if bias is not None:
            by_bias += logits.sum(0, dtype=torch.float32)
    return losses.sum(), by_vectors, by_weight.to(weight.dtype), by_bias.to(weight.dtype)


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
