"""Training with torch operators: the portable path, on any device."""

from heed.backends.base import TrainingOps
from heed.backends.torch.dropout import with_raw_dropout
from heed.model.attention import fused_attention
from heed.model.layers import DecoderLayer, EncoderLayer
from heed.model.transformer import Transformer, sharing_weights


def training_ops(model: Transformer, *, is_sharded: bool, compile_layers: bool) -> TrainingOps:
    """is_sharded: the model itself runs on a CPU, since sharded weights allow no second model around them."""
    if compile_layers:
        compiled = sharing_weights(model)
        compile_all_layers(compiled, dynamic=True)
        return TrainingOps(compiled, fused_attention)
    if model.vocabulary.embedding.weight.device.type != "cpu":
        return TrainingOps(model, fused_attention)
    run = model if is_sharded else sharing_weights(model)
    with_raw_dropout(run)
    return TrainingOps(run, fused_attention)


def layers_of(model: Transformer) -> list[EncoderLayer | DecoderLayer]:
    """All layers of a model."""
    return [part for part in model.modules() if isinstance(part, EncoderLayer | DecoderLayer)]


def compile_all_layers(model: Transformer, *, dynamic: bool) -> None:
    """torch.compile every layer: each kind once, for all layers of it."""
    for layer in layers_of(model):
        layer.compile(dynamic=dynamic, fullgraph=True)
