#include "internal_evict.h"
#include "internal_postings.h"

/* --- going from partition to partition */

typedef int (*visit)(sarp_postings *dir, uint32_t rank, void *context);

/* Visits loaded partitions from a low on; a visitor that gives 0 ends it, its partition being not done. Moves the cursor. */
static int32_t sweep(sarp_postings *dir, sarp_posting *cursor, uint32_t partitions, visit visitor, void *context) {
    uint32_t rank = rank_of(dir, place_of(cursor));
    for (uint32_t i = 0; i < partitions && rank < dir->partition_count; i++, rank++) {
        if (!(partition_ranked(dir, rank)->flags & SARP_PARTITION_LOADED)) continue;
        if (!visitor(dir, rank, context)) break;
    }
    if (rank == dir->partition_count) return 0;
    *cursor = partition_ranked(dir, rank)->low;
    return 1;
}

static int is_first_posting(const sarp_posting *e) { return !posting_point(e) && !posting_is_state(e); }

/* --- aging and counting */

static int age_partition(sarp_postings *dir, uint32_t rank, void *context) {
    const sarp_posting_partition *part = partition_ranked(dir, rank);
    (void)context;
    for (uint32_t i = 0; i < part->entries; i++) {
        sarp_posting *e = posting_at(dir, part, i);
        if (is_first_posting(e) && level_of(dir->base, e->word1) <= LEVEL_FLOOR)
            e->word1 = with_level(dir->base, e->word1, LEVEL_FLOOR + 1);
    }
    return 1;
}

int32_t sarp_postings_age(sarp_postings *dir, sarp_posting *cursor, uint32_t partitions) {
    return sweep(dir, cursor, partitions, age_partition, NULL);
}

static int count_partition(sarp_postings *dir, uint32_t rank, void *context) {
    const sarp_posting_partition *part = partition_ranked(dir, rank);
    for (uint32_t i = 0; i < part->entries; i++) {
        const sarp_posting *e = posting_at(dir, part, i);
        if (is_first_posting(e)) recency_count(dir->base, context, e->word1, posting_reference(e), posting_n(e));
    }
    return 1;
}

/* count_partition and condemn_partition write nothing. */
static sarp_postings *unchanged(const sarp_postings *dir) { return (sarp_postings *)(uintptr_t)dir; }

int32_t sarp_postings_recency(const sarp_postings *dir, sarp_posting *cursor, uint32_t partitions, sarp_recency *out) {
    return sweep(unchanged(dir), cursor, partitions, count_partition, out);
}

/* --- the set of condemned records */

static uint32_t condemned_slot(const sarp_condemned *set, uint64_t reference) {
    uint32_t i = (uint32_t)((reference * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (set->size - 1);
    while (set->references[i] && set->references[i] != reference) i = (i + 1) & (set->size - 1);
    return i;
}

int is_condemned(const sarp_condemned *set, uint64_t reference) { return set->references[condemned_slot(set, reference)] != 0; }

void sarp_condemned_clear(sarp_condemned *set) {
    if (set->count) memset(set->references, 0, (size_t)set->size * sizeof *set->references);
    set->count = 0;
}

typedef struct {
    const sarp_threshold *threshold;
    sarp_condemned *set;
} condemning;

static int condemn_partition(sarp_postings *dir, uint32_t rank, void *context) {
    const condemning *c = context;
    const sarp_posting_partition *part = partition_ranked(dir, rank);
    if (c->set->count + part->entries > c->set->size / 2) return 0;
    for (uint32_t i = 0; i < part->entries; i++) {
        const sarp_posting *e = posting_at(dir, part, i);
        if (!is_first_posting(e) || !threshold_takes(dir->base, c->threshold, e->word1, posting_reference(e))) continue;
        const uint32_t slot = condemned_slot(c->set, posting_reference(e));
        if (c->set->references[slot]) continue;
        c->set->references[slot] = posting_reference(e);
        c->set->count++;
    }
    return 1;
}

int32_t sarp_postings_condemn(const sarp_postings *dir, sarp_posting *cursor, uint32_t partitions,
                              const sarp_threshold *threshold, sarp_condemned *condemned) {
    condemning c = {threshold, condemned};
    return sweep(unchanged(dir), cursor, partitions, condemn_partition, &c);
}

/* --- evicting */

typedef struct {
    const sarp_condemned *set;
    sarp_evicted *evicted;
} evicting;

static void posting_forget(sarp_postings *dir, sarp_posting_partition *part, const sarp_posting *e, sarp_evicted *evicted) {
    count_posting(dir, part, e, -1);
    if (!is_first_posting(e)) return;
    evicted->records++;
    evicted->blocks += posting_blocks(e);
    evicted->bytes += record_bytes(dir->base, posting_n(e));
}

/* Whether the list of the state at `index` will have no posting left. What may go on in the next partition is taken to have. */
static int list_empties(const sarp_postings *dir, const sarp_posting_partition *part, uint32_t index, const sarp_condemned *set) {
    const uint64_t key = posting_key(posting_at(dir, part, index));
    for (uint32_t i = index + 1; i < part->entries; i++) {
        const sarp_posting *e = posting_at(dir, part, i);
        if (posting_key(e) != key) return 1;
        if (!is_condemned(set, posting_reference(e))) return 0;
    }
    return 0;
}

static int posting_goes(const sarp_postings *dir, const sarp_posting_partition *part, uint32_t index, const sarp_condemned *set) {
    const sarp_posting *e = posting_at(dir, part, index);
    return posting_is_state(e) ? list_empties(dir, part, index, set) : is_condemned(set, posting_reference(e));
}

static int evict_partition(sarp_postings *dir, uint32_t rank, void *context) {
    const evicting *v = context;
    sarp_posting_partition *part = dir->partitions + dir->order[rank];
    const uint32_t total = part->entries;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < total; i++) {
        const sarp_posting e = *posting_at(dir, part, i);
        if (posting_goes(dir, part, i, v->set)) posting_forget(dir, part, &e, v->evicted);
        else *posting_at(dir, part, kept++) = e;
    }
    if (kept == total) return 1;
    arena_resize(&dir->arena, part->pages, posting_pages(total), posting_pages(kept));
    part->entries = (uint16_t)kept;
    part->flags |= SARP_PARTITION_DIRTY;
    return 1;
}

int32_t sarp_postings_evict(sarp_postings *dir, sarp_posting *cursor, uint32_t partitions, const sarp_condemned *condemned,
                            sarp_evicted *evicted) {
    evicting v = {condemned, evicted};
    return sweep(dir, cursor, partitions, evict_partition, &v);
}
