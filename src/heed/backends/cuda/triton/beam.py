"""Triton kernels of a beam step; the reference is `beam_search` in `decoding/search.py`.

`scan` reads the vocabulary in blocks and stores for each block of a row what softmax needs and the best allowed logit.
`pick` finds the top k tokens of a row by reading only the blocks with the best logits. `expand` ranks the candidates of
one sentence, sets finished hypotheses aside and continues the others. Finished sentences are skipped.
"""

import triton
import triton.language as tl


@triton.jit
def _allowed(logit, token_id, sentence, positions, max_lengths, rules, pad_id, bos_id, eos_id):
    """The logits of tokens that may come next; -inf for all others and for NaN."""
    position = tl.load(positions + sentence)
    may_end = position >= tl.load(rules)
    may_continue = position < tl.load(max_lengths + sentence)
    allowed = ((token_id == eos_id) & may_end) | ((token_id != eos_id) & may_continue)
    allowed = allowed & (token_id != pad_id) & (token_id != bos_id) & (logit > -float("inf"))
    return tl.where(allowed, logit, -float("inf"))


@triton.jit
def _logits(logits, bias, row, token_id, vocab_size, BIAS: tl.constexpr):
    inside = token_id < vocab_size
    logit = tl.load(logits + row.to(tl.int64) * vocab_size + token_id, mask=inside, other=-float("inf")).to(tl.float32)
    if BIAS:
        logit += tl.load(bias + token_id, mask=inside, other=0.0).to(tl.float32)
    return logit


@triton.jit
def _finite_max(high):
    """The maximum to subtract before exp; 0 where all logits are -inf."""
    return tl.where(high == -float("inf"), 0.0, high)


@triton.jit
def _ranks_after(value, token_id, last_value, last_token):
    """Whether a token ranks after another: by value, of equals the lower id first."""
    return (value < last_value) | ((value == last_value) & (token_id > last_token))


