#include "internal_directory.h"
#include "internal_markpass.h"
#include "internal_recency.h"

/* One partition is written anew in place: what is kept moves up to the front. */
typedef struct {
    sarp_directory *dir;
    sarp_partition *part;
    sarp_mark_plan *plan;
    const uint64_t *mask; /* the first of plan->masks that may concern a key still to come */
    uint32_t kept;
    int changed;
} sweep;

static uint64_t mask_key(const uint64_t *mask) { return *mask >> 16; }

static const uint64_t *first_mask(const sarp_mark_plan *plan, uint64_t key) {
    const uint64_t *found = plan->masks;
    for (uint64_t left = plan->mask_count; left;) {
        const uint64_t half = left / 2;
        if (mask_key(found + half) < key) {
            found += half + 1;
            left -= half + 1;
        } else {
            left = half;
        }
    }
    return found;
}

/* The bits that a root of this key may keep. Keys come in ascending order. */
static uint64_t live_bits(sweep *s, uint64_t key) {
    const uint64_t *end = s->plan->masks + s->plan->mask_count;
    while (s->mask < end && mask_key(s->mask) < key) s->mask++;
    const uint64_t planned = s->mask < end && mask_key(s->mask) == key ? *s->mask & 0xFFFF : 0;
    return planned | fresh_bits(s->dir->fresh, key);
}

static void keep(sweep *s, sarp_entry entry) {
    *entry_at(s->dir, s->part, s->kept++) = entry;
    count_entry(s->dir, s->part, &entry, 1);
}

/* The bits of all roots among the entries of one key, as far as they may stay. */
static uint64_t root_mask(sweep *s, uint32_t first, uint32_t end) {
    uint64_t mask = 0;
    for (uint32_t i = first; i < end; i++)
        if (entry_d(entry_at(s->dir, s->part, i)) == 0) mask |= entry_mask(entry_at(s->dir, s->part, i));
    const uint64_t live = mask ? mask & live_bits(s, entry_key(entry_at(s->dir, s->part, first))) : 0;
    s->changed |= live != mask;
    return live;
}

/* Whether the entry stays; it is cut where its verdict says so. */
static int judge(sweep *s, sarp_entry *entry, uint8_t verdict) {
    const uint32_t left = verdict == VERDICT_MISSING ? 0 : verdict;
    if (left <= entry_d(entry)) {
        s->plan->dropped++;
        s->plan->unreadable += verdict == VERDICT_MISSING;
        s->changed = 1;
        return 0;
    }
    if (left >= entry_n(entry)) return 1;
    entry->word1 = (entry->word1 & ~(UINT64_C(63) << 18)) | (uint64_t)(left - 1) << 18;
    s->plan->cut++;
    s->changed = 1;
    return 1;
}

/* The entries of one key. A mask stays with the key's roots, or in a placeholder (directory.md, section 3). */
static void sweep_key(sweep *s, uint32_t first, uint32_t end, const uint8_t *verdicts) {
    const uint64_t key = entry_key(entry_at(s->dir, s->part, first)), mask = root_mask(s, first, end);
    int rooted = mask == 0;
    for (uint32_t i = first; i < end; i++) {
        sarp_entry entry = *entry_at(s->dir, s->part, i);
        count_entry(s->dir, s->part, &entry, -1);
        if (entry_placeholder(&entry) || !judge(s, &entry, verdicts[i])) continue;
        if (entry_d(&entry) == 0) {
            entry.word0 = key << 16 | mask;
            rooted = 1;
        }
        keep(s, entry);
    }
    if (!rooted) keep(s, (sarp_entry){key << 16 | mask, with_level_entering(s->dir->base, ENTRY_PLACEHOLDER, LEVEL_TOP)});
}

static void judge_all(const sweep *s, uint8_t *verdicts) {
    uint64_t references[SARP_PARTITION_ENTRIES_MAX];
    for (uint32_t i = 0; i < s->part->entries; i++) references[i] = entry_reference(entry_at(s->dir, s->part, i));
    verdicts_of(s->plan, s->dir->base, references, s->part->entries, verdicts);
}

void sarp_directory_sweep(sarp_directory *dir, uint32_t partition, sarp_mark_plan *plan) {
    sarp_partition *part = dir->partitions + partition;
    const uint32_t total = part->entries;
    if (!(part->flags & SARP_PARTITION_LOADED) || total == 0) return;
    uint8_t verdicts[SARP_PARTITION_ENTRIES_MAX];
    sweep s = {.dir = dir, .part = part, .plan = plan, .mask = first_mask(plan, part->prefix)};
    judge_all(&s, verdicts);
    for (uint32_t first = 0, end; first < total; first = end) {
        end = run_end(dir, part, first, entry_key(entry_at(dir, part, first)));
        sweep_key(&s, first, end, verdicts);
    }
    if (s.kept != total) {
        part->entries = (uint16_t)s.kept;
        dir->entries -= total - s.kept;
        pages_resize(dir, part, pages_for(total), s.kept);
        index_rebuild(dir, part);
    }
    if (s.changed || s.kept != total) part->flags |= SARP_PARTITION_DIRTY;
}
