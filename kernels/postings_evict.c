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

/* --- what stands on what

   A record whose d is not 0 stands on the one that introduced the blocks before: where a removal ends it there, those are held by
   that one alone. So none may go before what stands on it. Only ids say for sure which one that is; here it is any whose own d is
   lower, which reaches that far, and which has the fingerprints of the blocks before in common. */

enum { FAMILY_MAX = SARP_PARTITION_POSTINGS_MAX };

/* The postings at point 0 of one list. Of a list of more than FAMILY_MAX elements those of one partition alone. */
typedef struct {
    sarp_posting *members[FAMILY_MAX];
    uint32_t count, own_first, own_end; /* own: in the partition that is visited */
    int standing;                       /* one of them stands on something */
} family;

static void family_take(family *f, const sarp_postings *dir, const sarp_posting_partition *part, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; i++) {
        sarp_posting *e = posting_at(dir, part, i);
        if (!is_first_posting(e)) continue;
        f->members[f->count++] = e;
        f->standing |= posting_d(e) > 0;
    }
}

/* The family of the elements from `begin` to `end` of a partition, which have one key. */
static void family_of(const sarp_postings *dir, uint32_t rank, uint32_t begin, uint32_t end, family *f) {
    const sarp_posting_partition *part = partition_ranked(dir, rank);
    f->count = f->own_first = 0;
    f->standing = 0;
    posting_list list = {.first_rank = rank, .last_rank = rank};
    if (begin == 0 || end == part->entries) list = list_open(dir, posting_key(posting_at(dir, part, begin)));
    const int whole = list.first_rank == list.last_rank || (list.loaded && list.count < FAMILY_MAX);
    for (uint32_t r = list.first_rank; whole && r < rank; r++) {
        const sarp_posting_partition *other = partition_ranked(dir, r);
        family_take(f, dir, other, r == list.begin.rank ? list.begin.index : r < list.begin.rank ? other->entries : 0, other->entries);
    }
    f->own_first = f->count;
    family_take(f, dir, part, begin, end);
    f->own_end = f->count;
    for (uint32_t r = rank + 1; whole && r <= list.last_rank; r++)
        family_take(f, dir, partition_ranked(dir, r), 0, r == list.last_rank ? list.end.index : partition_ranked(dir, r)->entries);
}

/* Fingerprints that a posting has in common with what it stands on. */
static uint32_t shared_of(const sarp_posting *e) { return posting_d(e) / 2 < FINGERPRINTS ? posting_d(e) / 2 : FINGERPRINTS; }

/* Bit d: what stands at d may stand on this one. */
static uint64_t bears(const sarp_posting *e) {
    const uint64_t reached = posting_n(e) == SARP_WINDOW ? UINT64_MAX : (UINT64_C(2) << posting_n(e)) - 1;
    return reached & ~((UINT64_C(2) << posting_d(e)) - 1);
}

/* The end of the run that begins with a member and has so many fingerprints in common with it. */
static uint32_t family_run(const family *f, uint32_t begin, uint32_t shared) {
    const uint64_t mask = shared ? UINT64_MAX << 8 * (FINGERPRINTS - shared) : 0;
    uint32_t end = begin + 1;
    while (end < f->count && !((f->members[end]->filter ^ f->members[begin]->filter) & mask)) end++;
    return end;
}

typedef int (*going_through)(const sarp_base *base, const family *f, uint32_t begin, uint32_t end, uint32_t shared, uint8_t *going);

/* Goes through all runs, the deepest first, until nothing changes any more. */
static void family_settle(const sarp_base *base, const family *f, going_through step, uint8_t *going) {
    for (int changed = f->standing && f->count > 1; changed;) {
        changed = 0;
        for (uint32_t shared = FINGERPRINTS + 1; shared-- > 0;)
            for (uint32_t begin = 0, end; begin < f->count; begin = end) {
                end = family_run(f, begin, shared);
                if (end - begin > 1) changed |= step(base, f, begin, end, shared, going);
            }
    }
}

/* Levels of what stands at each offset, and the highest of them from an offset on. */
typedef struct {
    uint64_t offsets; /* bit d: something stands at d */
    uint8_t at[SARP_WINDOW], from[SARP_WINDOW + 1];
} standing;

static standing standing_of(const sarp_base *base, const family *f, uint32_t begin, uint32_t end, uint32_t shared) {
    standing s = {0};
    for (uint32_t i = begin; i < end; i++) {
        const sarp_posting *e = f->members[i];
        const uint32_t d = posting_d(e), level = level_of(base, e->word1);
        if (d == 0 || shared_of(e) != shared) continue;
        s.offsets |= UINT64_C(1) << d;
        if (s.at[d] < level) s.at[d] = (uint8_t)level;
    }
    for (uint32_t d = SARP_WINDOW; s.offsets && d-- > 0;) s.from[d] = s.at[d] > s.from[d + 1] ? s.at[d] : s.from[d + 1];
    return s;
}

