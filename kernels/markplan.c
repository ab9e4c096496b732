#include "markplan.h"

#include "internal_bits.h"

/* --- sorting */

enum { FEW = 32, DIGITS = 8, DIGIT_VALUES = 256 };

static inline uint32_t digit_of(uint64_t key, uint32_t digit) { return key >> 8 * digit & (DIGIT_VALUES - 1); }

/* Items of `words` words each, the first of which is the key. */
static inline void insertion_sort(uint64_t *items, uint64_t count, const uint32_t words) {
    const size_t bytes = words * sizeof *items;
    for (uint64_t i = 1; i < count; i++) {
        uint64_t item[2], at = i;
        memcpy(item, items + i * words, bytes);
        for (; at > 0 && items[(at - 1) * words] > item[0]; at--) memcpy(items + at * words, items + (at - 1) * words, bytes);
        memcpy(items + at * words, item, bytes);
    }
}

/* Moves the items to where their digit's value begins. */
static inline void scatter(const uint64_t *from, uint64_t *to, uint64_t count, const uint32_t words, uint32_t digit,
                           uint64_t *counts) {
    uint64_t begin = 0;
    for (uint32_t value = 0; value < DIGIT_VALUES; value++) {
        const uint64_t many = counts[value];
        counts[value] = begin;
        begin += many;
    }
    for (uint64_t i = 0; i < count; i++)
        memcpy(to + counts[digit_of(from[i * words], digit)]++ * words, from + i * words, words * sizeof *to);
}

/* By bytes of the key, the lowest first; those in which all are equal cost nothing. `other` has room for as many items. */
static inline void radix_sort(uint64_t *items, uint64_t *other, uint64_t count, const uint32_t words) {
    uint64_t counts[DIGITS][DIGIT_VALUES] = {{0}}, *from = items, *to = other;
    for (uint64_t i = 0; i < count; i++)
        for (uint32_t digit = 0; digit < DIGITS; digit++) counts[digit][digit_of(items[i * words], digit)]++;
    for (uint32_t digit = 0; digit < DIGITS; digit++) {
        if (counts[digit][digit_of(from[0], digit)] == count) continue;
        scatter(from, to, count, words, digit, counts[digit]);
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != items) memcpy(items, from, count * words * sizeof *items);
}

static inline void sort_items(uint64_t *items, uint64_t *other, uint64_t count, const uint32_t words) {
    if (count <= FEW) insertion_sort(items, count, words);
    else radix_sort(items, other, count, words);
}

static void sort_words(uint64_t *words, uint64_t *other, uint64_t count) { sort_items(words, other, count, 1); }

/* --- parents */

/* A whole entry that stays. */
typedef struct {
    uint64_t tag; /* of its last block */
    uint64_t born;
} parent;

/* Those of one window, ascending, each tag once. */
typedef struct {
    parent *list;
    uint32_t *begins; /* by the highest bits of tags, those above `shift`: where they begin in the list; and the list's end */
    uint64_t count;
    uint32_t shift;
} parents;

/* Of equal tags the oldest stays: no removal came between it and more records than did for the others. */
static uint64_t unite(parent *list, uint64_t count) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (kept && list[kept - 1].tag == list[i].tag) {
            if (list[i].born < list[kept - 1].born) list[kept - 1].born = list[i].born;
        } else {
            list[kept++] = list[i];
        }
    }
    return kept;
}

/* So that two to four parents have the same highest bits. */
static uint32_t index_bits(uint64_t count) {
    uint32_t bits = 1;
    while (UINT64_C(4) << bits <= count) bits++;
    return bits;
}

static void index_parents(parents *p) {
    const uint32_t bits = index_bits(p->count), end = UINT32_C(1) << bits;
    p->shift = 64 - bits;
    uint32_t begin = 0;
    for (uint64_t i = 0; i < p->count; i++)
        while (begin <= p->list[i].tag >> p->shift) p->begins[begin++] = (uint32_t)i;
    while (begin <= end) p->begins[begin++] = (uint32_t)p->count;
}

static void arrange_parents(parents *p, parent *other) {
    sort_items((uint64_t *)p->list, (uint64_t *)other, p->count, sizeof *other / sizeof(uint64_t));
    p->count = unite(p->list, p->count);
    index_parents(p);
}

static const parent *parent_of(const parents *p, uint64_t tag) {
    if (!p->count) return NULL;
    uint32_t low = p->begins[tag >> p->shift], high = p->begins[(tag >> p->shift) + 1];
    const uint32_t end = high;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (p->list[middle].tag < tag) low = middle + 1;
        else high = middle;
    }
    return low < end && p->list[low].tag == tag ? p->list + low : NULL;
}

/* --- deciding */

