#include "evict.h"

#include "internal_directory.h"
#include "internal_evict.h"

/* --- going from partition to partition */

typedef void (*visit)(sarp_directory *dir, sarp_partition *part, void *context);

/* Visits loaded partitions from a prefix on, and gives the prefix behind the last of them. */
static uint64_t sweep(sarp_directory *dir, uint64_t cursor, uint32_t partitions, visit visitor, void *context) {
    for (uint32_t i = 0; i < partitions && cursor <= SARP_KEY_MASK; i++) {
        sarp_partition *part = dir->partitions + partition_index(dir, cursor);
        if (part->flags & SARP_PARTITION_LOADED) visitor(dir, part, context);
        cursor = part->prefix + (UINT64_C(1) << (48 - part->depth));
    }
    return cursor;
}

/* --- aging */

static void age_partition(sarp_directory *dir, sarp_partition *part, void *context) {
    (void)context;
    for (uint32_t i = 0; i < part->entries; i++) {
        sarp_entry *e = entry_at(dir, part, i);
        if (level_of(dir->base, e->word1) <= LEVEL_FLOOR) e->word1 = with_level(dir->base, e->word1, LEVEL_FLOOR + 1);
    }
}

uint64_t sarp_directory_age(sarp_directory *dir, uint64_t cursor, uint32_t partitions) {
    return sweep(dir, cursor, partitions, age_partition, NULL);
}

/* --- counting */

static void count_partition(sarp_directory *dir, sarp_partition *part, void *context) {
    for (uint32_t i = 0; i < part->entries; i++) {
        const sarp_entry *e = entry_at(dir, part, i);
        if (!entry_placeholder(e)) recency_count(dir->base, context, e->word1, entry_reference(e), entry_n(e), entry_d(e));
    }
}

uint64_t sarp_directory_recency(const sarp_directory *dir, uint64_t cursor, uint32_t partitions, sarp_recency *out) {
    sarp_directory *unchanged = (sarp_directory *)(uintptr_t)dir; /* count_partition writes nothing */
    return sweep(unchanged, cursor, partitions, count_partition, out);
}

/* --- evicting */

typedef struct {
    const sarp_threshold *threshold;
    sarp_evicted *evicted;
} evicting;

/* A placeholder has no file: it goes once it is below the level, as everything has that stands on it. */
static int entry_goes(const sarp_base *base, const sarp_threshold *threshold, const sarp_entry *e) {
    if (entry_placeholder(e)) return level_of(base, e->word1) < threshold->level;
    return threshold_takes(base, threshold, e->word1, entry_reference(e), entry_d(e));
}

/* What the roots of a run of equal keys that go leave behind. At the boundary level what diverges from a root may outlive it, so
   it leaves a placeholder there; what is below the level takes all that diverges from it along. */
typedef struct {
    uint64_t mask;
    int root_stays, placeholder;
} heritage;

static heritage heritage_of(const sarp_directory *dir, const sarp_partition *part, uint32_t first, uint32_t end,
                            const sarp_threshold *threshold) {
    heritage h = {0};
    for (uint32_t i = first; i < end; i++) {
        const sarp_entry *e = entry_at(dir, part, i);
        if (entry_d(e)) continue;
        if (!entry_goes(dir->base, threshold, e)) {
            h.root_stays = 1;
            continue;
        }
        h.mask |= entry_mask(e);
        if (level_of(dir->base, e->word1) == threshold->level) h.placeholder = 1;
    }
    return h;
}

static void entry_forget(sarp_directory *dir, sarp_partition *part, const sarp_entry *e, sarp_evicted *evicted) {
    count_entry(dir, part, e, -1);
    if (entry_placeholder(e)) return;
    evicted->records++;
    evicted->blocks += introduced(e);
    evicted->bytes += record_bytes(dir->base, entry_n(e));
}

/* Moves what stays of a run of equal keys to `kept` and on; where the next run goes. */
static uint32_t evict_run(sarp_directory *dir, sarp_partition *part, uint32_t first, uint32_t end, uint32_t kept, evicting *v) {
    const sarp_base *base = dir->base;
    heritage h = heritage_of(dir, part, first, end, v->threshold);
    int heir = h.mask && h.placeholder && !h.root_stays;
    for (uint32_t i = first; i < end; i++) {
        sarp_entry e = *entry_at(dir, part, i);
        const int root = !entry_d(&e);
        if (entry_goes(base, v->threshold, &e)) {
            entry_forget(dir, part, &e, v->evicted);
            if (!root || !heir) continue;
            heir = 0;
            e = (sarp_entry){entry_key(&e) << 16 | h.mask, with_level(base, ENTRY_PLACEHOLDER, v->threshold->level)};
            count_entry(dir, part, &e, 1);
        } else if (root) {
            e.word0 |= h.mask;
        }
        *entry_at(dir, part, kept++) = e;
    }
    return kept;
}

static void evict_partition(sarp_directory *dir, sarp_partition *part, void *context) {
    evicting *v = context;
    const uint32_t total = part->entries;
    uint32_t kept = 0;
    int any = 0;
    for (uint32_t i = 0; i < total && !any; i++) any = entry_goes(dir->base, v->threshold, entry_at(dir, part, i));
    if (!any) return;
    for (uint32_t first = 0, end; first < total; first = end) {
        end = run_end(dir, part, first, entry_key(entry_at(dir, part, first)));
        kept = evict_run(dir, part, first, end, kept, v);
    }
    pages_resize(dir, part, pages_for(total), kept);
    part->entries = (uint16_t)kept;
    dir->entries -= total - kept;
    part->flags |= SARP_PARTITION_DIRTY;
    index_rebuild(dir, part);
}

uint64_t sarp_directory_evict(sarp_directory *dir, uint64_t cursor, uint32_t partitions, const sarp_threshold *threshold,
                              sarp_evicted *evicted) {
    evicting v = {threshold, evicted};
    return sweep(dir, cursor, partitions, evict_partition, &v);
}