@triton.jit
def scan(
    logits, bias, positions, finished, max_lengths, rules, block_max, sums, block_best, block_best_non_eos,
    vocab_size, blocks, pad_id, bos_id, eos_id,
    BEAM: tl.constexpr, BIAS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """For some blocks: the highest logit, the sum of exponentials relative to it, and the best allowed logit.

    At the length limit also the best logit except eos, which tells whether the model would continue.
    """
    row = tl.program_id(0)
    sentence = row // BEAM
    if tl.load(finished + sentence) != 0:
        return
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    token_id = block[:, None] * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
    logit = _logits(logits, bias, row, token_id, vocab_size, BIAS)
    block_offset, exists_block = row * blocks + block, block < blocks
    high = tl.max(logit, 1)
    tl.store(block_max + block_offset, high, mask=exists_block)
    tl.store(sums + block_offset, tl.sum(tl.exp(logit - _finite_max(high)[:, None]), 1), mask=exists_block)
    first_token = tl.program_id(1) * BLOCKS * BLOCK_SIZE
    last_id = tl.maximum(tl.maximum(pad_id, bos_id), eos_id)
    at_limit = tl.load(positions + sentence) >= tl.load(max_lengths + sentence)
    if (first_token <= last_id) | at_limit:
        high = tl.max(_allowed(logit, token_id, sentence, positions, max_lengths, rules, pad_id, bos_id, eos_id), 1)
    tl.store(block_best + block_offset, high, mask=exists_block)  # most blocks hold no special token
    if at_limit:
        other = (token_id != pad_id) & (token_id != bos_id) & (token_id != eos_id)
        tl.store(block_best_non_eos + block_offset, tl.max(tl.where(other, logit, -float("inf")), 1), mask=exists_block)


@triton.jit
def pick(
    logits, bias, positions, finished, max_lengths, rules, block_max, sums, block_best, block_best_non_eos, log_sums,
    values, token_ids, prefers_to_continue,
    vocab_size, blocks, pad_id, bos_id, eos_id,
    BEAM: tl.constexpr, BIAS: tl.constexpr, TOP_K: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The log-sum-exp of one hypothesis and its top k tokens, best first.

    At the length limit also whether the model prefers another token to eos.
    """
    row = tl.program_id(0)
    sentence = row // BEAM
    if tl.load(finished + sentence) != 0:
        return
    block = tl.arange(0, BLOCKS)
    high = tl.load(block_max + row * blocks + block, mask=block < blocks, other=-float("inf"))
    block_sum = tl.load(sums + row * blocks + block, mask=block < blocks, other=0.0)
    top = tl.max(high, 0)
    tl.store(log_sums + row, top + tl.log(tl.sum(block_sum * tl.exp(high - _finite_max(top)), 0)))
    if tl.load(positions + sentence) >= tl.load(max_lengths + sentence):
        other = tl.max(tl.load(block_best_non_eos + row * blocks + block, mask=block < blocks, other=-float("inf")), 0)
        tl.store(prefers_to_continue + row, (other > _logits(logits, bias, row, eos_id, vocab_size, BIAS)).to(tl.int32))
    best_of = tl.load(block_best + row * blocks + block, mask=block < blocks, other=-float("inf"))
    last_value, last_token = tl.full((), float("inf"), tl.float32), tl.full((), -1, tl.int32)
    for rank in range(TOP_K):
        best, first = tl.max(best_of, 0, return_indices=True)  # of equals, the first
        token_id = first * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        logit = _logits(logits, bias, row, token_id, vocab_size, BIAS)
        value = _allowed(logit, token_id, sentence, positions, max_lengths, rules, pad_id, bos_id, eos_id)
        chosen = tl.min(
            tl.where(_ranks_after(value, token_id, last_value, last_token) & (value == best), token_id, vocab_size), 0
        )
        tl.store(values + row * TOP_K + rank, best)
        tl.store(token_ids + row * TOP_K + rank, tl.minimum(chosen, vocab_size - 1))
        remaining = tl.where(_ranks_after(value, token_id, best, chosen), value, -float("inf"))
        best_of = tl.where(block == first, tl.max(remaining, 0), best_of)
        last_value, last_token = best, chosen


@triton.jit
def _first_best(total, key):
    """The highest total and the lowest key that has it."""
    best = tl.max(tl.max(total, 1), 0)
    return best, tl.min(tl.min(tl.where(total == best, key, 2147483647), 1), 0)


@triton.jit
def _finish_hypotheses(
    total, key, prefers_continue, position, penalty, beam_rows, w, exists, scores, log_probs, order, last_rows,
    truncated, vocab_size, eos_id,
    BEAM: tl.constexpr, BEAM_BLOCK: tl.constexpr,
):  # fmt: skip
    """Let candidates among the best W that end with eos replace the worst finished ones; the worst score after that."""
    ended_score = tl.load(scores + beam_rows, mask=exists, other=float("inf"))
    ended_value = tl.load(log_probs + beam_rows, mask=exists, other=0.0)
    ended_order = tl.load(order + beam_rows, mask=exists, other=0)
    ended_last = tl.load(last_rows + beam_rows, mask=exists, other=0)
    ended_cut = tl.load(truncated + beam_rows, mask=exists, other=0)
    remaining = total
    for rank in range(BEAM):
        best, first = _first_best(remaining, key)
        remaining = tl.where(key == first, -float("inf"), remaining)
        score, worst = best / penalty, tl.min(ended_score, 0)
        latest = tl.max(tl.where(ended_score == worst, ended_order, -1), 0)
        slot = tl.min(tl.where((ended_score == worst) & (ended_order == latest), w, BEAM_BLOCK), 0)
        replaces = w == tl.where((first % vocab_size == eos_id) & (score > worst), slot, BEAM_BLOCK)
        ended_score = tl.where(replaces, score, ended_score)
        ended_value = tl.where(replaces, best, ended_value)
        ended_order = tl.where(replaces, position * BEAM + rank, ended_order)
        ended_last = tl.where(replaces, first // vocab_size, ended_last)
        ended_cut = tl.where(replaces, tl.sum(tl.where(w == first // vocab_size, prefers_continue, 0), 0), ended_cut)
    tl.debug_barrier()  # all threads have read what is now overwritten
    tl.store(scores + beam_rows, ended_score, mask=exists)
    tl.store(log_probs + beam_rows, ended_value, mask=exists)
    tl.store(order + beam_rows, ended_order, mask=exists)
    tl.store(last_rows + beam_rows, ended_last, mask=exists)
    tl.store(truncated + beam_rows, ended_cut, mask=exists)
    return tl.min(ended_score, 0)


@triton.jit
def _continue_hypotheses(total, token_id, key, w, vocab_size, eos_id, BEAM: tl.constexpr, BEAM_BLOCK: tl.constexpr):
    """The best W candidates that do not end: their scores, newest tokens and parents."""
    remaining = tl.where(token_id == eos_id, -float("inf"), total)
    live_score = tl.full((BEAM_BLOCK,), -float("inf"), tl.float64)
    token = tl.zeros((BEAM_BLOCK,), tl.int32)
    parent = tl.zeros((BEAM_BLOCK,), tl.int32)
    for rank in range(BEAM):
        best, first = _first_best(remaining, key)
        remaining = tl.where(key == first, -float("inf"), remaining)
        live_score = tl.where(w == rank, best, live_score)
        token = tl.where(w == rank, first % vocab_size, token)
        parent = tl.where(w == rank, first // vocab_size, parent)
    return live_score, token, parent


@triton.jit
def _update_kv_rows(kv_rows, parent_rows, beam_rows, exists, position, count, capacity, BLOCK_T: tl.constexpr):
    """Copy each parent's row indices into the KV cache, and add the row of the newest position."""
    old = kv_rows + ((position & 1) * count + parent_rows) * capacity
    new = kv_rows + (((position + 1) & 1) * count + beam_rows) * capacity
    for start in range(0, position + 1, BLOCK_T):
        position_tile = start + tl.arange(0, BLOCK_T)
        is_past = exists[:, None] & (position_tile[None, :] < position)
        row = tl.load(old[:, None] + position_tile[None, :], mask=is_past, other=0)
        row = tl.where(position_tile[None, :] == position, parent_rows[:, None], row)
        tl.store(
            new[:, None] + position_tile[None, :], row, mask=exists[:, None] & (position_tile[None, :] <= position)
        )


@triton.jit
def expand(
    log_sums, values, token_ids, prefers_to_continue, ids, sentences, sums, ended, history, kv_rows, penalties, rules,
    count, capacity,
    vocab_size, eos_id, BEAM: tl.constexpr, TOP_K: tl.constexpr, BEAM_BLOCK: tl.constexpr, CANDIDATES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Advance one sentence by a token: finished hypotheses, continued ones, and whether the search has ended."""
    sentence, slots = tl.program_id(0), count // BEAM
    positions, finished, max_lengths = sentences, sentences + slots, sentences + 2 * slots
    beam_scores, tokens, parents = sums, history, history + count * capacity
    if tl.load(finished + sentence) != 0:
        return
    position, limit = tl.load(positions + sentence), tl.load(max_lengths + sentence)
    w = tl.arange(0, BEAM_BLOCK)
    exists = w < BEAM
    beam_rows = sentence * BEAM + w

    # Candidates: each hypothesis with each of its top k tokens.
    candidate = tl.arange(0, CANDIDATES)
    offset, is_candidate = (
        beam_rows[:, None] * TOP_K + candidate[None, :],
        exists[:, None] & (candidate[None, :] < TOP_K),
    )
    value = tl.load(values + offset, mask=is_candidate, other=-float("inf"))
    token_id = tl.load(token_ids + offset, mask=is_candidate, other=0)
    log_sum = tl.load(log_sums + beam_rows, mask=exists, other=0.0)
    total = tl.load(beam_scores + beam_rows, mask=exists, other=-float("inf"))[:, None] + (value - log_sum[:, None]).to(
        tl.float64
    )
    total = tl.where(total > -float("inf"), total, -float("inf"))  # NaN too
    key = w[:, None] * vocab_size + token_id

    at_limit = w < tl.where(position >= limit, BEAM, 0)
    prefers_continue = tl.load(prefers_to_continue + beam_rows, mask=at_limit, other=0)
    worst = _finish_hypotheses(
        total, key, prefers_continue, position, tl.load(penalties + position + 1), beam_rows, w, exists, sums + count,
        sums + 2 * count,
        ended, ended + count, ended + 2 * count, vocab_size, eos_id, BEAM, BEAM_BLOCK,
    )  # fmt: skip
    live_score, token, parent = _continue_hypotheses(total, token_id, key, w, vocab_size, eos_id, BEAM, BEAM_BLOCK)
    tl.store(beam_scores + beam_rows, live_score, mask=exists)
    tl.store(ids + beam_rows, token, mask=exists)
    history_offset = (sentence * capacity + position) * BEAM + w
    tl.store(tokens + history_offset, token, mask=exists)
    tl.store(parents + history_offset, parent, mask=exists)

    # The sentence is finished when enough hypotheses are, or when no live one can still win.
    best = tl.max(live_score, 0)
    bound = best / tl.maximum(tl.load(penalties + limit + 1), tl.load(penalties + position + 2))
    enough = tl.where(tl.load(rules + 1) != 0, worst > -float("inf"), bound <= worst) | (best == -float("inf"))
    tl.store(finished + sentence, enough.to(tl.int32))
    tl.store(positions + sentence, tl.where(enough, position, position + 1))
    if BEAM > 1:
        _update_kv_rows(kv_rows, sentence * BEAM + parent, beam_rows, exists, position, count, capacity, BLOCK_T)
