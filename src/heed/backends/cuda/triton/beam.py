"""A step of beam search on a GPU, in three programs; `cuda.triton_ops` calls them, `decoding.search` says why so.

`scan` looks at a block of words of one hypothesis, run by run: what softmax needs of each run, and the best that may be
said. `pick` finds the best words of a hypothesis, which are in the runs with the best bests, and reads those alone.
`expand` does the rest for one sentence. A sentence that is over is left alone.
"""

import triton
import triton.language as tl


@triton.jit
def _allowed(logit, word, sentence, positions, longest, rules, pad_id, bos_id, eos_id):
    """The logits of words that may come next, -inf for the others and for what is not a number."""
    position = tl.load(positions + sentence)
    may_end = position >= tl.load(rules)
    may_go_on = position < tl.load(longest + sentence)
    allowed = ((word == eos_id) & may_end) | ((word != eos_id) & may_go_on)
    allowed = allowed & (word != pad_id) & (word != bos_id) & (logit > -float("inf"))
    return tl.where(allowed, logit, -float("inf"))


@triton.jit
def _logits(logits, bias, row, word, size, BIAS: tl.constexpr):
    inside = word < size
    logit = tl.load(logits + row.to(tl.int64) * size + word, mask=inside, other=-float("inf")).to(tl.float32)
    if BIAS:
        logit += tl.load(bias + word, mask=inside, other=0.0).to(tl.float32)
    return logit


@triton.jit
def _finite(high):
    """What to subtract before exponentials are taken: there may be nothing to subtract from."""
    return tl.where(high == -float("inf"), 0.0, high)


@triton.jit
def _follows(value, word, last_value, last_word):
    """Whether a word comes after another in order: of equals, the lower number comes first."""
    return (value < last_value) | ((value == last_value) & (word > last_word))


