"""Triton kernels of training: cross-entropy with its gradient, layer norm and its backward pass, and column sums."""

import triton
import triton.language as tl


@triton.jit
def cross_entropy_gradient(logits, tgt_out, losses, vocab_size, pad_id, smoothing, BLOCK: tl.constexpr):
    """The label-smoothed cross-entropy of one token; its logits are overwritten by their gradient."""
    token = tl.program_id(0)
    row = logits + token.to(tl.int64) * vocab_size
    target = tl.load(tgt_out + token)
    max_logit, denominator, sum_of_logits = -float("inf"), 0.0, 0.0
    for start in range(0, vocab_size, BLOCK):
        token_id = start + tl.arange(0, BLOCK)
        logit = tl.load(row + token_id, mask=token_id < vocab_size, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(max_logit, tl.max(logit, 0))
        denominator = denominator * tl.exp(max_logit - new_max) + tl.sum(tl.exp(logit - new_max), 0)
        sum_of_logits += tl.sum(tl.where(token_id < vocab_size, logit, 0.0), 0)
        max_logit = new_max
    log_sum = max_logit + tl.log(denominator)
    is_token = tl.where(target == pad_id, 0.0, 1.0)
    target_logit = tl.load(row + target).to(tl.float32)
    loss = log_sum - (1 - smoothing) * target_logit - smoothing * sum_of_logits / vocab_size
    tl.store(losses + token, loss * is_token)
    tl.debug_barrier()
    for start in range(0, vocab_size, BLOCK):
        token_id = start + tl.arange(0, BLOCK)
        logit = tl.load(row + token_id, mask=token_id < vocab_size, other=0.0).to(tl.float32)
        target_probability = tl.where(token_id == target, 1 - smoothing, 0.0) + smoothing / vocab_size
        gradient = (tl.exp(logit - log_sum) - target_probability) * is_token
        tl.store(row + token_id, gradient, mask=token_id < vocab_size)


@triton.jit
def r_drop_gradient(logits, tgt_out, losses, vocab_size, pad_id, smoothing, weight, BLOCK: tl.constexpr):
    """The loss of one token in two passes with different dropout, P and Q, whose logits are overwritten by their
    gradient: half of the cross-entropies and of their divergence D = (KL(P, Q) + KL(Q, P)) / 2 times `weight`.

    With p the probabilities of P, d = log p - log q and k = KL(P, Q), the gradient of D is (p (1 + d - k) - q) / 2.
    """
    token = 2 * tl.program_id(0)
    p_row = logits + token.to(tl.int64) * vocab_size
    q_row = p_row + vocab_size
    target = tl.load(tgt_out + token)
    p_max, p_total, p_difference, p_sum = -float("inf"), 0.0, 0.0, 0.0
    q_max, q_total, q_difference, q_sum = -float("inf"), 0.0, 0.0, 0.0
    for start in range(0, vocab_size, BLOCK):
        token_id = start + tl.arange(0, BLOCK)
        exists = token_id < vocab_size
        p_logit = tl.load(p_row + token_id, mask=exists, other=0.0).to(tl.float32)
        q_logit = tl.load(q_row + token_id, mask=exists, other=0.0).to(tl.float32)
        difference = p_logit - q_logit
        p_sum, q_sum = p_sum + tl.sum(p_logit, 0), q_sum + tl.sum(q_logit, 0)
        p_logit, q_logit = tl.where(exists, p_logit, -float("inf")), tl.where(exists, q_logit, -float("inf"))
        p_new_max, q_new_max = tl.maximum(p_max, tl.max(p_logit, 0)), tl.maximum(q_max, tl.max(q_logit, 0))
        p_rescale, q_rescale = tl.exp(p_max - p_new_max), tl.exp(q_max - q_new_max)
        p_exp, q_exp = tl.exp(p_logit - p_new_max), tl.exp(q_logit - q_new_max)
        p_total, q_total = p_total * p_rescale + tl.sum(p_exp, 0), q_total * q_rescale + tl.sum(q_exp, 0)
        p_difference = p_difference * p_rescale + tl.sum(p_exp * difference, 0)
        q_difference = q_difference * q_rescale - tl.sum(q_exp * difference, 0)
        p_max, q_max = p_new_max, q_new_max
    p_log_sum, q_log_sum = p_max + tl.log(p_total), q_max + tl.log(q_total)
    p_kl = p_difference / p_total + q_log_sum - p_log_sum
    q_kl = q_difference / q_total + p_log_sum - q_log_sum
    uniform = smoothing / vocab_size
    is_token = tl.where(target == pad_id, 0.0, 1.0)
    target_logits = tl.load(p_row + target).to(tl.float32) + tl.load(q_row + target).to(tl.float32)
    cross_entropies = p_log_sum + q_log_sum - (1 - smoothing) * target_logits - uniform * (p_sum + q_sum)
    tl.store(losses + token, (cross_entropies + weight * (p_kl + q_kl) / 2) / 2 * is_token)
    tl.store(losses + token + 1, 0.0)
    tl.debug_barrier()
    for start in range(0, vocab_size, BLOCK):
        token_id = start + tl.arange(0, BLOCK)
        exists = token_id < vocab_size
        p_log = tl.load(p_row + token_id, mask=exists, other=0.0).to(tl.float32) - p_log_sum
        q_log = tl.load(q_row + token_id, mask=exists, other=0.0).to(tl.float32) - q_log_sum
        p, q, difference = tl.exp(p_log), tl.exp(q_log), p_log - q_log
        target_probability = tl.where(token_id == target, 1 - smoothing, 0.0) + uniform
        p_gradient = p - target_probability + weight / 2 * (p * (1 + difference - p_kl) - q)
        q_gradient = q - target_probability + weight / 2 * (q * (1 - difference - q_kl) - p)
        tl.store(p_row + token_id, p_gradient / 2 * is_token, mask=exists)
        tl.store(q_row + token_id, q_gradient / 2 * is_token, mask=exists)


@triton.jit
def layer_norm(X, weight, bias, output, count, width, eps, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """Each program normalises one tile of rows."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    in_bounds = column < width
    exists = (row < count)[:, None] & in_bounds[None, :]
    offset = row[:, None].to(tl.int64) * width + column[None, :]
    x = tl.load(X + offset, mask=exists, other=0.0).to(tl.float32)
    centered = tl.where(exists, x - (tl.sum(x, 1) / width)[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centered * centered, 1) / width + eps)
    scale = tl.load(weight + column, mask=in_bounds, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=in_bounds, other=0.0).to(tl.float32)
    tl.store(output + offset, centered * rstd[:, None] * scale[None, :] + shift[None, :], mask=exists)


@triton.jit
def layer_norm_backward(
    X, grad_out, weight, grad_x, sums, count, width, eps, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Each program processes every n-th tile of rows and stores its partial sums of the weight and bias gradients,
    one after the other in its row of `sums`."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK_D)
    in_bounds = column < width
    scale = tl.load(weight + column, mask=in_bounds, other=0.0).to(tl.float32)
    grad_weight_sum = tl.zeros((BLOCK_D,), tl.float32)
    grad_bias_sum = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(program * BLOCK_M, count, tl.num_programs(0) * BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        offset = row[:, None].to(tl.int64) * width + column[None, :]
        exists = (row < count)[:, None] & in_bounds[None, :]
        x = tl.load(X + offset, mask=exists, other=0.0).to(tl.float32)
        grad_out_tile = tl.load(grad_out + offset, mask=exists, other=0.0).to(tl.float32)
        centered = tl.where(exists, x - (tl.sum(x, 1) / width)[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(centered * centered, 1) / width + eps)
        normalized = centered * rstd[:, None]
        grad_weight_sum += tl.sum(grad_out_tile * normalized, 0)
        grad_bias_sum += tl.sum(grad_out_tile, 0)
        grad_normalized = grad_out_tile * scale[None, :]
        mean_grad, mean_grad_normalized = (
            tl.sum(grad_normalized, 1) / width,
            tl.sum(grad_normalized * normalized, 1) / width,
        )
        gradient = (grad_normalized - mean_grad[:, None] - normalized * mean_grad_normalized[:, None]) * rstd[:, None]
        tl.store(grad_x + offset, gradient, mask=exists)
    tl.store(sums + 2 * program * width + column, grad_weight_sum, mask=in_bounds)
    tl.store(sums + (2 * program + 1) * width + column, grad_bias_sum, mask=in_bounds)


@triton.jit
def column_sums(X, sums, count, width, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Each program adds up every n-th tile of rows of its columns and stores the sums in its row of `sums`."""
    program = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    in_bounds = column < width
    total = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(program * BLOCK_M, count, tl.num_programs(0) * BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        offset = row[:, None].to(tl.int64) * width + column[None, :]
        tile = tl.load(X + offset, mask=(row < count)[:, None] & in_bounds[None, :], other=0.0)
        total += tl.sum(tile.to(tl.float32), 0)
    tl.store(sums + program * width + column, total, mask=in_bounds)
