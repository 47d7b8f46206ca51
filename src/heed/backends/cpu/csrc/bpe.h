/* BPE-dropout: segments words into subwords with randomly dropped merges; the reference is `text/bpe_dropout.py`. */

enum { NO_MERGE = INT32_MAX };                    /* the rank of an empty entry */

/* Hash table lookup with linear probing: the merge of two symbols, or an empty entry. */
static const HeedMerge *find_merge(const HeedMerge *table, int64_t bits, int32_t left, int32_t right) {
    const int64_t pair = (int64_t)left << 32 | right;
    uint64_t slot = ((uint64_t)pair * 0x9E3779B97F4A7C15u) >> (64 - bits);
    while (table[slot].pair != pair && table[slot].pair >= 0) slot = (slot + 1) & ((1u << bits) - 1);
    return table + slot;
}

/* The position of the best merge of a word after skipping the `skipped` better ones; ties go to the left; -1: none. */
static int64_t best_merge(const int32_t *ranks, int64_t count, int64_t skipped) {
    int64_t best = -1;
    for (; skipped >= 0; skipped--) {
        const int64_t last = best;
        best = -1;
        for (int64_t p = 0; p < count; p++) {
            const int is_later = last < 0 || ranks[p] > ranks[last] || (ranks[p] == ranks[last] && p > last);
            if (ranks[p] < NO_MERGE && is_later && (best < 0 || ranks[p] < ranks[best])) best = p;
        }
        if (best < 0) return -1;
    }
    return best;
}

/* Segments one word in place and returns the number of its subwords. symbols: the word's bytes. dropped: how many of
   the best merges each round drops; advanced by the rounds used. ranks: scratch, the rank of each adjacent pair. */
static int64_t segment_word(
    int32_t *symbols, int64_t count, const int64_t **dropped, const HeedMerge *table, int64_t bits, int32_t *ranks) {
    for (int64_t p = 0; p < count - 1; p++) ranks[p] = find_merge(table, bits, symbols[p], symbols[p + 1])->rank;
    for (int64_t at; (at = best_merge(ranks, count - 1, 0)) >= 0;) {
        const int64_t skipped = *(*dropped)++;
        if (skipped > 0 && (at = best_merge(ranks, count - 1, skipped)) < 0) break;
        symbols[at] = find_merge(table, bits, symbols[at], symbols[at + 1])->merged;
        count--;
        memmove(symbols + at + 1, symbols + at + 2, sizeof(int32_t) * (count - at - 1));
        memmove(ranks + at, ranks + at + 1, sizeof(int32_t) * (count - at - 1));
        for (int64_t p = at > 0 ? at - 1 : 0; p <= at && p < count - 1; p++)
            ranks[p] = find_merge(table, bits, symbols[p], symbols[p + 1])->rank;
    }
    return count;
}

static void heed_bpe(
    const int32_t *bytes, const int64_t *word_lengths, const int64_t *word_counts, const int64_t *dropped,
    const HeedMerge *table, int32_t *ranks, int32_t *ids, int64_t *counts, int64_t sentences, int64_t bits) {
    for (int64_t s = 0; s < sentences; s++) {
        const int64_t *rounds = dropped;
        counts[s] = 0;
        for (int64_t w = 0; w < word_counts[s]; w++, word_lengths++) {
            memcpy(ids, bytes, sizeof(int32_t) * *word_lengths);
            const int64_t subwords = segment_word(ids, *word_lengths, &rounds, table, bits, ranks);
            bytes += *word_lengths;
            dropped += *word_lengths;
            ids += subwords;
            counts[s] += subwords;
        }
    }
}