typedef struct {
    sarp_mark_decision *d;
    uint64_t *order;  /* window << 32 | number of a row, ascending; where a row is done, masks */
    parent *room;     /* as many as rows: one window's parents grow from its front, the next one's at its back */
    uint64_t *other;  /* what sorting needs beside what it sorts */
    uint32_t *begins; /* of the parents of the window before */
} deciding;

/* Whether a removal is younger than the one position, and not younger than the other. */
static int removed_between(const sarp_mark_decision *d, uint64_t born, uint64_t later) {
    if (later <= born) return 0;
    uint64_t low = 0, high = d->removal_count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (d->removals[middle] <= born) low = middle + 1;
        else high = middle;
    }
    return low < d->removal_count && d->removals[low] <= later;
}

/* Blocks of an entry that stay. */
static uint32_t blocks_left(const sarp_mark_decision *d, const sarp_mark_row *row, const parents *before) {
    /* What was inserted since the pass began was proved against every removal up to it. */
    if (row->born >= d->position) return row->n;
    const uint32_t left = row->cut < row->n ? row->cut : row->n;
    if (left <= row->d) return 0;
    if (row->window == 0) return left;
    const parent *found = parent_of(before, row->prefix);
    return found && !removed_between(d, row->born, found->born) ? left : 0;
}

static void note(const deciding *s, uint64_t at, const sarp_mark_row *row, uint32_t left) {
    sarp_mark_decision *d = s->d;
    d->verdicts[at] = row->reference << 8 | left;
    if (left && row->d) s->order[d->mask_count++] = row->root_key << 16 | UINT64_C(1) << (row->d / 4);
    if (left == row->n && row->whole) d->intact[row->reference >> 24]++;
}

/* Decides the rows from `begin` to `end` of the order, which are a window's, and puts those who may be parents into `list`. Returns
   how many they are. */
static uint64_t decide_window(const deciding *s, uint64_t begin, uint64_t end, const parents *before, parent *list) {
    uint64_t count = 0;
    for (uint64_t at = begin; at < end; at++) {
        const sarp_mark_row *row = s->d->rows + (uint32_t)s->order[at];
        const uint32_t left = blocks_left(s->d, row, before);
        note(s, at, row, left);
        if (left == SARP_WINDOW) list[count++] = (parent){row->last, row->born};
    }
    return count;
}

static void decide_windows(const deciding *s) {
    const uint64_t count = s->d->row_count;
    parents before = {.list = s->room + count, .begins = s->begins};
    uint64_t last = 0;
    for (uint64_t begin = 0, end; begin < count; begin = end) {
        const uint64_t window = s->order[begin] >> 32;
        for (end = begin + 1; end < count && s->order[end] >> 32 == window;) end++;
        if (window != last + 1) before.count = 0;
        parent *list = before.list == s->room ? s->room + count - (end - begin) : s->room;
        before.count = decide_window(s, begin, end, &before, list);
        before.list = list;
        arrange_parents(&before, (parent *)s->other);
        last = window;
    }
}

static void order_rows(const deciding *s) {
    const sarp_mark_decision *d = s->d;
    for (uint64_t i = 0; i < d->row_count; i++) s->order[i] = (uint64_t)d->rows[i].window << 32 | i;
    sort_words(s->order, s->other, d->row_count);
}

/* One mask a key, of the bits that were noted for it. */
static void unite_masks(const deciding *s) {
    sarp_mark_decision *d = s->d;
    const uint64_t noted = d->mask_count;
    sort_words(s->order, s->other, noted);
    d->mask_count = 0;
    for (uint64_t i = 0; i < noted; i++) {
        if (d->mask_count && d->masks[d->mask_count - 1] >> 16 == s->order[i] >> 16) d->masks[d->mask_count - 1] |= s->order[i];
        else d->masks[d->mask_count++] = s->order[i];
    }
}

static uint64_t other_words(uint64_t row_count, uint64_t removal_count) {
    const uint64_t parent_words = row_count * (sizeof(parent) / sizeof(uint64_t));
    return parent_words > removal_count ? parent_words : removal_count;
}

size_t sarp_mark_decide_bytes(uint64_t row_count, uint64_t removal_count) {
    const uint64_t begins = (UINT64_C(1) << index_bits(row_count)) + 1;
    return row_count * (sizeof(uint64_t) + sizeof(parent)) + other_words(row_count, removal_count) * sizeof(uint64_t) +
           begins * sizeof(uint32_t);
}

void sarp_mark_decide(sarp_mark_decision *d) {
    deciding s = {.d = d, .room = d->scratch};
    s.order = (uint64_t *)(s.room + d->row_count);
    s.other = s.order + d->row_count;
    s.begins = (uint32_t *)(s.other + other_words(d->row_count, d->removal_count));
    d->mask_count = 0;
    sort_words(d->removals, s.other, d->removal_count);
    order_rows(&s);
    decide_windows(&s);
    unite_masks(&s);
    sort_words(d->verdicts, s.other, d->row_count);
}
