"""Training on a GPU by kernels of our own, made to be captured as a CUDA graph.

Attention, the loss and the backward pass of layer norm are Triton kernels; linear layers of the same input are one
matmul. In bfloat16 a copy of the model does the work, so that everything between the weights and their gradients, sums
of residuals too, moves half as many bytes. Compiled, the copy's layers are fused and their dropout is hashed.
"""

import copy

import torch

from heed.backends.base import TrainingOps
from heed.backends.cuda.attention import packed_attention
from heed.backends.cuda.dropout import with_hashed_dropout
from heed.backends.cuda.fused_qkv import with_joined_products
from heed.backends.cuda.layer_norm import with_quick_norms
from heed.backends.cuda.loss import linear_cross_entropy
from heed.backends.torch.training import compile_all_layers, layers_of
from heed.model.transformer import Transformer, copy_sharing_weights


def training_ops(model: Transformer, *, bfloat16: bool, compile_layers: bool) -> TrainingOps:
    """Of the model's weights, or in bfloat16 of a copy, into which they are to be copied before each pass."""
    run = copy.deepcopy(model).to(torch.bfloat16) if bfloat16 else copy_sharing_weights(model)
    run.train()
    with_joined_products(run)
    with_quick_norms(run)
    seeds = None
    if compile_layers:
        seeds = with_hashed_dropout(layers_of(run), model.vocabulary.embedding.weight.device)
        compile_all_layers(run, dynamic=False)
    return TrainingOps(run, packed_attention, linear_cross_entropy, dropout_seeds=seeds)
