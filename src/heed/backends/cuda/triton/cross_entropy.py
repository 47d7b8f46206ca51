"""Logits to loss and gradient, a token at a time; `cuda.loss` says how and why."""

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
