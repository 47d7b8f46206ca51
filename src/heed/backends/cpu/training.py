"""CPU training in compiled C: attention, loss, dropout and, where they are faster than MKL, linear layers."""

from heed.backends.base import TrainingOps
from heed.backends.chunked_loss import torch_matmul
from heed.backends.cpu.attention import native_attention
from heed.backends.cpu.dropout import use_native_dropout
from heed.backends.cpu.linear import matmul, use_native_linear
from heed.backends.cpu.loss import LOGITS_AT_A_TIME, linear_cross_entropy
from heed.model.transformer import Transformer, copy_sharing_weights


def training_ops(model: Transformer, *, is_sharded: bool, native_matmul: bool) -> TrainingOps:
    """is_sharded: the model itself runs, since sharded weights allow no copy that shares them and no fused loss."""
    run = model if is_sharded else copy_sharing_weights(model)
    use_native_dropout(run)
    if is_sharded:
        return TrainingOps(run, native_attention)
    if native_matmul:
        use_native_linear(run)
    loss = linear_cross_entropy(matmul if native_matmul else torch_matmul)
    return TrainingOps(run, native_attention, loss, LOGITS_AT_A_TIME)
