"""Launches the Triton kernels of a decoder step: few fused kernels, since each launch takes microseconds.

The kernels are in `triton/decoder.py` and `triton/beam.py`. Nothing here reads a value back from the GPU, so all of it
can be captured in a CUDA graph.
"""

import math

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from heed.backends.cuda.attention import packed_attention
from heed.backends.cuda.slots import Slots
from heed.backends.cuda.step_ops import EmbeddingParams, ResidualNorm, SpecialIds, StepOps, StreamAndInput
from heed.backends.cuda.triton import beam, decoder

_BLOCK_T = 16  # target positions per tile
_BLOCK_N = 32  # source positions per tile
_BLOCK_SIZE, _BLOCKS = 512, 4  # vocabulary entries per block, one block per warp; blocks per program
_MIN_DOT = 16  # smallest dimension of tl.dot


def embed(embedding: EmbeddingParams, slots: Slots) -> StreamAndInput:
    """Token embedding, position code and, where the layers are pre-norm, the first layer norm in one kernel."""
    rows, size = slots.shape.rows, embedding.table.shape[1]
    stream = torch.empty(rows, size, dtype=embedding.table.dtype, device=embedding.table.device)
    next_input = stream if embedding.norm is None else torch.empty_like(stream)
    weight, bias, eps = embedding.norm or (stream, stream, 0.0)
    decoder.embed[(rows,)](
        slots.ids, embedding.table, stream if embedding.positions is None else embedding.positions, slots.positions,
        weight, bias,
        stream, next_input, embedding.scale, slots.shape.beam, size, eps,
        ADD_POSITIONS=embedding.positions is not None, NORM=embedding.norm is not None,
        BLOCK_D=triton.next_power_of_2(size),
    )  # fmt: skip
    return stream, next_input


def add_residual_norm(
    x: Float[Tensor, "R D"], output: Float[Tensor, "R D"], residual_norm: ResidualNorm
) -> StreamAndInput:
    """Bias, residual connection and layer norm of a sublayer in one kernel."""
    next_input = torch.empty_like(x)
    stream = next_input if residual_norm.is_post else torch.empty_like(x)
    weight, bias, eps = residual_norm.norm
    outer_weight, outer_bias, _ = residual_norm.outer_norm or residual_norm.norm
    decoder.add_residual_norm[(len(x),)](
        x, output, residual_norm.bias, outer_weight, outer_bias, weight, bias, stream, next_input, x.shape[1], eps,
        OUTER=residual_norm.outer_norm is not None, POST=residual_norm.is_post,
        BLOCK_D=triton.next_power_of_2(x.shape[1]),
    )  # fmt: skip
    return stream, next_input


def self_attention(
    qkv: Float[Tensor, "R qkv"],
    bias: Float[Tensor, "qkv"],
    slots: Slots,
    layer: int,
    rotation: Float[Tensor, "2 T half"] | None,
) -> Float[Tensor, "R D"]:
    """One kernel that also appends the new keys and values to the KV cache."""
    keys, values = slots.self_kv[layer]
    rows, capacity, heads, width = keys.shape
    output = torch.empty(rows, heads * width, dtype=qkv.dtype, device=qkv.device)
    decoder.self_attention[(rows, heads)](
        qkv, bias, keys, values, slots.kv_rows, slots.positions, qkv if rotation is None else rotation, output,
        rows, heads, capacity, 1 / math.sqrt(width),
        BEAM=slots.shape.beam, ROTARY=rotation is not None, HEAD_DIM=width, BLOCK_D=triton.next_power_of_2(width),
        BLOCK_T=_BLOCK_T, num_warps=1,
    )  # fmt: skip
    return output


def cross_attention(
    queries: Float[Tensor, "R D"], bias: Float[Tensor, "D"], slots: Slots, layer: int
) -> Float[Tensor, "R D"]:
    """Attention of each sentence's hypotheses to its source in one kernel, which reads keys and values once."""
    keys, values = slots.cross_kv[layer]
    sentences, capacity, heads, width = keys.shape
    output = torch.empty_like(queries)
    decoder.cross_attention[(sentences, heads)](
        queries, bias, keys, values, slots.source_lengths, output, heads, capacity, 1 / math.sqrt(width),
        BEAM=slots.shape.beam, HEAD_DIM=width, BLOCK_D=max(_MIN_DOT, triton.next_power_of_2(width)),
        PRECISION="ieee" if keys.dtype == torch.float32 else "tf32",
        BLOCK_M=max(_MIN_DOT, triton.next_power_of_2(slots.shape.beam)), BLOCK_N=_BLOCK_N, num_warps=2,
    )  # fmt: skip
    return output


def beam_step(logits: Float[Tensor, "R V"], bias: Float[Tensor, "V"] | None, slots: Slots, special: SpecialIds) -> None:
    """Three kernels: over the vocabulary, over each row's best blocks, and over the hypotheses of each sentence."""
    (rows, vocab_size), beam_size, device = logits.shape, slots.shape.beam, logits.device
    blocks, top_k = triton.cdiv(vocab_size, _BLOCK_SIZE), beam_size + 1  # W continuations and eos can matter
    scanned = torch.empty(4, rows, blocks, dtype=torch.float32, device=device).unbind()
    log_sums = torch.empty(rows, dtype=torch.float32, device=device)
    values = torch.empty(rows, top_k, dtype=torch.float32, device=device)
    token_ids = torch.empty(rows, top_k, dtype=torch.int32, device=device)
    prefers_to_continue = torch.empty(rows, dtype=torch.int32, device=device)
    inputs = (logits, logits if bias is None else bias, slots.positions, slots.finished, slots.max_lengths, slots.rules)
    constants = {"BEAM": beam_size, "BIAS": bias is not None, "BLOCK_SIZE": _BLOCK_SIZE}
    beam.scan[(rows, triton.cdiv(blocks, _BLOCKS))](
        *inputs, *scanned, vocab_size, blocks, *special, **constants, BLOCKS=_BLOCKS, num_warps=_BLOCKS
    )
    beam.pick[(rows,)](
        *inputs, *scanned, log_sums, values, token_ids, prefers_to_continue, vocab_size, blocks, *special,
        **constants, TOP_K=top_k, BLOCKS=triton.next_power_of_2(blocks), num_warps=1,
    )  # fmt: skip
    beam_block, candidates = triton.next_power_of_2(beam_size), triton.next_power_of_2(top_k)
    beam.expand[(slots.shape.slots,)](
        log_sums, values, token_ids, prefers_to_continue, slots.ids, slots.slot_state, slots.beam_scores,
        slots.finished_info, slots.history, slots.kv_rows, slots.length_penalties, slots.rules, rows,
        slots.shape.target_length, vocab_size, special.eos_id, BEAM=beam_size, TOP_K=top_k, BEAM_BLOCK=beam_block,
        CANDIDATES=candidates, BLOCK_T=_BLOCK_T, num_warps=1 if beam_block * candidates <= 512 else 4,
    )  # fmt: skip


TRITON = StepOps(embed, add_residual_norm, self_attention, cross_attention, beam_step, packed_attention)
