"""Triton programs for training: logits to loss and gradient (`cuda.loss`), a norm backward (`cuda.layer_norm`)."""

import triton
import triton.language as tl


@triton.jit
def to_gradient(logits, tgt_out, losses, words, pad_id, smoothing, BLOCK: tl.constexpr):
    """One token: its loss, and its logits turned into the gradient of the loss by them."""
    token = tl.program_id(0)
    row = logits + token.to(tl.int64) * words
    right = tl.load(tgt_out + token)
    highest, total, sum_of_logits = -float("inf"), 0.0, 0.0
    for start in range(0, words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        logit = tl.load(row + word, mask=word < words, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(logit, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(logit - higher), 0)
        sum_of_logits += tl.sum(tl.where(word < words, logit, 0.0), 0)
        highest = higher
    log_total = highest + tl.log(total)
    counts = tl.where(right == pad_id, 0.0, 1.0)
    sure = tl.load(row + right).to(tl.float32)
    loss = log_total - (1 - smoothing) * sure - smoothing * sum_of_logits / words
    tl.store(losses + token, loss * counts)
    tl.debug_barrier()
    for start in range(0, words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        logit = tl.load(row + word, mask=word < words, other=0.0).to(tl.float32)
        wanted = tl.where(word == right, 1 - smoothing, 0.0) + smoothing / words
        gradient = (tl.exp(logit - log_total) - wanted) * counts
        tl.store(row + word, gradient, mask=word < words)


@triton.jit
def backward(
    X, above, weight, by_x, by_weight, by_bias, count, width, eps, ROOM: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Every program takes each so-manieth tile of rows, and leaves its share of the sums over all rows."""
    program = tl.program_id(0)
    column = tl.arange(0, ROOM)
    inside = column < width
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    sum_by_weight = tl.zeros((ROOM,), tl.float32)
    sum_by_bias = tl.zeros((ROOM,), tl.float32)
    for start in range(program * ROWS, count, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        place = row[:, None].to(tl.int64) * width + column[None, :]
        here = (row < count)[:, None] & inside[None, :]
        x = tl.load(X + place, mask=here, other=0.0).to(tl.float32)
        up = tl.load(above + place, mask=here, other=0.0).to(tl.float32)
        from_mean = tl.where(here, x - (tl.sum(x, 1) / width)[:, None], 0.0)
        steepness = tl.rsqrt(tl.sum(from_mean * from_mean, 1) / width + eps)
        normal = from_mean * steepness[:, None]
        sum_by_weight += tl.sum(up * normal, 0)
        sum_by_bias += tl.sum(up, 0)
        scaled = up * scale[None, :]
        along_ones, along_normal = tl.sum(scaled, 1) / width, tl.sum(scaled * normal, 1) / width
        gradient = (scaled - along_ones[:, None] - normal * along_normal[:, None]) * steepness[:, None]
        tl.store(by_x + place, gradient, mask=here)
    tl.store(by_weight + program * width + column, sum_by_weight, mask=inside)
    tl.store(by_bias + program * width + column, sum_by_bias, mask=inside)
