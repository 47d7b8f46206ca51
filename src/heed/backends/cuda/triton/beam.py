"""A step of beam search on a GPU, in three programs; `cuda.triton_ops` calls them, `decoding.search` says why so.

`scan` looks at a block of words of one hypothesis, run by run: what softmax needs of each run, and the best that may be
said. `pick` finds the best words of a hypothesis, which are in the runs with the best bests, and reads those alone.
`grow` does the rest for one sentence. A sentence that is over is left alone.
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
    logits, bias, positions, over, longest, rules, highest, sums, bests, size, runs, pad_id, bos_id, eos_id,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Of some runs: the highest logit, the sum of exponentials relative to it, and the best that the rules allow."""
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
    if (words <= last_id) | (tl.load(positions + sentence) >= tl.load(longest + sentence)):
        high = tl.max(_allowed(logit, word, sentence, positions, longest, rules, pad_id, bos_id, eos_id), 1)
    tl.store(bests + here, high, mask=real)  # most blocks hold no word that rules are about


@triton.jit
def pick(
    logits, bias, positions, over, longest, rules, highest, sums, bests, log_sums, values, words,
    size, runs, pad_id, bos_id, eos_id,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, BEST: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """The logarithm of one hypothesis's sum of exponentials, and its best words, best first."""
    row = tl.program_id(0)
    sentence = row // WIDTH
    if tl.load(over + sentence) != 0:
        return
    run = tl.arange(0, RUNS)
    high = tl.load(highest + row * runs + run, mask=run < runs, other=-float("inf"))
    share = tl.load(sums + row * runs + run, mask=run < runs, other=0.0)
    top = tl.max(high, 0)
    tl.store(log_sums + row, top + tl.log(tl.sum(share * tl.exp(high - _finite(top)), 0)))
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
def grow(  # noqa: PLR0915 - calls cost nothing here, but hand over tiles by the dozen
    log_sums, values, words, ids, positions, over, longest, totals, scores, log_probs, order, lasts,
    tokens, parents, rows, penalties, rules, count, capacity, size, eos_id,
    WIDTH: tl.constexpr, BEST: tl.constexpr, ROWS: tl.constexpr, CHOICES: tl.constexpr, TIMES: tl.constexpr,
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
    choice = tl.arange(0, CHOICES)
    place, real = own[:, None] * BEST + choice[None, :], exists[:, None] & (choice[None, :] < BEST)
    value = tl.load(values + place, mask=real, other=-float("inf"))
    word = tl.load(words + place, mask=real, other=0)
    log_sum = tl.load(log_sums + own, mask=exists, other=0.0)
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
