#include "commit.h"

#include "internal_change.h"
#include "internal_directory.h"
#include "internal_insert.h"
#include "internal_prove.h"
#include "internal_recency.h"

/* --- what every directory's insertion writes */

static uint32_t blocks_in_window(const sarp_query *q, uint32_t window) {
    const uint32_t rest = q->blocks - window * SARP_WINDOW;
    return rest < SARP_WINDOW ? rest : SARP_WINDOW;
}

static uint64_t root_born_of(const uint8_t *owner) {
    const uint64_t root = load64(owner + SARP_AT_ROOT_BORN);
    return root ? root : load64(owner + SARP_AT_BORN);
}

/* The first window's record; the later ones open their windows. */
planned plan_first(const sarp_base *base, const sarp_query *q, key_seed seed, const uint8_t *owner) {
    const uint32_t window = q->matched / SARP_WINDOW, held = q->matched % SARP_WINDOW;
    planned p = {.window = window, .n = blocks_in_window(q, window), .held = held};
    if (held == 0) {
        if (window == 0) return p;
        p.dp = q->owner_d;
        p.root_born = root_born_of(owner);
        p.parent_key = key_of(seed, q->ids + ((size_t)(window - 1) * SARP_WINDOW + q->owner_d) * SARP_ID);
        return p;
    }
    p.parent_key = load64(owner + SARP_AT_PARENT_KEY);
    p.root_born = root_born_of(owner);
    if (held == q->owner_n) {
        p.d = q->owner_d;
        p.dp = q->owner_dp;
        p.supersedes = position_of(base, q->owner_reference);
    } else {
        p.d = held;
        p.dp = q->owner_d < held ? q->owner_d : 0; /* under `sarp` it need not be */
    }
    return p;
}

planned plan_next(const sarp_query *q, key_seed seed, const planned *previous) {
    const size_t owner_block = (size_t)previous->window * SARP_WINDOW + previous->d;
    const uint32_t window = previous->window + 1;
    if ((uint64_t)window * SARP_WINDOW >= q->blocks) return (planned){.window = window};
    return (planned){.window = window,
                     .n = blocks_in_window(q, window),
                     .dp = previous->d,
                     .root_born = previous->root_born,
                     .parent_key = key_of(seed, q->ids + owner_block * SARP_ID)};
}

int owner_record(const sarp_pages *pages, const sarp_query *q, const uint8_t **owner) {
    *owner = NULL;
    if (q->matched == 0) return 1;
    if (!pages_find(pages, q->owner_reference >> 6, owner) || !*owner) return 0;
    *owner += (q->owner_reference & 63) * SARP_UNIT;
    return 1;
}

