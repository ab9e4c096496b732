#include "internal_recency.h"

#include "internal_directory.h"

/* Lifts the entries of a key and an offset. Says whether any was lower, or none was there, and where the newest of them left its
   owner. */
static int lift(sarp_directory *dir, uint64_t key, uint32_t d, uint32_t level, uint32_t *dp) {
    const sarp_partition *part = dir->partitions + partition_index(dir, key);
    int lifted = 0, found = 0;
    uint64_t newest = 0;
    *dp = 0;
    if (!(part->flags & SARP_PARTITION_LOADED)) return 1;
    for (uint32_t i = lower_bound(dir, part, key), end = run_end(dir, part, i, key); i < end; i++) {
        sarp_entry *e = entry_at(dir, part, i);
        if (entry_d(e) != d) continue;
        found = 1;
        if (level_of(dir->base, e->word1) < level) {
            e->word1 = with_level(dir->base, e->word1, level);
            lifted = 1;
        }
        const uint64_t position = entry_placeholder(e) ? 0 : position_of(dir->base, entry_reference(e));
        if (position < newest) continue;
        newest = position;
        *dp = entry_dp(e);
    }
    return lifted || !found;
}

/* An entry that has the level of a match has had one since the last tick, and so have all before it: a path that is asked for
   often costs one look. */
void directory_touch(sarp_directory *dir, key_seed seed, const sarp_query *q) {
    uint32_t window = (q->matched - 1) / SARP_WINDOW, d = q->owner_d, dp;
    while (lift(dir, key_of(seed, q->ids + ((size_t)window * SARP_WINDOW + d) * SARP_ID), d, level_at_top(window), &dp)) {
        /* For d > 0, dp is where the owner of the same window was left; for d = 0, the offset of the previous window's. */
        if (d) {
            d = dp < d ? dp : 0;
        } else {
            if (!window) return;
            window--;
            d = dp;
        }
    }
}
