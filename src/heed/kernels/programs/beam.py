"""A step of beam search on the GPU, in two programs; `kernels.triton_parts` calls them, `decoding.search` says why so.

`rank` looks at a block of words of one hypothesis: what softmax needs of it, and its best. `grow` joins the blocks of
all hypotheses of one sentence and does the rest. A sentence that is over is left alone.
"""

import triton
import triton.language as tl


@triton.jit
def rank(
    logits, bias, positions, over, longest, rules, highest, sums, values, words,
    size, blocks, pad_id, bos_id, eos_id,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, BEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The highest logit of a block, the sum of exponentials relative to it, and the best that the rules allow."""
    row, block = tl.program_id(0), tl.program_id(1)
    sentence = row // WIDTH
    if tl.load(over + sentence) != 0:
        return
    word = block * BLOCK + tl.arange(0, BLOCK)
    inside = word < size
    logit = tl.load(logits + row.to(tl.int64) * size + word, mask=inside, other=-float("inf")).to(tl.float32)
    if BIAS:
        logit += tl.load(bias + word, mask=inside, other=0.0).to(tl.float32)
    here = row * blocks + block
    high = tl.max(logit, 0)
    tl.store(highest + here, high)
    tl.store(sums + here, tl.sum(tl.exp(logit - high), 0))
    position = tl.load(positions + sentence)
    ends = word == eos_id
    may_end = position >= tl.load(rules)
    may_go_on = position < tl.load(longest + sentence)
    allowed = (ends & may_end) | ((word != eos_id) & may_go_on)
    allowed = allowed & (word != pad_id) & (word != bos_id) & (logit > -float("inf"))  # and a number
    value = tl.where(allowed, logit, -float("inf"))
    for place in range(BEST):
        best, first = tl.max(value, 0, return_indices=True)  # of equals, the first
        tl.store(values + here * BEST + place, best)
        tl.store(words + here * BEST + place, block * BLOCK + first)
        value = tl.where(tl.arange(0, BLOCK) == first, -float("inf"), value)


@triton.jit
def _first_best(total, key):
    """The highest total and the lowest key that has it."""
    best = tl.max(tl.max(total, 1), 0)
    return best, tl.min(tl.min(tl.where(total == best, key, 2147483647), 1), 0)


@triton.jit
def grow(  # noqa: PLR0915 - calls cost nothing here, but hand over tiles by the dozen
    highest, sums, values, words, ids, positions, over, longest, totals, scores, log_probs, order, lasts,
    tokens, parents, rows, penalties, rules, count, capacity, size, blocks, eos_id,
    WIDTH: tl.constexpr, BEST: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, CHOICES: tl.constexpr,
    TIMES: tl.constexpr,
):  # fmt: skip
    """One token more for one sentence: who ends, who lives on, whether it is over."""
    sentence = tl.program_id(0)
    if tl.load(over + sentence) != 0:
        return
    position = tl.load(positions + sentence)
    w = tl.arange(0, ROWS)
    exists = w < WIDTH
    own = sentence * WIDTH + w

    # All continuations that can matter: what each hypothesis has, and what each of its best words adds to it.
    block = tl.arange(0, BLOCKS)
    place, real = own[:, None] * blocks + block[None, :], exists[:, None] & (block[None, :] < blocks)
    high = tl.load(highest + place, mask=real, other=-float("inf"))
    top = tl.where(exists, tl.max(high, 1), 0.0)
    share = tl.load(sums + place, mask=real, other=0.0) * tl.exp(high - top[:, None])
    log_sum = top + tl.log(tl.where(exists, tl.sum(tl.where(real, share, 0.0), 1), 1.0))
    choice = tl.arange(0, CHOICES)
    place = own[:, None] * (blocks * BEST) + choice[None, :]
    real = exists[:, None] & (choice[None, :] < blocks * BEST)
    value = tl.load(values + place, mask=real, other=-float("inf"))
    word = tl.load(words + place, mask=real, other=0)
    before = tl.load(totals + own, mask=exists, other=-float("inf"))
    total = before[:, None] + (value - log_sum[:, None]).to(tl.float64)
    total = tl.where(total > -float("inf"), total, -float("inf"))  # what is not a number too
    key = w[:, None] * size + word

    # Those among the best that end are set aside, in the place of the worst if that is worse.
    penalty = tl.load(penalties + position + 1)
    ended_score = tl.load(scores + own, mask=exists, other=float("inf"))
    ended_value = tl.load(log_probs + own, mask=exists, other=0.0)
    ended_order = tl.load(order + own, mask=exists, other=0)
    ended_last = tl.load(lasts + own, mask=exists, other=0)
    left = total
    for place_of in range(WIDTH):
        best, first = _first_best(left, key)
        left = tl.where(key == first, -float("inf"), left)
        score, worst = best / penalty, tl.min(ended_score, 0)
        latest = tl.max(tl.where(ended_score == worst, ended_order, -1), 0)
        slot = tl.min(tl.where((ended_score == worst) & (ended_order == latest), w, ROWS), 0)
        put = w == tl.where((first % size == eos_id) & (score > worst), slot, ROWS)
        ended_score = tl.where(put, score, ended_score)
        ended_value = tl.where(put, best, ended_value)
        ended_order = tl.where(put, position * WIDTH + place_of, ended_order)
        ended_last = tl.where(put, first // size, ended_last)
    tl.debug_barrier()  # all threads have read what now changes
    tl.store(scores + own, ended_score, mask=exists)
    tl.store(log_probs + own, ended_value, mask=exists)
    tl.store(order + own, ended_order, mask=exists)
    tl.store(lasts + own, ended_last, mask=exists)

    # The best that do not end live on.
    left = tl.where(word == eos_id, -float("inf"), total)
    live = tl.full((ROWS,), -float("inf"), tl.float64)
    token = tl.zeros((ROWS,), tl.int32)
    parent = tl.zeros((ROWS,), tl.int32)
    for place_of in range(WIDTH):
        best, first = _first_best(left, key)
        left = tl.where(key == first, -float("inf"), left)
        live = tl.where(w == place_of, best, live)
        token = tl.where(w == place_of, first % size, token)
        parent = tl.where(w == place_of, first // size, parent)
    tl.store(totals + own, live, mask=exists)
    tl.store(ids + own, token, mask=exists)
    moment = (sentence * capacity + position) * WIDTH + w
    tl.store(tokens + moment, token, mask=exists)
    tl.store(parents + moment, parent, mask=exists)

    # Over: enough have ended, or nobody who lives can still win.
    best, worst = tl.max(live, 0), tl.min(ended_score, 0)
    last_penalty = tl.load(penalties + tl.load(longest + sentence) + 1)
    bound = best / tl.maximum(last_penalty, tl.load(penalties + position + 2))
    enough = tl.where(tl.load(rules + 1) != 0, worst > -float("inf"), bound <= worst) | (best == -float("inf"))
    tl.store(over + sentence, enough.to(tl.int32))
    tl.store(positions + sentence, tl.where(enough, position, position + 1))

    # Where each of them was at every time until now.
    if WIDTH > 1:
        origin = sentence * WIDTH + parent
        old = rows + ((position & 1) * count + origin) * capacity
        new = rows + (((position + 1) & 1) * count + own) * capacity
        for start in range(0, position + 1, TIMES):
            time = start + tl.arange(0, TIMES)
            earlier = exists[:, None] & (time[None, :] < position)
            row = tl.load(old[:, None] + time[None, :], mask=earlier, other=0)
            row = tl.where(time[None, :] == position, origin[:, None], row)
            tl.store(new[:, None] + time[None, :], row, mask=exists[:, None] & (time[None, :] <= position))