const uint8_t *write_segment(sarp_commit *commit, const sarp_query *q, planned *p, const uint8_t *owner,
                             const uint8_t *locations, uint64_t *position) {
    const uint32_t bytes = commit->location_bytes, length = segment_bytes(p->n, bytes);
    const size_t base = (size_t)p->window * SARP_WINDOW;
    /* What overrides a record stands after it: in the same commit, behind all that is there. */
    const uint64_t first = commit->file_number << 24 | commit->first_page * UINT64_C(64);
    /* Postings records speak of the records before them. */
    const int behind = p->supersedes && (p->supersedes >= first || commit->ordered);
    uint8_t *record = commit_place(commit, length, behind ? SARP_PLACE_BEHIND : SARP_PLACE_BEST, position);
    memset(record, 0, SARP_SEGMENT_HEADER);
    store16(record + SARP_AT_LENGTH, (uint16_t)length);
    record[SARP_AT_TYPE] = SARP_SEGMENT;
    record[SARP_AT_N] = (uint8_t)p->n;
    record[SARP_AT_D] = (uint8_t)p->d;
    record[SARP_AT_DP] = (uint8_t)p->dp;
    record[SARP_AT_HEADER_UNITS] = 2;
    store32(record + SARP_AT_HOLDER, q->holder);
    store32(record + SARP_AT_WINDOW, p->window);
    store64(record + SARP_AT_NAMESPACE, q->name_space);
    if (base) memcpy(record + SARP_AT_PREFIX_ID, q->ids + (base - 1) * SARP_ID, SARP_ID);
    const uint64_t born = *position > commit->highest ? *position : commit->highest;
    if (!p->root_born) p->root_born = born;
    store64(record + SARP_AT_BORN, born);
    store64(record + SARP_AT_ROOT_BORN, p->root_born);
    store64(record + SARP_AT_PARENT_KEY, p->parent_key);
    store64(record + SARP_AT_SUPERSEDES, p->supersedes);
    record[SARP_AT_POINTS] = p->points;
    record[SARP_AT_OLD_N] = p->old_n;
    uint8_t *body = record + SARP_SEGMENT_HEADER;
    memcpy(body, q->ids + base * SARP_ID, (size_t)p->n * SARP_ID);
    body += p->n * SARP_ID;
    if (p->held) memcpy(body, owner + SARP_SEGMENT_HEADER + owner[SARP_AT_N] * SARP_ID, (size_t)p->held * bytes);
    memcpy(body + (size_t)p->held * bytes, locations + (base + p->held) * bytes, (size_t)(p->n - p->held) * bytes);
    commit_add(commit, record, *position);
    commit->new_bytes += length;
    return record;
}

/* --- the divergence directory's */

/* Asks for the partitions of the keys that an insertion will enter. */
static int partitions_ready(const sarp_directory *dir, const sarp_query *q, key_seed seed, planned first, sarp_needs *needs) {
    int ready = 1;
    for (planned p = first; p.window * SARP_WINDOW < q->blocks; p = plan_next(q, seed, &p)) {
        for (uint32_t step = 0; step < (p.d ? 2 : 1); step++) {
            const size_t block = (size_t)p.window * SARP_WINDOW + (step ? 0 : p.d);
            const uint64_t key = key_of(seed, q->ids + block * SARP_ID);
            uint32_t number;
            sarp_directory_partition_of(dir, &key, 1, &number);
            if (dir->partitions[number].flags & SARP_PARTITION_LOADED) continue;
            ready = 0;
            if (needs->partition_count < needs->partition_limit) needs->partitions[needs->partition_count++] = number;
        }
    }
    return ready;
}

int32_t sarp_insert(sarp_directory *dir, const sarp_pages *pages, sarp_query *q, const uint8_t *locations, sarp_commit *commit,
                    sarp_needs *needs) {
    q->status = SARP_NEED;
    if (match_whole(dir, pages, q, needs) != SARP_OK) return SARP_NEED;
    if (q->matched == q->blocks) return SARP_OK;
    const key_seed seed = seed_of(dir->base, q->holder, q->name_space);
    const uint8_t *owner;
    if (!owner_record(pages, q, &owner)) return SARP_INVALID; /* the match has just read it */
    planned p = plan_first(dir->base, q, seed, owner);
    if (!partitions_ready(dir, q, seed, p, needs)) return SARP_NEED;
    const uint32_t windows = (q->blocks + SARP_WINDOW - 1) / SARP_WINDOW - p.window;
    if (!directory_has_room(dir, windows)) return SARP_FULL;
    if (!commit_has_room(commit, windows, windows)) return SARP_NO_ROOM;
    for (; p.window * SARP_WINDOW < q->blocks; p = plan_next(q, seed, &p)) {
        size_t done;
        uint64_t position;
        sarp_change change;
        const uint8_t *record = write_segment(commit, q, &p, owner, locations, &position);
        changes_of(dir->base, record, position, &change);
        change.level = (uint8_t)level_on_probation(p.window);
        const int32_t status = sarp_directory_apply(dir, &change, NULL, 1, &done);
        if (status != SARP_OK) return status; /* only if directory_has_room were wrong */
    }
    return SARP_OK;
}
