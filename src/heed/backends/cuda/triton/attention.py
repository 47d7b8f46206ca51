"""Triton kernels of attention between packed sequences, tile by tile, in the manner of FlashAttention.

One program computes a tile of BLOCK_M queries (or BLOCK_N keys) of one head. `log_sums` are the log-sum-exps of the
scores, `deltas` the row sums of grad_out * out. 1.4426950408889634 is log2(e): scores are scaled to base 2, because
exp2 is cheaper than exp.
"""

import triton
import triton.language as tl


@triton.jit
def _hash(x):
    """A 32-bit integer hash; `tests/reference/dropout.py` is its reference."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _dropout_keep(seed, query, head, heads, key, threshold):
    """Whether dropout keeps the attention weight of a query for a key."""
    row = _hash((tl.load(seed) + query * heads + head).to(tl.uint32))
    return _hash(row + key.to(tl.uint32)) >= threshold.to(tl.uint32)


@triton.jit
def _token_range(tokens, sequence_ids, cu_seqlens, other_cu_seqlens, UP_TO_SELF: tl.constexpr, FROM_SELF: tl.constexpr):
    """The range [first, last) of tokens of the other side in each token's sequence.

    UP_TO_SELF: only positions up to its own; FROM_SELF: only positions from its own on.
    """
    sequence = tl.load(sequence_ids + tokens)
    first = tl.load(other_cu_seqlens + sequence)
    last = tl.load(other_cu_seqlens + sequence + 1)
    if UP_TO_SELF:
        last = tl.minimum(last, first + tokens - tl.load(cu_seqlens + sequence) + 1)
    if FROM_SELF:
        first += tokens - tl.load(cu_seqlens + sequence)
    return first.to(tl.int32), last.to(tl.int32)


@triton.jit
def _load_tile(x, tokens, stride, exists, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """The vectors of one head of some tokens; zeros where there is no token."""
    column = tl.arange(0, BLOCK_D)
    address = x + tokens[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(address, mask=exists[:, None] & (column[None, :] < HEAD_DIM), other=0.0)


@triton.jit
def _store_tile(x, tokens, stride, exists, tile, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    column = tl.arange(0, BLOCK_D)
    address = x + tokens[:, None].to(tl.int64) * stride + column[None, :]
    tl.store(address, tile, mask=exists[:, None] & (column[None, :] < HEAD_DIM))


@triton.jit
def forward(
    Q, K, V, out, log_sums, sequence_ids, cu_seqlens, key_cu_seqlens, seed,
    q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, query_count, heads, scale, threshold,
    dropout_scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = row < query_count
    first, last = _token_range(
        tl.minimum(row, query_count - 1), sequence_ids, cu_seqlens, key_cu_seqlens, CAUSAL, False
    )
    q = _load_tile(Q + head * q_stride_h, row, q_stride_t, exists, HEAD_DIM, BLOCK_D)
    max_score = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    denominator = tl.zeros((BLOCK_M,), tl.float32)
    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    end = tl.max(last, 0)
    for start in range(tl.min(first, 0), end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = _load_tile(K + head * k_stride_h, key, k_stride_t, key < end, HEAD_DIM, BLOCK_D)
        v = _load_tile(V + head * v_stride_h, key, v_stride_t, key < end, HEAD_DIM, BLOCK_D)
        allowed = (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        score = tl.where(allowed, score, -float("inf"))
        new_max = tl.maximum(max_score, tl.max(score, 1))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)
        weight = tl.exp2(score - safe_max[:, None])
        rescale = tl.exp2(max_score - safe_max)
        denominator = denominator * rescale + tl.sum(weight, 1)
        if DROPOUT:
            kept = _dropout_keep(seed, row[:, None], head, heads, key[None, :], threshold)
            weight = tl.where(kept, weight * dropout_scale, 0.0)
        accumulator = accumulator * rescale[:, None]
        accumulator += tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        max_score = new_max
    fully_masked = denominator == 0.0
    out_tile = accumulator / tl.where(fully_masked, 1.0, denominator)[:, None]
    _store_tile(out + head * HEAD_DIM, row, heads * HEAD_DIM, exists, out_tile.to(q.dtype), HEAD_DIM, BLOCK_D)
    log_sum = tl.where(fully_masked, float("inf"), max_score + tl.log2(denominator))
    tl.store(log_sums + head * query_count + row, log_sum, mask=exists)


@triton.jit
def backward_queries(
    Q, K, V, out, grad_out, grad_q, log_sums, deltas, sequence_ids, cu_seqlens, key_cu_seqlens, seed,
    q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, grad_stride_t, query_count, heads, scale,
    threshold, dropout_scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = row < query_count
    first, last = _token_range(
        tl.minimum(row, query_count - 1), sequence_ids, cu_seqlens, key_cu_seqlens, CAUSAL, False
    )
    q = _load_tile(Q + head * q_stride_h, row, q_stride_t, exists, HEAD_DIM, BLOCK_D)
    grad_out_tile = _load_tile(grad_out + head * HEAD_DIM, row, heads * HEAD_DIM, exists, HEAD_DIM, BLOCK_D)
    out_tile = _load_tile(out + head * HEAD_DIM, row, heads * HEAD_DIM, exists, HEAD_DIM, BLOCK_D)
    delta = tl.sum(grad_out_tile.to(tl.float32) * out_tile.to(tl.float32), 1)
    tl.store(deltas + head * query_count + row, delta, mask=exists)
    log_sum = tl.load(log_sums + head * query_count + row, mask=exists, other=float("inf"))
    grad_q_tile = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    end = tl.max(last, 0)
    for start in range(tl.min(first, 0), end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = _load_tile(K + head * k_stride_h, key, k_stride_t, key < end, HEAD_DIM, BLOCK_D)
        v = _load_tile(V + head * v_stride_h, key, v_stride_t, key < end, HEAD_DIM, BLOCK_D)
        allowed = (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        weight = tl.where(allowed, tl.exp2(score - log_sum[:, None]), 0.0)
        grad_weight = tl.dot(grad_out_tile, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            kept = _dropout_keep(seed, row[:, None], head, heads, key[None, :], threshold)
            grad_weight = tl.where(kept, grad_weight * dropout_scale, 0.0)
        grad_score = weight * (grad_weight - delta[:, None])
        grad_q_tile += tl.dot(grad_score.to(k.dtype), k, input_precision=PRECISION)
    grad_q_tile = (grad_q_tile * scale).to(q.dtype)
    _store_tile(grad_q + head * HEAD_DIM, row, grad_stride_t, exists, grad_q_tile, HEAD_DIM, BLOCK_D)


@triton.jit
def backward_keys(
    Q, K, V, grad_out, grad_k, grad_v, log_sums, deltas, key_sequence_ids, key_cu_seqlens, cu_seqlens, seed,
    q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, grad_stride_t, query_count, key_count,
    heads, scale, threshold, dropout_scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    key = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    exists = key < key_count
    first, last = _token_range(
        tl.minimum(key, key_count - 1), key_sequence_ids, key_cu_seqlens, cu_seqlens, False, CAUSAL
    )
    k = _load_tile(K + head * k_stride_h, key, k_stride_t, exists, HEAD_DIM, BLOCK_D)
    v = _load_tile(V + head * v_stride_h, key, v_stride_t, exists, HEAD_DIM, BLOCK_D)
    grad_k_tile = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    grad_v_tile = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    end = tl.max(last, 0)
    for start in range(tl.min(first, 0), end, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        q = _load_tile(Q + head * q_stride_h, row, q_stride_t, row < end, HEAD_DIM, BLOCK_D)
        grad_out_tile = _load_tile(grad_out + head * HEAD_DIM, row, heads * HEAD_DIM, row < end, HEAD_DIM, BLOCK_D)
        log_sum = tl.load(log_sums + head * query_count + row, mask=row < end, other=float("inf"))
        delta = tl.load(deltas + head * query_count + row, mask=row < end, other=0.0)
        allowed = (row[None, :] >= first[:, None]) & (row[None, :] < last[:, None]) & exists[:, None]
        score = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * 1.4426950408889634)
        weight = tl.where(allowed, tl.exp2(score - log_sum[None, :]), 0.0)
        grad_weight = tl.dot(v, tl.trans(grad_out_tile), input_precision=PRECISION)
        dropped_weight = weight
        if DROPOUT:
            kept = _dropout_keep(seed, row[None, :], head, heads, key[:, None], threshold)
            dropped_weight = tl.where(kept, weight * dropout_scale, 0.0)
            grad_weight = tl.where(kept, grad_weight * dropout_scale, 0.0)
        grad_v_tile += tl.dot(dropped_weight.to(grad_out_tile.dtype), grad_out_tile, input_precision=PRECISION)
        grad_score = weight * (grad_weight - delta[None, :])
        grad_k_tile += tl.dot(grad_score.to(q.dtype), q, input_precision=PRECISION)
    grad_k_tile = (grad_k_tile * scale).to(k.dtype)
    _store_tile(grad_k + head * HEAD_DIM, key, grad_stride_t, exists, grad_k_tile, HEAD_DIM, BLOCK_D)
    _store_tile(grad_v + head * HEAD_DIM, key, grad_stride_t, exists, grad_v_tile.to(v.dtype), HEAD_DIM, BLOCK_D)
