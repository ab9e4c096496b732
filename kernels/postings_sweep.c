#include "internal_change.h"
#include "internal_markpass.h"
#include "internal_postings.h"

enum { MOVES_MAX = 128 }; /* in one call: some 0.2 ms */

/* One partition is written anew in place: what stays moves up to the front, what stands elsewhere from now on is put aside. */
typedef struct {
    sarp_postings *dir;
    sarp_posting_partition *part;
    sarp_mark_plan *plan;
    uint32_t kept, moved;
    int changed, unfinished;
    sarp_posting moves[MOVES_MAX];
} sweep;

/* A posting of a record of which `left` blocks stay. */
static sarp_posting cut_to(const sarp_posting *e, uint32_t left) {
    const uint32_t point = posting_point(e), length = fingerprints_of(left, point);
    const uint64_t mask = length ? ~UINT64_C(0) << 8 * (FINGERPRINTS - length) : 0;
    return (sarp_posting){posting_word0(posting_key(e), left, posting_d(e), point), e->word1, e->filter & mask};
}

static void keep(sweep *s, sarp_posting e) {
    *posting_at(s->dir, s->part, s->kept++) = e;
    count_posting(s->dir, s->part, &e, 1);
}

static void drop(sweep *s, const sarp_posting *e, uint8_t verdict) {
    s->changed = 1;
    if (posting_point(e)) return; /* a record is counted where all are */
    s->plan->dropped++;
    s->plan->unreadable += verdict == VERDICT_MISSING;
}

static void cut(sweep *s, const sarp_posting *e, uint32_t left) {
    const sarp_posting shorter = cut_to(e, left);
    if (shorter.filter != e->filter && s->moved == MOVES_MAX) {
        s->unfinished = 1;
        keep(s, *e);
        return;
    }
    s->changed = 1;
    s->plan->cut += posting_point(e) == 0;
    if (shorter.filter == e->filter) keep(s, shorter);
    else s->moves[s->moved++] = shorter;
}

static void sweep_posting(sweep *s, uint32_t index, uint8_t verdict) {
    const sarp_posting e = *posting_at(s->dir, s->part, index);
    const uint32_t left = verdict == VERDICT_MISSING ? 0 : verdict;
    count_posting(s->dir, s->part, &e, -1);
    if (posting_is_state(&e) || left >= posting_n(&e)) keep(s, e);
    else if (left <= posting_d(&e) || left <= point_offset(posting_point(&e))) drop(s, &e, verdict);
    else cut(s, &e, left);
}

static void judge_all(const sweep *s, uint8_t *verdicts) {
    uint64_t references[SARP_PARTITION_POSTINGS_MAX];
    for (uint32_t i = 0; i < s->part->entries; i++) references[i] = posting_reference(posting_at(s->dir, s->part, i));
    verdicts_of(s->plan, s->dir->base, references, s->part->entries, verdicts);
}

int32_t sarp_postings_sweep(sarp_postings *dir, uint32_t partition, sarp_mark_plan *plan) {
    sarp_posting_partition *part = dir->partitions + partition;
    const uint32_t total = part->entries;
    if (!(part->flags & SARP_PARTITION_LOADED) || total == 0) return 1;
    uint8_t verdicts[SARP_PARTITION_POSTINGS_MAX];
    sweep s = {.dir = dir, .part = part, .plan = plan};
    judge_all(&s, verdicts);
    for (uint32_t i = 0; i < total; i++) sweep_posting(&s, i, verdicts[i]);
    part->entries = (uint16_t)s.kept;
    arena_resize(&dir->arena, part->pages, posting_pages(total), posting_pages(s.kept));
    if (s.changed) part->flags |= SARP_PARTITION_DIRTY;
    for (uint32_t i = 0; i < s.moved; i++) postings_enter(dir, s.moves[i]);
    return !s.unfinished;
}

uint32_t sarp_postings_empty_states(const sarp_postings *dir, uint32_t partition, sarp_change *out, uint32_t limit) {
    const sarp_posting_partition *part = dir->partitions + partition;
    uint32_t count = 0;
    if (!(part->flags & SARP_PARTITION_LOADED)) return 0;
    for (uint32_t i = 0; i < part->entries && count < limit; i++) {
        const sarp_posting *e = posting_at(dir, part, i);
        if (!posting_is_state(e)) continue;
        const posting_list list = list_open(dir, posting_key(e));
        if (!list.loaded || list.count) continue;
        out[count++] = (sarp_change){.key = posting_key(e),
                                     .root_key = list.flags,
                                     .n = 1,
                                     .type = SARP_POSTINGS,
                                     .point = (uint8_t)posting_point(e),
                                     .operation = CHANGE_DROP};
    }
    return count;
}