/* The highest level of what may stand on a posting. */
static uint32_t level_borne(const standing *s, const sarp_posting *e) {
    const uint64_t borne = bears(e);
    if (!(s->offsets >> posting_d(e) >> 1)) return 0;
    if (!(s->offsets & ~borne & ~((UINT64_C(2) << posting_d(e)) - 1))) return s->from[posting_d(e) + 1];
    uint32_t level = 0;
    for (uint64_t bits = s->offsets & borne; bits; bits &= bits - 1)
        if (s->at[__builtin_ctzll(bits)] > level) level = s->at[__builtin_ctzll(bits)];
    return level;
}

/* Lifts what is colder than what stands on it. */
static int lift(const sarp_base *base, const family *f, uint32_t begin, uint32_t end, uint32_t shared, uint8_t *going) {
    const standing s = standing_of(base, f, begin, end, shared);
    int changed = 0;
    (void)going;
    for (uint32_t i = begin; s.offsets && i < end; i++) {
        sarp_posting *e = f->members[i];
        const uint32_t level = level_borne(&s, e);
        if (level_of(base, e->word1) >= level) continue;
        e->word1 = with_level(base, e->word1, level);
        changed = 1;
    }
    return changed;
}

/* What stands on what goes, goes too: at the threshold's own level, files decide. */
static int pull(const sarp_base *base, const family *f, uint32_t begin, uint32_t end, uint32_t shared, uint8_t *going) {
    uint64_t borne = 0;
    int changed = 0;
    (void)base;
    for (uint32_t i = begin; i < end; i++) borne |= going[i] ? bears(f->members[i]) : 0;
    for (uint32_t i = begin; borne && i < end; i++) {
        const sarp_posting *e = f->members[i];
        if (going[i] || posting_d(e) == 0 || shared_of(e) != shared || !(borne >> posting_d(e) & 1)) continue;
        going[i] = 1;
        changed = 1;
    }
    return changed;
}

typedef void (*family_visit)(sarp_postings *dir, const family *f, void *context);

/* Visits the families of a partition, their levels being in order. */
static void visit_families(sarp_postings *dir, uint32_t rank, family_visit visitor, void *context) {
    const sarp_posting_partition *part = partition_ranked(dir, rank);
    family f;
    for (uint32_t begin = 0, end; begin < part->entries; begin = end) {
        const uint64_t key = posting_key(posting_at(dir, part, begin));
        for (end = begin + 1; end < part->entries && posting_key(posting_at(dir, part, end)) == key;) end++;
        family_of(dir, rank, begin, end, &f);
        if (f.own_first == f.own_end) continue;
        family_settle(dir->base, &f, lift, NULL);
        visitor(dir, &f, context);
    }
}

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

static void count_family(sarp_postings *dir, const family *f, void *context) {
    for (uint32_t i = f->own_first; i < f->own_end; i++) {
        const sarp_posting *e = f->members[i];
        recency_count(dir->base, context, e->word1, posting_reference(e), posting_n(e), 0);
    }
}

static int count_partition(sarp_postings *dir, uint32_t rank, void *context) {
    visit_families(dir, rank, count_family, context);
    return 1;
}

int32_t sarp_postings_recency(sarp_postings *dir, sarp_posting *cursor, uint32_t partitions, sarp_recency *out) {
    return sweep(dir, cursor, partitions, count_partition, out);
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

static void condemn(sarp_condemned *set, uint64_t reference) {
    const uint32_t slot = condemned_slot(set, reference);
    if (set->references[slot]) return;
    set->references[slot] = reference;
    set->count++;
}

static void condemn_family(sarp_postings *dir, const family *f, void *context) {
    const condemning *c = context;
    uint8_t going[FAMILY_MAX];
    for (uint32_t i = 0; i < f->count; i++)
        going[i] = (uint8_t)threshold_takes(dir->base, c->threshold, f->members[i]->word1, posting_reference(f->members[i]), 0);
    family_settle(dir->base, f, pull, going);
    for (uint32_t i = f->own_first; i < f->own_end; i++)
        if (going[i]) condemn(c->set, posting_reference(f->members[i]));
}

static int condemn_partition(sarp_postings *dir, uint32_t rank, void *context) {
    const condemning *c = context;
    if (c->set->count + partition_ranked(dir, rank)->entries > c->set->size / 2) return 0;
    visit_families(dir, rank, condemn_family, context);
    return 1;
}

int32_t sarp_postings_condemn(sarp_postings *dir, sarp_posting *cursor, uint32_t partitions,
                              const sarp_threshold *threshold, sarp_condemned *condemned) {
    condemning c = {threshold, condemned};
    return sweep(dir, cursor, partitions, condemn_partition, &c);
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

static int evict_partition(sarp_postings *dir, uint32_t rank, void *context) {
    const evicting *v = context;
    sarp_posting_partition *part = dir->partitions + dir->order[rank];
    const uint32_t total = part->entries;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < total; i++) {
        const sarp_posting e = *posting_at(dir, part, i);
        if (!posting_is_state(&e) && is_condemned(v->set, posting_reference(&e))) posting_forget(dir, part, &e, v->evicted);
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
