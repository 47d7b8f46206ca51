/* BPE-dropout: words to pieces, as `text/bpe_dropout.py` says it. */

typedef struct {                                  /* one merge of a table that is a power of two long */
    int64_t pair;                                 /* of pieces, the left one in the upper half; -1: nothing is here */
    int32_t rank, merged;                         /* the best has the lowest; what the two become */
} Merge;

enum { NEVER = INT32_MAX };                       /* the rank of what is no merge */

/* The merge of two pieces, or an empty place. */
static const Merge *merge_of(const Merge *table, int64_t bits, int32_t left, int32_t right) {
    const int64_t pair = (int64_t)left << 32 | right;
    uint64_t place = ((uint64_t)pair * 0x9E3779B97F4A7C15u) >> (64 - bits);
    while (table[place].pair != pair && table[place].pair >= 0) place = (place + 1) & ((1u << bits) - 1);
    return table + place;
}

/* Where the best merge but `skipped` of a word is, of equals the leftmost; -1: there are not so many. */
static int64_t place_of_merge(const int32_t *ranks, int64_t count, int64_t skipped) {
    int64_t best = -1;
    for (; skipped >= 0; skipped--) {
        const int64_t last = best;
        best = -1;
        for (int64_t p = 0; p < count; p++) {
            const int is_later = last < 0 || ranks[p] > ranks[last] || (ranks[p] == ranks[last] && p > last);
            if (ranks[p] < NEVER && is_later && (best < 0 || ranks[p] < ranks[best])) best = p;
        }
        if (best < 0) return -1;
    }
    return best;
}

/* A word in the place of its bytes; returned: in how many pieces. `dropped` says how many merges each round drops. */
static int64_t cut(
    int32_t *pieces, int64_t count, const int64_t **dropped, const Merge *table, int64_t bits, int32_t *ranks) {
    for (int64_t p = 0; p < count - 1; p++) ranks[p] = merge_of(table, bits, pieces[p], pieces[p + 1])->rank;
    for (int64_t place; (place = place_of_merge(ranks, count - 1, 0)) >= 0;) {
        const int64_t skipped = *(*dropped)++;
        if (skipped > 0 && (place = place_of_merge(ranks, count - 1, skipped)) < 0) break;
        pieces[place] = merge_of(table, bits, pieces[place], pieces[place + 1])->merged;
        count--;
        memmove(pieces + place + 1, pieces + place + 2, sizeof(int32_t) * (count - place - 1));
        memmove(ranks + place, ranks + place + 1, sizeof(int32_t) * (count - place - 1));
        for (int64_t p = place > 0 ? place - 1 : 0; p <= place && p < count - 1; p++)
            ranks[p] = merge_of(table, bits, pieces[p], pieces[p + 1])->rank;
    }
    return count;
}

/* Sentences end to end, as the bytes of their words, to `found`, and to `counts` the pieces of each. There is a number
   of `dropped` for each byte; a sentence begins with its own. `ranks`: room for the longest word. */
void heed_cut(
    const int32_t *bytes, const int64_t *words, const int64_t *words_of, const int64_t *dropped, const Merge *table,
    int32_t *ranks, int32_t *found, int64_t *counts, int64_t sentences, int64_t bits) {
    for (int64_t s = 0; s < sentences; s++) {
        const int64_t *rounds = dropped;
        counts[s] = 0;
        for (int64_t w = 0; w < words_of[s]; w++, words++) {
            memcpy(found, bytes, sizeof(int32_t) * *words);
            const int64_t pieces = cut(found, *words, &rounds, table, bits, ranks);
            bytes += *words;
            dropped += *words;
            found += pieces;
            counts[s] += pieces;
        }
    }
}
