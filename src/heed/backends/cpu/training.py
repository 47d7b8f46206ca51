"""CPU training in compiled C: attention, loss, dropout and, where they are faster than MKL, linear layers.

Enters: a model. Leaves: a copy that shares its weights, with compiled modules instead of torch's.
"""

from heed.backends.base import TrainingOps
from heed.backends.chunked_loss import torch_matmul
from heed.backends.cpu.attention import packed_attention, packed_self_attention
from heed.backends.cpu.dropout import use_native_dropout
from heed.backends.cpu.feed_forward import use_native_feed_forward
from heed.backends.cpu.linear import linear, matmul, use_native_linear
from heed.backends.cpu.loss import LOGITS_AT_A_TIME, make_linear_cross_entropy
from heed.backends.fused_qkv import use_fused_projections
from heed.model.transformer import Transformer, copy_sharing_weights


def training_ops(model: Transformer, *, is_sharded: bool, native_matmul: bool) -> TrainingOps:
    """is_sharded: the model itself runs, since sharded weights allow no copy that shares them and no fused loss."""
    run = model if is_sharded else copy_sharing_weights(model)
    if native_matmul and not is_sharded:
        if model.config.comparison_only is None:
            use_fused_projections(run, linear, packed_self_attention)
        use_native_feed_forward(run)
        use_native_linear(run)
    use_native_dropout(run)
    if is_sharded:
        return TrainingOps(run, packed_attention)
    loss = make_linear_cross_entropy(matmul if native_matmul else torch_matmul)
    return TrainingOps(run, packed_attention, loss, LOGITS_AT_A_TIME)
