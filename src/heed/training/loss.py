"""The training loss: label-smoothed cross-entropy (paper, section 5.4) and R-Drop.

Enters: logits and target tokens. Leaves: the sum over tokens and their number, so that a step's loss is divided once,
by all its tokens, however many micro-batches it has. Knows nothing of models.
"""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def smoothed_cross_entropy(
    logits: Float[Tensor, "*tokens V"], tgt_out: Int[Tensor, "*tokens"], pad_id: int, smoothing: float
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Cross-entropy summed over the tokens that are not padding, and their number.

    The target distribution is 1 - smoothing on the target token plus smoothing / V on each of the V vocabulary entries.
    """
    total = functional.cross_entropy(
        logits.flatten(0, -2), tgt_out.flatten(), ignore_index=pad_id, label_smoothing=smoothing, reduction="sum"
    )
    return total, (tgt_out != pad_id).sum()


def loss_of_logits(
    logits: Float[Tensor, "N V"], tgt_out: Int[Tensor, "N"], pad_id: int, smoothing: float, r_drop: float
) -> Float[Tensor, ""]:
    """Smoothed cross-entropy; with R-Drop the batch holds every sentence twice, and their divergence is added."""
    total, _ = smoothed_cross_entropy(logits, tgt_out, pad_id, smoothing)
    if not r_drop:
        return total
    first, second = logits.chunk(2)
    return (total + r_drop * symmetric_kl(first, second, tgt_out[: len(first)], pad_id)) / 2


def symmetric_kl(
    first: Float[Tensor, "N V"], second: Float[Tensor, "N V"], tgt_out: Int[Tensor, "N"], pad_id: int
) -> Float[Tensor, ""]:
    """The mean of the two Kullback-Leibler divergences between two predictions, summed over all tokens but padding.

    R-Drop (Liang et al. 2021) adds it to the loss of two forward passes that differ in dropout only.
    """
    p, q = first.float().log_softmax(-1), second.float().log_softmax(-1)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    return divergence.masked_fill(tgt_out == pad_id, 0.0).sum() / 2
