"""Attention between packed sentences, tile by tile; `cuda.attention` says how and why.

Names: Q, K and V as in the paper; `above` is the gradient of what was gathered; `by_x` is the gradient of x, `by_token`
from one token's to the next. Scores are kept to base 2, where exponentials are cheaper.
"""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    """A hash of 32 bits; tests of `dropped` say how well it mixes."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _kept(seed, query, head, heads, key, threshold):
    """Whether dropout leaves the weight of a query for a key."""
    row = _mix((tl.load(seed) + query * heads + head).to(tl.uint32))
    return _mix(row + key.to(tl.uint32)) >= threshold.to(tl.uint32)


@triton.jit
def _run(tokens, owners, offsets, other_offsets, EARLIER: tl.constexpr, LATER: tl.constexpr):
    """The run of tokens on the other side that each token meets, its end not included.

    EARLIER: only those up to itself; LATER: only those from itself on.
    """
    owner = tl.load(owners + tokens)
    first = tl.load(other_offsets + owner)
    last = tl.load(other_offsets + owner + 1)
    if EARLIER:
        last = tl.minimum(last, first + tokens - tl.load(offsets + owner) + 1)
    if LATER:
        first += tokens - tl.load(offsets + owner)
    return first.to(tl.int32), last.to(tl.int32)


@triton.jit
def _tile(x, tokens, stride, exists, WIDTH: tl.constexpr, ROOM: tl.constexpr):
    """The vectors of some tokens, one head each; zeros where there is none."""
    column = tl.arange(0, ROOM)
    place = x + tokens[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(place, mask=exists[:, None] & (column[None, :] < WIDTH), other=0.0)


@triton.jit
def _put(x, tokens, stride, exists, tile, WIDTH: tl.constexpr, ROOM: tl.constexpr):
    column = tl.arange(0, ROOM)
    place = x + tokens[:, None].to(tl.int64) * stride + column[None, :]
    tl.store(place, tile, mask=exists[:, None] & (column[None, :] < WIDTH))


@triton.jit
def forward(
    Q, K, V, gathered, sums, owners, offsets, key_offsets, seed,
    q_token, q_head, k_token, k_head, v_token, v_head, count, heads, scale, threshold, boost,
    WIDTH: tl.constexpr, ROOM: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < count
    first, last = _run(tl.minimum(row, count - 1), owners, offsets, key_offsets, CAUSAL, False)
    q = _tile(Q + head * q_head, row, q_token, exists, WIDTH, ROOM)
    highest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sum_of_values = tl.zeros((ROWS, ROOM), tl.float32)
    end = tl.max(last, 0)
    for start in range(tl.min(first, 0), end, COLUMNS):
        key = start + tl.arange(0, COLUMNS)
        k = _tile(K + head * k_head, key, k_token, key < end, WIDTH, ROOM)
        v = _tile(V + head * v_head, key, v_token, key < end, WIDTH, ROOM)
        seen = (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        score = tl.where(seen, score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        level = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp2(score - level[:, None])
        shrink = tl.exp2(highest - level)
        total = total * shrink + tl.sum(weight, 1)
        if DROP:
            kept = _kept(seed, row[:, None], head, heads, key[None, :], threshold)
            weight = tl.where(kept, weight * boost, 0.0)
        sum_of_values = sum_of_values * shrink[:, None]
        sum_of_values += tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    nothing = total == 0.0
    result = sum_of_values / tl.where(nothing, 1.0, total)[:, None]
    _put(gathered + head * WIDTH, row, heads * WIDTH, exists, result.to(q.dtype), WIDTH, ROOM)
    log_total = tl.where(nothing, float("inf"), highest + tl.log2(total))
    tl.store(sums + head * count + row, log_total, mask=exists)


@triton.jit
def backward_queries(
    Q, K, V, gathered, above, by_queries, sums, products, owners, offsets, key_offsets, seed,
    q_token, q_head, k_token, k_head, v_token, v_head, by_token, count, heads, scale, threshold, boost,
    WIDTH: tl.constexpr, ROOM: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < count
    first, last = _run(tl.minimum(row, count - 1), owners, offsets, key_offsets, CAUSAL, False)
    q = _tile(Q + head * q_head, row, q_token, exists, WIDTH, ROOM)
    up = _tile(above + head * WIDTH, row, heads * WIDTH, exists, WIDTH, ROOM)
    result = _tile(gathered + head * WIDTH, row, heads * WIDTH, exists, WIDTH, ROOM)
    product = tl.sum(up.to(tl.float32) * result.to(tl.float32), 1)
    tl.store(products + head * count + row, product, mask=exists)
    log_total = tl.load(sums + head * count + row, mask=exists, other=float("inf"))
    gradient = tl.zeros((ROWS, ROOM), tl.float32)
    end = tl.max(last, 0)
    for start in range(tl.min(first, 0), end, COLUMNS):
        key = start + tl.arange(0, COLUMNS)
        k = _tile(K + head * k_head, key, k_token, key < end, WIDTH, ROOM)
        v = _tile(V + head * v_head, key, v_token, key < end, WIDTH, ROOM)
        seen = (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        weight = tl.where(seen, tl.exp2(score - log_total[:, None]), 0.0)
        by_weight = tl.dot(up, tl.trans(v), input_precision=PRECISION)
        if DROP:
            kept = _kept(seed, row[:, None], head, heads, key[None, :], threshold)
            by_weight = tl.where(kept, by_weight * boost, 0.0)
        by_score = weight * (by_weight - product[:, None])
        gradient += tl.dot(by_score.to(k.dtype), k, input_precision=PRECISION)
    gradient = (gradient * scale).to(q.dtype)
    _put(by_queries + head * WIDTH, row, by_token, exists, gradient, WIDTH, ROOM)


@triton.jit
def backward_keys(
    Q, K, V, above, by_keys, by_values, sums, products, key_owners, key_offsets, offsets, seed,
    q_token, q_head, k_token, k_head, v_token, v_head, by_token, count, key_count, heads, scale, threshold, boost,
    WIDTH: tl.constexpr, ROOM: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    key = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exists = key < key_count
    first, last = _run(tl.minimum(key, key_count - 1), key_owners, key_offsets, offsets, False, CAUSAL)
    k = _tile(K + head * k_head, key, k_token, exists, WIDTH, ROOM)
    v = _tile(V + head * v_head, key, v_token, exists, WIDTH, ROOM)
    by_key = tl.zeros((COLUMNS, ROOM), tl.float32)
    by_value = tl.zeros((COLUMNS, ROOM), tl.float32)
    end = tl.max(last, 0)
    for start in range(tl.min(first, 0), end, ROWS):
        row = start + tl.arange(0, ROWS)
        q = _tile(Q + head * q_head, row, q_token, row < end, WIDTH, ROOM)
        up = _tile(above + head * WIDTH, row, heads * WIDTH, row < end, WIDTH, ROOM)
        log_total = tl.load(sums + head * count + row, mask=row < end, other=float("inf"))
        product = tl.load(products + head * count + row, mask=row < end, other=0.0)
        seen = (row[None, :] >= first[:, None]) & (row[None, :] < last[:, None]) & exists[:, None]
        score = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * 1.4426950408889634)
        weight = tl.where(seen, tl.exp2(score - log_total[None, :]), 0.0)
        by_weight = tl.dot(v, tl.trans(up), input_precision=PRECISION)
        left = weight
        if DROP:
            kept = _kept(seed, row[None, :], head, heads, key[:, None], threshold)
            left = tl.where(kept, weight * boost, 0.0)
            by_weight = tl.where(kept, by_weight * boost, 0.0)
        by_value += tl.dot(left.to(up.dtype), up, input_precision=PRECISION)
        by_score = weight * (by_weight - product[None, :])
        by_key += tl.dot(by_score.to(q.dtype), q, input_precision=PRECISION)
    by_key = (by_key * scale).to(k.dtype)
    _put(by_keys + head * WIDTH, key, by_token, exists, by_key, WIDTH, ROOM)
    _put(by_values + head * WIDTH, key, by_token, exists, by_value.to(v.dtype), WIDTH, ROOM)
