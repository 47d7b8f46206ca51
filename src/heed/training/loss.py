"""What training makes smaller (paper, section 5.4).

Enters: logits and the tokens that were right. Leaves: the loss as a sum and the number of tokens it is over, so that
it is divided once, by all tokens of a step, however many pieces the step was cut into. Knows nothing of models.
"""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def smoothed_cross_entropy(
    logits: Float[Tensor, "*tokens V"], tgt_out: Int[Tensor, "*tokens"], pad_id: int, smoothing: float
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Cross-entropy summed over all tokens but padding, and how many those are.

    The right answer is a little unsure of itself: 1 - smoothing for the right word, and smoothing shared out evenly
    among all V words, the right one included.
    """
    total = functional.cross_entropy(
        logits.flatten(0, -2), tgt_out.flatten(), ignore_index=pad_id, label_smoothing=smoothing, reduction="sum"
    )
    return total, (tgt_out != pad_id).sum()


def loss_of_logits(
    logits: Float[Tensor, "N V"], tgt_out: Int[Tensor, "N"], pad_id: int, smoothing: float, r_drop: float
) -> Float[Tensor, ""]:
    """The smoothed cross-entropy; with R-Drop everything is there twice, and both halves must agree too."""
    total, _ = smoothed_cross_entropy(logits, tgt_out, pad_id, smoothing)
    if not r_drop:
        return total
    one, other = logits.chunk(2)
    return (total + r_drop * disagreement(one, other, tgt_out[: len(one)], pad_id)) / 2


def disagreement(
    one: Float[Tensor, "N V"], other: Float[Tensor, "N V"], tgt_out: Int[Tensor, "N"], pad_id: int
) -> Float[Tensor, ""]:
    """How far two predictions for the same tokens lie apart: the mean of both Kullback-Leibler divergences, summed.

    R-Drop (Liang et al. 2021) adds it to the loss of two passes that differ in dropout only. Padding does not count.
    """
    p, q = one.float().log_softmax(-1), other.float().log_softmax(-1)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    return apart.masked_fill(tgt_out == pad_id, 0.0).sum() / 2
