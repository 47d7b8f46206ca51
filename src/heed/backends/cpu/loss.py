"""Chunked linear + cross-entropy on a CPU: the loss kernel of `csrc/loss.h` under `backends.chunked_loss`."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import FusedLoss
from heed.backends.chunked_loss import MatmulFn, loss_and_gradients
from heed.backends.cpu.library import engine, team_of_torch
from heed.backends.cpu.pointers import pointer
from heed.model.embeddings import check_ids

LOGITS_AT_A_TIME = 2**23  # few enough to be in cache when they are read again


def make_linear_cross_entropy(matmul: MatmulFn) -> FusedLoss:
    """Output projection, label-smoothed cross-entropy and R-Drop, chunk by chunk, with this matmul."""

    def loss(
        hidden: Float[Tensor, "N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, "V"] | None,
        tgt_out: Int[Tensor, "N"],
        pad_id: int,
        smoothing: float,
        r_drop: float,
    ) -> Float[Tensor, ""]:
        check_ids("tgt_out", tgt_out, len(weight), ("tokens",))
        return _Loss.apply(hidden, weight, bias, tgt_out, pad_id, smoothing, r_drop, matmul)  # type: ignore[no-untyped-call]

    return loss


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - a gradient is per argument
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tgt_out: Tensor,
        pad_id: int,
        smoothing: float,
        r_drop: float,
        matmul: MatmulFn,
    ) -> Tensor:
        cross_entropy, all_targets = engine().cross_entropy, tgt_out.contiguous()

        def logits_to_gradient(logits: Tensor, targets: Tensor, losses: Tensor) -> None:
            tokens, vocab_size = logits.shape
            cross_entropy(
                pointer(logits, torch.float32, tokens, vocab_size), pointer(targets, torch.int64, tokens),
                pointer(losses, torch.float32, tokens), tokens, vocab_size, pad_id, smoothing, r_drop,
                *team_of_torch(),
            )  # fmt: skip

        chunk = max(1, LOGITS_AT_A_TIME // len(weight))
        loss, *gradients = loss_and_gradients(
            hidden, weight, bias, all_targets, logits_to_gradient, chunk, matmul, copies=2 if r_drop else 1
        )
        ctx.has_bias, ctx.gradients = bias is not None, gradients
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = (gradient * grad_output for gradient in ctx.gradients)
        return grad_hidden, grad_weight, grad_bias if ctx.has_bias else None, None, None, None, None, None
