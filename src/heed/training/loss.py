"""The training loss: label-smoothed cross-entropy (paper, section 5.4) and R-Drop.

Enters: logits and target tokens. Leaves: a sum and the number of tokens it is over, so that a step's loss is divided
once, by all its tokens, however many micro-batches it has. Knows nothing of models.
"""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def smoothed_cross_entropy(
    logits: Float[Tensor, "*tokens V"], tgt_out: Int[Tensor, "*tokens"], pad_id: int, smoothing: float
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Cross-entropy summed over all tokens but padding, and how many those are.

    The target distribution is 1 - smoothing on the target token plus smoothing / V on each of the V vocabulary entries.
    """
    total = functional.cross_entropy(
        logits.flatten(0, -2), tgt_out.flatten(), ignore_index=pad_id, label_smoothing=smoothing, reduction="sum"
    )
    return total, (tgt_out != pad_id).sum()


def loss_of_logits(
    logits: Float[Tensor, "N V"], tgt_out: Int[Tensor, "N"], pad_id: int, smoothing: float, r_drop: float
) -> Float[Tensor, ""]:
    """Smoothed cross-entropy; with R-Drop the batch is doubled, and the divergence of its two halves is added."""
    total, _ = smoothed_cross_entropy(logits, tgt_out, pad_id, smoothing)
    if not r_drop:
        return total
    one, other = logits.chunk(2)
    return (total + r_drop * symmetric_kl(one, other, tgt_out[: len(one)], pad_id)) / 2


def symmetric_kl(
    one: Float[Tensor, "N V"], other: Float[Tensor, "N V"], tgt_out: Int[Tensor, "N"], pad_id: int
) -> Float[Tensor, ""]:
    """The mean of both Kullback-Leibler divergences between two predictions, summed over tokens but padding.

    R-Drop (Liang et al. 2021) adds it to the loss of two passes that differ in dropout only.
    """
    p, q = one.float().log_softmax(-1), other.float().log_softmax(-1)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    return apart.masked_fill(tgt_out == pad_id, 0.0).sum() / 2
