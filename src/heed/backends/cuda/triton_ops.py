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

_TIMES = 16  # target positions per tile
_COLUMNS = 32  # source positions per tile
_RUN, _RUNS = 512, 4  # vocabulary entries per block, one block per warp; blocks per program
_MIN_DOT = 16  # smallest dimension of tl.dot


def embed(embedding: EmbeddingParams, slots: Slots) -> StreamAndInput:
    """Token embedding, position code and, where the layers are pre-norm, the first layer norm in one kernel."""
    rows, size = slots.shape.rows, embedding.table.shape[1]
    stream = torch.empty(rows, size, dtype=embedding.table.dtype, device=embedding.table.device)
    ready = stream if embedding.norm is None else torch.empty_like(stream)
    weight, bias, eps = embedding.norm or (stream, stream, 0.0)
    decoder.embed[(rows,)](
        slots.ids, embedding.table, stream if embedding.positions is None else embedding.positions, slots.positions,
        weight, bias,
        stream, ready, embedding.scale, slots.shape.beam, size, eps,
        CODE=embedding.positions is not None, NORM=embedding.norm is not None, ROOM=triton.next_power_of_2(size),
    )  # fmt: skip
    return stream, ready


def add_residual_norm(
    x: Float[Tensor, "R D"], output: Float[Tensor, "R D"], residual_norm: ResidualNorm
) -> StreamAndInput:
    """Bias, residual connection and layer norm of a sublayer in one kernel."""
    ready = torch.empty_like(x)
    stream = ready if residual_norm.is_post else torch.empty_like(x)
    weight, bias, eps = residual_norm.norm
    outer_weight, outer_bias, _ = residual_norm.outer_norm or residual_norm.norm
    decoder.add_residual_norm[(len(x),)](
        x, output, residual_norm.bias, outer_weight, outer_bias, weight, bias, stream, ready, x.shape[1], eps,
        OUTER=residual_norm.outer_norm is not None, POST=residual_norm.is_post, ROOM=triton.next_power_of_2(x.shape[1]),
    )  # fmt: skip
    return stream, ready


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
        WIDTH=slots.shape.beam, TURN=rotation is not None, SIZE=width, ROOM=triton.next_power_of_2(width),
        TIMES=_TIMES, num_warps=1,
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
        WIDTH=slots.shape.beam, SIZE=width, ROOM=max(_MIN_DOT, triton.next_power_of_2(width)),
        PRECISION="ieee" if keys.dtype == torch.float32 else "tf32",
        ROWS=max(_MIN_DOT, triton.next_power_of_2(slots.shape.beam)), COLUMNS=_COLUMNS, num_warps=2,
    )  # fmt: skip
    return output


def beam_step(logits: Float[Tensor, "R V"], bias: Float[Tensor, "V"] | None, slots: Slots, special: SpecialIds) -> None:
    """Three kernels: over the vocabulary, over each row's best blocks, and over the hypotheses of each sentence."""
    (rows, size), width, device = logits.shape, slots.shape.beam, logits.device
    runs, best = triton.cdiv(size, _RUN), width + 1  # at most W continuations and the eos of a hypothesis can matter
    scanned = torch.empty(4, rows, runs, dtype=torch.float32, device=device).unbind()
    log_sums = torch.empty(rows, dtype=torch.float32, device=device)
    values = torch.empty(rows, best, dtype=torch.float32, device=device)
    words = torch.empty(rows, best, dtype=torch.int32, device=device)
    cut_off = torch.empty(rows, dtype=torch.int32, device=device)
    seen = (logits, logits if bias is None else bias, slots.positions, slots.finished, slots.max_lengths, slots.rules)
    constants = {"WIDTH": width, "BIAS": bias is not None, "RUN": _RUN}
    beam.scan[(rows, triton.cdiv(runs, _RUNS))](
        *seen, *scanned, size, runs, *special, **constants, RUNS=_RUNS, num_warps=_RUNS
    )
    beam.pick[(rows,)](
        *seen, *scanned, log_sums, values, words, cut_off, size, runs, *special,
        **constants, BEST=best, RUNS=triton.next_power_of_2(runs), num_warps=1,
    )  # fmt: skip
    places, choices = triton.next_power_of_2(width), triton.next_power_of_2(best)
    beam.expand[(slots.shape.slots,)](
        log_sums, values, words, cut_off, slots.ids, slots.slot_state, slots.beam_scores, slots.finished_info,
        slots.history,
        slots.kv_rows, slots.length_penalties, slots.rules, rows, slots.shape.target_length, size, special.eos_id,
        WIDTH=width, BEST=best, ROWS=places, CHOICES=choices, TIMES=_TIMES,
        num_warps=1 if places * choices <= 512 else 4,
    )  # fmt: skip


TRITON = StepOps(embed, add_residual_norm, self_attention, cross_attention, beam_step, packed_attention)
