"""GPU training with Triton kernels and fused projections, ready for capture as a CUDA graph.

Attention, the loss, layer norm and the gradients of biases are Triton kernels; linear layers of the same input are one
matmul. In bfloat16 a copy of the model does the work, so that everything between the weights and their gradients, sums
of residuals too, moves half as many bytes. Compiled, the copy's layers are fused and their dropout is hashed.
"""

import copy

import torch

from heed.backends.base import TrainingOps
from heed.backends.cuda.attention import packed_attention, packed_self_attention
from heed.backends.cuda.dropout import use_hashed_dropout
from heed.backends.cuda.layer_norm import use_triton_layer_norm
from heed.backends.cuda.linear import linear, use_triton_linear
from heed.backends.cuda.loss import linear_cross_entropy
from heed.backends.fused_qkv import use_fused_projections
from heed.backends.torch.training import compile_all_layers, layers_of
from heed.model.transformer import Transformer, copy_sharing_weights


def training_ops(model: Transformer, *, bfloat16: bool, compile_layers: bool) -> TrainingOps:
    """bfloat16: the model that runs is a copy; the weights must be copied into it before each pass."""
    run = copy.deepcopy(model).to(torch.bfloat16) if bfloat16 else copy_sharing_weights(model)
    run.train()
    use_fused_projections(run, linear, packed_self_attention)
    use_triton_layer_norm(run, is_compiled=compile_layers)
    seeds = None
    if compile_layers:
        seeds = use_hashed_dropout(layers_of(run), model.device)
        compile_all_layers(run, dynamic=False)
    else:
        use_triton_linear(run)
    return TrainingOps(run, packed_attention, linear_cross_entropy, dropout_seeds=seeds)