@triton.jit
def scan(
    logits, bias, positions, over, longest, rules, highest, sums, bests, others, size, runs, pad_id, bos_id, eos_id,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Of some runs: the highest logit, the sum of exponentials relative to it, and the best that the rules allow.

    At the length limit also the best but the eos: whether the model would go on.
    """
    row = tl.program_id(0)
    sentence = row // WIDTH
    if tl.load(over + sentence) != 0:
        return
    run = tl.program_id(1) * RUNS + tl.arange(0, RUNS)
    word = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
    logit = _logits(logits, bias, row, word, size, BIAS)
    here, real = row * runs + run, run < runs
    high = tl.max(logit, 1)
    tl.store(highest + here, high, mask=real)
    tl.store(sums + here, tl.sum(tl.exp(logit - _finite(high)[:, None]), 1), mask=real)
    words = tl.program_id(1) * RUNS * RUN
    last_id = tl.maximum(tl.maximum(pad_id, bos_id), eos_id)
    at_limit = tl.load(positions + sentence) >= tl.load(longest + sentence)
    if (words <= last_id) | at_limit:
        high = tl.max(_allowed(logit, word, sentence, positions, longest, rules, pad_id, bos_id, eos_id), 1)
    tl.store(bests + here, high, mask=real)  # most blocks hold no word that rules are about
    if at_limit:
        other = (word != pad_id) & (word != bos_id) & (word != eos_id)
        tl.store(others + here, tl.max(tl.where(other, logit, -float("inf")), 1), mask=real)


@triton.jit
def pick(
    logits, bias, positions, over, longest, rules, highest, sums, bests, others, log_sums, values, words, cut_off,
    size, runs, pad_id, bos_id, eos_id,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, BEST: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """The logarithm of one hypothesis's sum of exponentials, and its best words, best first.

    At the length limit also whether the model would rather go on than end.
    """
    row = tl.program_id(0)
    sentence = row // WIDTH
    if tl.load(over + sentence) != 0:
        return
    run = tl.arange(0, RUNS)
    high = tl.load(highest + row * runs + run, mask=run < runs, other=-float("inf"))
    share = tl.load(sums + row * runs + run, mask=run < runs, other=0.0)
    top = tl.max(high, 0)
    tl.store(log_sums + row, top + tl.log(tl.sum(share * tl.exp(high - _finite(top)), 0)))
    if tl.load(positions + sentence) >= tl.load(longest + sentence):
        other = tl.max(tl.load(others + row * runs + run, mask=run < runs, other=-float("inf")), 0)
        tl.store(cut_off + row, (other > _logits(logits, bias, row, eos_id, size, BIAS)).to(tl.int32))
    best_of = tl.load(bests + row * runs + run, mask=run < runs, other=-float("inf"))
    last_value, last_word = tl.full((), float("inf"), tl.float32), tl.full((), -1, tl.int32)
    for place in range(BEST):
        best, first = tl.max(best_of, 0, return_indices=True)  # of equals, the first
        word = first * RUN + tl.arange(0, RUN)
        logit = _logits(logits, bias, row, word, size, BIAS)
        value = _allowed(logit, word, sentence, positions, longest, rules, pad_id, bos_id, eos_id)
        chosen = tl.min(tl.where(_follows(value, word, last_value, last_word) & (value == best), word, size), 0)
        tl.store(values + row * BEST + place, best)
        tl.store(words + row * BEST + place, tl.minimum(chosen, size - 1))
        left = tl.where(_follows(value, word, best, chosen), value, -float("inf"))
        best_of = tl.where(run == first, tl.max(left, 0), best_of)
        last_value, last_word = best, chosen


@triton.jit
def _first_best(total, key):
    """The highest total and the lowest key that has it."""
    best = tl.max(tl.max(total, 1), 0)
    return best, tl.min(tl.min(tl.where(total == best, key, 2147483647), 1), 0)


@triton.jit
def _set_aside(
    total, key, cut, position, penalty, own, w, exists, scores, log_probs, order, lasts, truncated, size, eos_id,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Those among the best W that end take the place of the worst that has ended, if that is worse: the worst now."""
    ended_score = tl.load(scores + own, mask=exists, other=float("inf"))
    ended_value = tl.load(log_probs + own, mask=exists, other=0.0)
    ended_order = tl.load(order + own, mask=exists, other=0)
    ended_last = tl.load(lasts + own, mask=exists, other=0)
    ended_cut = tl.load(truncated + own, mask=exists, other=0)
    left = total
    for place in range(WIDTH):
        best, first = _first_best(left, key)
        left = tl.where(key == first, -float("inf"), left)
        score, worst = best / penalty, tl.min(ended_score, 0)
        latest = tl.max(tl.where(ended_score == worst, ended_order, -1), 0)
        slot = tl.min(tl.where((ended_score == worst) & (ended_order == latest), w, ROWS), 0)
        put = w == tl.where((first % size == eos_id) & (score > worst), slot, ROWS)
        ended_score = tl.where(put, score, ended_score)
        ended_value = tl.where(put, best, ended_value)
        ended_order = tl.where(put, position * WIDTH + place, ended_order)
        ended_last = tl.where(put, first // size, ended_last)
        ended_cut = tl.where(put, tl.sum(tl.where(w == first // size, cut, 0), 0), ended_cut)
    tl.debug_barrier()  # all threads have read what now changes
    tl.store(scores + own, ended_score, mask=exists)
    tl.store(log_probs + own, ended_value, mask=exists)
    tl.store(order + own, ended_order, mask=exists)
    tl.store(lasts + own, ended_last, mask=exists)
    tl.store(truncated + own, ended_cut, mask=exists)
    return tl.min(ended_score, 0)


@triton.jit
def _live_on(total, word, key, w, size, eos_id, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """The best W that do not end: their totals, newest tokens, and which hypothesis each continues."""
    left = tl.where(word == eos_id, -float("inf"), total)
    live = tl.full((ROWS,), -float("inf"), tl.float64)
    token = tl.zeros((ROWS,), tl.int32)
    parent = tl.zeros((ROWS,), tl.int32)
    for place in range(WIDTH):
        best, first = _first_best(left, key)
        left = tl.where(key == first, -float("inf"), left)
        live = tl.where(w == place, best, live)
        token = tl.where(w == place, first % size, token)
        parent = tl.where(w == place, first // size, parent)
    return live, token, parent


@triton.jit
def _follow(rows, origin, own, exists, position, count, capacity, TIMES: tl.constexpr):
    """Where the keys and values of each hypothesis are at every position: where its parent's were, and its own row."""
    old = rows + ((position & 1) * count + origin) * capacity
    new = rows + (((position + 1) & 1) * count + own) * capacity
    for start in range(0, position + 1, TIMES):
        time = start + tl.arange(0, TIMES)
        earlier = exists[:, None] & (time[None, :] < position)
        row = tl.load(old[:, None] + time[None, :], mask=earlier, other=0)
        row = tl.where(time[None, :] == position, origin[:, None], row)
        tl.store(new[:, None] + time[None, :], row, mask=exists[:, None] & (time[None, :] <= position))


@triton.jit
def expand(
    log_sums, values, words, cut_off, ids, sentences, sums, ended, written, rows, penalties, rules, count, capacity,
    size, eos_id, WIDTH: tl.constexpr, BEST: tl.constexpr, ROWS: tl.constexpr, CHOICES: tl.constexpr,
    TIMES: tl.constexpr,
):  # fmt: skip
    """One token more for one sentence: who ends, who lives on, whether it is over. Slots say what each tensor holds."""
    sentence, slots = tl.program_id(0), count // WIDTH
    positions, over, longest = sentences, sentences + slots, sentences + 2 * slots
    totals, tokens, parents = sums, written, written + count * capacity
    if tl.load(over + sentence) != 0:
        return
    position, limit = tl.load(positions + sentence), tl.load(longest + sentence)
    w = tl.arange(0, ROWS)
    exists = w < WIDTH
    own = sentence * WIDTH + w

    # All continuations that can matter: what each hypothesis has, and what each of its best words adds to it.
    choice = tl.arange(0, CHOICES)
    place, real = own[:, None] * BEST + choice[None, :], exists[:, None] & (choice[None, :] < BEST)
    value = tl.load(values + place, mask=real, other=-float("inf"))
    word = tl.load(words + place, mask=real, other=0)
    log_sum = tl.load(log_sums + own, mask=exists, other=0.0)
    total = tl.load(totals + own, mask=exists, other=-float("inf"))[:, None] + (value - log_sum[:, None]).to(tl.float64)
    total = tl.where(total > -float("inf"), total, -float("inf"))  # what is not a number too
    key = w[:, None] * size + word

    cut = tl.load(cut_off + own, mask=exists & (position >= limit), other=0)
    worst = _set_aside(
        total, key, cut, position, tl.load(penalties + position + 1), own, w, exists, sums + count, sums + 2 * count,
        ended, ended + count, ended + 2 * count, size, eos_id, WIDTH, ROWS,
    )  # fmt: skip
    live, token, parent = _live_on(total, word, key, w, size, eos_id, WIDTH, ROWS)
    tl.store(totals + own, live, mask=exists)
    tl.store(ids + own, token, mask=exists)
    moment = (sentence * capacity + position) * WIDTH + w
    tl.store(tokens + moment, token, mask=exists)
    tl.store(parents + moment, parent, mask=exists)

    # Over: enough have ended, or nobody who lives can still win.
    best = tl.max(live, 0)
    bound = best / tl.maximum(tl.load(penalties + limit + 1), tl.load(penalties + position + 2))
    enough = tl.where(tl.load(rules + 1) != 0, worst > -float("inf"), bound <= worst) | (best == -float("inf"))
    tl.store(over + sentence, enough.to(tl.int32))
    tl.store(positions + sentence, tl.where(enough, position, position + 1))
    if WIDTH > 1:
        _follow(rows, sentence * WIDTH + parent, own, exists, position, count, capacity, TIMES)
