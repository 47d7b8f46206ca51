"""Triton kernels of a decoder step between its matmuls: one program per row, or per head of a row.

A row is a hypothesis; `beam` rows belong to a sentence. Sums are accumulated in float32, whatever the stored dtype.
Block sizes are powers of two; masks exclude what lies beyond the real size. 1.4426950408889634 is log2(e): scores are
scaled to base 2, because exp2 is cheaper than exp.
"""

import triton
import triton.language as tl


@triton.jit
def _layer_norm(x, weight, bias, column, in_bounds, d_model, eps):
    """Layer norm of one hidden state."""
    centered = tl.where(in_bounds, x - tl.sum(x, 0) / d_model, 0.0)
    normalized = centered * tl.rsqrt(tl.sum(centered * centered, 0) / d_model + eps)
    scale = tl.load(weight + column, mask=in_bounds, other=0.0).to(tl.float32)
    return normalized * scale + tl.load(bias + column, mask=in_bounds, other=0.0).to(tl.float32)


@triton.jit
def embed(
    ids, embedding, position_table, positions, weight, bias, stream, next_input, scale, beam, d_model, eps,
    ADD_POSITIONS: tl.constexpr, NORM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Embedding of a row's newest token plus its position; NORM: also the first layer norm."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_D)
    in_bounds = column < d_model
    x = tl.load(embedding + tl.load(ids + row) * d_model + column, mask=in_bounds, other=0.0).to(tl.float32) * scale
    if ADD_POSITIONS:
        x += tl.load(position_table + tl.load(positions + row // beam) * d_model + column, mask=in_bounds, other=0.0)
    offset = row * d_model + column
    tl.store(stream + offset, x, mask=in_bounds)
    if NORM:
        tl.store(next_input + offset, _layer_norm(x, weight, bias, column, in_bounds, d_model, eps), mask=in_bounds)


@triton.jit
def add_residual_norm(
    X, Y, y_bias, outer_weight, outer_bias, weight, bias, stream, next_input, d_model, eps,
    OUTER: tl.constexpr, POST: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Residual sum and layer norm of a sub-layer's output Y; POST: the norm replaces the residual stream."""
    column = tl.arange(0, BLOCK_D)
    in_bounds = column < d_model
    offset = tl.program_id(0) * d_model + column
    y = tl.load(Y + offset, mask=in_bounds, other=0.0).to(tl.float32)
    y += tl.load(y_bias + column, mask=in_bounds, other=0.0).to(tl.float32)
    if OUTER:
        y = _layer_norm(y, outer_weight, outer_bias, column, in_bounds, d_model, eps)
    x = tl.load(X + offset, mask=in_bounds, other=0.0).to(tl.float32) + y
    tl.store(next_input + offset, _layer_norm(x, weight, bias, column, in_bounds, d_model, eps), mask=in_bounds)
    if not POST:
        tl.store(stream + offset, x, mask=in_bounds)


@triton.jit
def _load_head(x, bias, start_offset, column, in_bounds, cos, sin, ROTARY: tl.constexpr):
    """One head of a query, key or value with its bias; ROTARY: rotated by its position, component 2i with 2i + 1."""
    output = tl.load(x + start_offset + column, mask=in_bounds, other=0.0).to(tl.float32)
    output += tl.load(bias + start_offset + column, mask=in_bounds, other=0.0).to(tl.float32)
    if ROTARY:
        partner = tl.load(x + start_offset + (column ^ 1), mask=in_bounds, other=0.0).to(tl.float32)
        partner += tl.load(bias + start_offset + (column ^ 1), mask=in_bounds, other=0.0).to(tl.float32)
        sign = tl.where(column % 2 == 0, -1.0, 1.0)
        output = output * tl.load(cos + column // 2, mask=in_bounds, other=0.0)
        output += sign * partner * tl.load(sin + column // 2, mask=in_bounds, other=0.0)
    return output


@triton.jit
def self_attention(
    qkv, bias, keys, values, kv_rows, positions, rotation, output, count, heads, capacity, scale,
    BEAM: tl.constexpr, ROTARY: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Self-attention of one head of one row: append its key and value to the KV cache and attend to the row's past.

    `kv_rows` says in which row of the cache a hypothesis has its key of each position, so beams are never reordered.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + row // BEAM)
    d_model = heads * HEAD_DIM
    column = tl.arange(0, BLOCK_D)
    in_bounds = column < HEAD_DIM
    qkv_row = qkv + row * 3 * d_model
    cos = rotation + position * (HEAD_DIM // 2)
    sin = cos + capacity * (HEAD_DIM // 2)
    q = _load_head(qkv_row, bias, head * HEAD_DIM, column, in_bounds, cos, sin, ROTARY)
    k = _load_head(qkv_row, bias, d_model + head * HEAD_DIM, column, in_bounds, cos, sin, ROTARY)
    v = _load_head(qkv_row, bias, 2 * d_model + head * HEAD_DIM, column, in_bounds, cos, sin, False)
    cache_offset = (row.to(tl.int64) * capacity + position) * d_model + head * HEAD_DIM + column
    k, v = k.to(keys.dtype.element_ty), v.to(values.dtype.element_ty)
    tl.store(keys + cache_offset, k, mask=in_bounds)
    tl.store(values + cache_offset, v, mask=in_bounds)
    q = q * (scale * 1.4426950408889634)
    max_score = tl.sum(q * k.to(tl.float32), 0)
    denominator = 1.0
    accumulator = v.to(tl.float32)
    kv_row_of_position = kv_rows + ((position & 1) * count + row) * capacity
    for start in range(0, position, BLOCK_T):
        position_tile = start + tl.arange(0, BLOCK_T)
        is_past = position_tile < position
        kv_row = row + tl.zeros((BLOCK_T,), tl.int32)
        if BEAM > 1:
            kv_row = tl.load(kv_row_of_position + position_tile, mask=is_past, other=0)
        kv_offset = (kv_row.to(tl.int64) * capacity + position_tile) * d_model + head * HEAD_DIM
        offset, is_token = kv_offset[:, None] + column[None, :], is_past[:, None] & in_bounds[None, :]
        k_tile = tl.load(keys + offset, mask=is_token, other=0.0).to(tl.float32)
        # Loaded while the keys are in flight.
        v_tile = tl.load(values + offset, mask=is_token, other=0.0).to(tl.float32)
        score = tl.where(is_past, tl.sum(k_tile * q[None, :], 1), -float("inf"))
        new_max = tl.maximum(max_score, tl.max(score, 0))
        rescale, weight = tl.exp2(max_score - new_max), tl.exp2(score - new_max)
        denominator = denominator * rescale + tl.sum(weight, 0)
        accumulator = accumulator * rescale + tl.sum(weight[:, None] * v_tile, 0)
        max_score = new_max
    tl.store(output + row * d_model + head * HEAD_DIM + column, accumulator / denominator, mask=in_bounds)


@triton.jit
def cross_attention(
    queries, bias, keys, values, lengths, output, heads, capacity, scale,
    BEAM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Cross-attention of one head for all hypotheses of a sentence, which share one read of the source's KV cache."""
    sentence, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + sentence)
    d_model = heads * HEAD_DIM
    hypothesis = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    in_bounds = column < HEAD_DIM
    offset = (sentence * BEAM + hypothesis)[:, None] * d_model + head * HEAD_DIM + column[None, :]
    exists = (hypothesis < BEAM)[:, None] & in_bounds[None, :]
    q = tl.load(queries + offset, mask=exists, other=0.0).to(tl.float32)
    q += tl.load(bias + head * HEAD_DIM + column, mask=in_bounds, other=0.0).to(tl.float32)[None, :]
    q = q.to(keys.dtype.element_ty)
    max_score = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    denominator = tl.zeros((BLOCK_M,), tl.float32)
    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    start_offset = sentence.to(tl.int64) * capacity * d_model + head * HEAD_DIM
    for start in range(0, length, BLOCK_N):
        source_position = start + tl.arange(0, BLOCK_N)
        is_token = source_position < length
        kv_offset, both = (
            start_offset + source_position[:, None] * d_model + column[None, :],
            is_token[:, None] & in_bounds[None, :],
        )
        k = tl.load(keys + kv_offset, mask=both, other=0.0)
        v = tl.load(values + kv_offset, mask=both, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        score = tl.where(is_token[None, :], score, -float("inf"))
        new_max = tl.maximum(max_score, tl.max(score, 1))
        rescale, weight = tl.exp2(max_score - new_max), tl.exp2(score - new_max[:, None])
        denominator = denominator * rescale + tl.sum(weight, 1)
        accumulator = accumulator * rescale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        max_score = new_max
    tl.store(output + offset, accumulator / denominator[:, None], mask=exists)
