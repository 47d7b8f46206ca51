"""Chunked linear + cross-entropy in compiled code, on a CPU: `csrc/loss.h` from Python; see `chunked_loss`."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import FusedLoss
from heed.backends.chunked_loss import Matmul, loss_and_gradients
from heed.backends.cpu.library import native
from heed.backends.cpu.pointers import pointer
from heed.model.embeddings import check_ids

LOGITS_AT_A_TIME = 2**23  # they are still in a cache when they are read again


def linear_cross_entropy(matmul: Matmul) -> FusedLoss:
    """Output projection and label-smoothed cross-entropy, chunk by chunk, with this matmul."""

    def loss(
        hidden: Float[Tensor, "N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, "V"] | None,
        tgt_out: Int[Tensor, "N"],
        pad_id: int,
        smoothing: float,
    ) -> Float[Tensor, ""]:
        check_ids("tgt_out", tgt_out, len(weight), ("tokens",))
        return _Loss.apply(hidden, weight, bias, tgt_out, pad_id, smoothing, matmul)  # type: ignore[no-untyped-call]

    return loss


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tgt_out: Tensor,
        pad_id: int,
        smoothing: float,
        matmul: Matmul,
    ) -> Tensor:
        run, threads, right_words = native().heed_to_gradient, torch.get_num_threads(), tgt_out.contiguous()

        def to_gradient(logits: Tensor, right: Tensor, losses: Tensor) -> None:
            tokens, words = logits.shape
            run(
                pointer(logits, torch.float32, tokens, words), pointer(right, torch.int64, tokens),
                pointer(losses, torch.float32, tokens), tokens, words, pad_id, smoothing, threads,
            )  # fmt: skip

        size = max(1, LOGITS_AT_A_TIME // len(weight))
        loss, *gradients = loss_and_gradients(vectors, weight, bias, right_words, to_gradient, size, matmul)
        ctx.has_bias, ctx.gradients = bias is not None, gradients
        return loss

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        by_vectors, by_weight, by_bias = (gradient * above for gradient in ctx.gradients)
        return by_vectors, by_weight, by_bias if ctx.has_bias else None, None, None, None, None
