"""What is to become smaller: a batch to its loss, summed over its tokens.

Which arithmetic is used for attention and for the last product is an argument: torch's own unless told otherwise, the
kernels' where a GPU has them.
"""

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from heed.config import RunConfig
from heed.model.attention import Attend, fused_attention
from heed.model.transformer import Transformer
from heed.training.batches import Batch
from heed.training.loss import disagreement, smoothed_cross_entropy

LossOfVectors: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor, int, float], Tensor]


def objective(
    model: Transformer,
    batch: Batch,
    config: RunConfig,
    attend: Attend = fused_attention,
    loss_of_vectors: LossOfVectors | None = None,
) -> Float[Tensor, ""]:
    """The loss of a batch that lies where the model does.

    loss_of_vectors: what finds the loss of the vectors before the output matrix; none: by way of the logits. R-Drop
    needs the logits, so there it is not asked.
    """
    pad_id, settings = config.model.pad_id, config.training
    if loss_of_vectors is not None and not settings.r_drop:
        vectors = model.hidden(batch.src, batch.tgt_in, batch.src_layout, batch.tgt_layout, attend=attend)
        matrix = model.vocabulary.output_matrix()
        return loss_of_vectors(vectors, *matrix, batch.tgt_out, pad_id, settings.label_smoothing)
    seen = batch.twice() if settings.r_drop else batch
    logits = model(seen.src, seen.tgt_in, seen.src_layout, seen.tgt_layout, attend=attend)
    total, _ = smoothed_cross_entropy(logits, seen.tgt_out, pad_id, settings.label_smoothing)
    if not settings.r_drop:
        return total
    one, other = logits.chunk(2)
    return (total + settings.r_drop * disagreement(one, other, batch.tgt_out, pad_id)) / 2
