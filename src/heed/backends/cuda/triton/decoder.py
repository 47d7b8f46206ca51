"""Triton kernels of a decoder step between its matmuls: one program per row, or per head of a row.

A row is a hypothesis, `width` of them to a sentence. Everything is added up in float32, whatever is stored.
"""

import triton
import triton.language as tl


@triton.jit
def _normal(x, weight, bias, column, inside, size, eps):
    """A vector of `size` numbers, normalised."""
    from_mean = tl.where(inside, x - tl.sum(x, 0) / size, 0.0)
    normal = from_mean * tl.rsqrt(tl.sum(from_mean * from_mean, 0) / size + eps)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    return normal * scale + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def embed(
    ids, words, code, positions, weight, bias, stream, ready, scale, width, size, eps,
    CODE: tl.constexpr, NORM: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """A row's newest word as a vector, with its place; NORM: and normalised."""
    row = tl.program_id(0)
    column = tl.arange(0, ROOM)
    inside = column < size
    x = tl.load(words + tl.load(ids + row) * size + column, mask=inside, other=0.0).to(tl.float32) * scale
    if CODE:
        x += tl.load(code + tl.load(positions + row // width) * size + column, mask=inside, other=0.0)
    place = row * size + column
    tl.store(stream + place, x, mask=inside)
    if NORM:
        tl.store(ready + place, _normal(x, weight, bias, column, inside, size, eps), mask=inside)


@triton.jit
def add_residual_norm(
    X, Y, y_bias, outer_weight, outer_bias, weight, bias, stream, ready, size, eps,
    OUTER: tl.constexpr, POST: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """What a sub-layer found, added to the stream and normalised: in place of it (POST), or beside it."""
    column = tl.arange(0, ROOM)
    inside = column < size
    place = tl.program_id(0) * size + column
    y = tl.load(Y + place, mask=inside, other=0.0).to(tl.float32)
    y += tl.load(y_bias + column, mask=inside, other=0.0).to(tl.float32)
    if OUTER:
        y = _normal(y, outer_weight, outer_bias, column, inside, size, eps)
    x = tl.load(X + place, mask=inside, other=0.0).to(tl.float32) + y
    tl.store(ready + place, _normal(x, weight, bias, column, inside, size, eps), mask=inside)
    if not POST:
        tl.store(stream + place, x, mask=inside)


@triton.jit
def _head(x, bias, first, column, inside, cos, sin, TURN: tl.constexpr):
    """One head's part of a query or key; TURN: turned by its place's angles, number 2i with 2i + 1."""
    found = tl.load(x + first + column, mask=inside, other=0.0).to(tl.float32)
    found += tl.load(bias + first + column, mask=inside, other=0.0).to(tl.float32)
    if TURN:
        partner = tl.load(x + first + (column ^ 1), mask=inside, other=0.0).to(tl.float32)
        partner += tl.load(bias + first + (column ^ 1), mask=inside, other=0.0).to(tl.float32)
        sign = tl.where(column % 2 == 0, -1.0, 1.0)
        found = found * tl.load(cos + column // 2, mask=inside, other=0.0)
        found += sign * partner * tl.load(sin + column // 2, mask=inside, other=0.0)
    return found


@triton.jit
def self_attention(
    qkv, bias, keys, values, rows, positions, turns, found, count, heads, capacity, scale,
    WIDTH: tl.constexpr, TURN: tl.constexpr, SIZE: tl.constexpr, ROOM: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """Self-attention of one head of one row: its key and value join the past, and it looks at all of its own past.

    The key of time t lies in the row that the hypothesis was in then, which `rows` says: a beam is never reordered.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + row // WIDTH)
    all_heads = heads * SIZE
    column = tl.arange(0, ROOM)
    inside = column < SIZE
    ours = qkv + row * 3 * all_heads
    cos = turns + position * (SIZE // 2)
    sin = cos + capacity * (SIZE // 2)
    q = _head(ours, bias, head * SIZE, column, inside, cos, sin, TURN)
    k = _head(ours, bias, all_heads + head * SIZE, column, inside, cos, sin, TURN)
    v = _head(ours, bias, 2 * all_heads + head * SIZE, column, inside, cos, sin, False)
    here = (row.to(tl.int64) * capacity + position) * all_heads + head * SIZE + column
    k, v = k.to(keys.dtype.element_ty), v.to(values.dtype.element_ty)
    tl.store(keys + here, k, mask=inside)
    tl.store(values + here, v, mask=inside)
    q = q * (scale * 1.4426950408889634)
    highest = tl.sum(q * k.to(tl.float32), 0)
    total = 1.0
    gathered = v.to(tl.float32)
    line = rows + ((position & 1) * count + row) * capacity
    for start in range(0, position, TIMES):
        time = start + tl.arange(0, TIMES)
        past = time < position
        origin = row + tl.zeros((TIMES,), tl.int32)
        if WIDTH > 1:
            origin = tl.load(line + time, mask=past, other=0)
        there = (origin.to(tl.int64) * capacity + time) * all_heads + head * SIZE
        place, real = there[:, None] + column[None, :], past[:, None] & inside[None, :]
        earlier = tl.load(keys + place, mask=real, other=0.0).to(tl.float32)
        told = tl.load(values + place, mask=real, other=0.0).to(tl.float32)  # asked for while the keys are on their way
        score = tl.where(past, tl.sum(earlier * q[None, :], 1), -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 0))
        shrink, weight = tl.exp2(highest - higher), tl.exp2(score - higher)
        total = total * shrink + tl.sum(weight, 0)
        gathered = gathered * shrink + tl.sum(weight[:, None] * told, 0)
        highest = higher
    tl.store(found + row * all_heads + head * SIZE + column, gathered / total, mask=inside)


@triton.jit
def cross_attention(
    queries, bias, keys, values, lengths, found, heads, capacity, scale,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, ROOM: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Attention of one head of all of a sentence's hypotheses to the source, which is read once for all of them."""
    sentence, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + sentence)
    all_heads = heads * SIZE
    hypothesis = tl.arange(0, ROWS)
    column = tl.arange(0, ROOM)
    inside = column < SIZE
    place = (sentence * WIDTH + hypothesis)[:, None] * all_heads + head * SIZE + column[None, :]
    exists = (hypothesis < WIDTH)[:, None] & inside[None, :]
    q = tl.load(queries + place, mask=exists, other=0.0).to(tl.float32)
    q += tl.load(bias + head * SIZE + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    q = q.to(keys.dtype.element_ty)
    highest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    gathered = tl.zeros((ROWS, ROOM), tl.float32)
    first = sentence.to(tl.int64) * capacity * all_heads + head * SIZE
    for start in range(0, length, COLUMNS):
        token = start + tl.arange(0, COLUMNS)
        real = token < length
        there, both = first + token[:, None] * all_heads + column[None, :], real[:, None] & inside[None, :]
        k = tl.load(keys + there, mask=both, other=0.0)
        v = tl.load(values + there, mask=both, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        score = tl.where(real[None, :], score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        shrink, weight = tl.exp2(highest - higher), tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(weight, 1)
        gathered = gathered * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    tl.store(found + place, gathered / total[:, None], mask=exists)
