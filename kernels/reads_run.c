#include "format.h"
#include "internal_reads.h"

/* From wishes to runs in flight and back: gathering, queues, places, completion. */

enum {
    BACKGROUND_SHARE = 8,  /* background takes at most an eighth of the places */
    PASSED_OVER_MAX = 16,  /* matching runs that may go before a waiting background run */
    TRIES_MAX = 64,        /* interruptions of one run in a row */
    SECTOR = 512
};

/* --- frames */

static void frame_take(sarp_reads *r, sarp_read_page *p) {
    /* The one freed last first: few frames are touched, and those are cached. There are as many as pages. */
    p->frame = r->frames_free_count ? r->frames_free[--r->frames_free_count] : ++r->frames_used;
    p->data = r->frames + (size_t)(p->frame - 1) * SARP_PAGE;
}

void reads_frame_free(sarp_reads *r, sarp_read_page *p) {
    if (p->frame) r->frames_free[r->frames_free_count++] = p->frame;
    p->frame = 0;
    p->data = NULL;
}

/* --- queues: linked through the first page of each run */

/* Puts a run behind another of its queue, or (0) before all. */
static void queue_insert(sarp_reads *r, uint32_t head, uint32_t behind) {
    sarp_read_page *p = r->pages + head;
    sarp_read_queue *q = r->queues + p->priority;
    p->queue_previous = behind;
    p->queue_next = behind ? r->pages[behind].queue_next : q->first;
    if (p->queue_previous) r->pages[p->queue_previous].queue_next = head;
    else q->first = head;
    if (p->queue_next) r->pages[p->queue_next].queue_previous = head;
    else q->last = head;
}

static void queue_push(sarp_reads *r, uint32_t head) { queue_insert(r, head, r->queues[r->pages[head].priority].last); }

static void queue_remove(sarp_reads *r, uint32_t head) {
    const sarp_read_page *p = r->pages + head;
    sarp_read_queue *q = r->queues + p->priority;
    if (p->queue_previous) r->pages[p->queue_previous].queue_next = p->queue_next;
    else q->first = p->queue_next;
    if (p->queue_next) r->pages[p->queue_next].queue_previous = p->queue_previous;
    else q->last = p->queue_previous;
}

static void run_start(sarp_reads *r, uint32_t page) {
    sarp_read_page *p = r->pages + page;
    p->run_head = page;
    p->run_pages = 1;
    p->run_next = 0;
    p->state = READS_QUEUED;
}

void reads_promote(sarp_reads *r, uint32_t page, uint32_t priority) {
    sarp_read_page *p = r->pages + page;
    if (p->state == READS_FRESH) p->priority = (uint8_t)priority;
    if (p->state != READS_QUEUED) return;
    const uint32_t head = p->run_head;
    queue_remove(r, head);
    for (uint32_t each = head; each; each = r->pages[each].run_next) r->pages[each].priority = (uint8_t)priority;
    queue_push(r, head);
}

/* --- gathering */

/* Matching first, then by file, then by place; pieces stay in the order of their wishes, before the pages. */
static int goes_before(const sarp_reads *r, uint32_t a, uint32_t b) {
    const sarp_read_page *p = r->pages + a, *q = r->pages + b;
    if (p->priority != q->priority) return p->priority < q->priority;
    if (p->piece || q->piece) return p->piece && !q->piece;
    if (p->file != q->file) return p->file < q->file;
    return p->at < q->at;
}

/* Bottom-up merge sort, stable: the C library's may allocate. */
static void sort_fresh(const sarp_reads *r, uint32_t *list, uint32_t *other, uint32_t count) {
    uint32_t *from = list, *to = other;
    for (uint32_t width = 1; width < count; width *= 2) {
        for (uint32_t low = 0; low < count; low += 2 * width) {
            const uint32_t middle = count - low < width ? count : low + width;
            const uint32_t high = count - low < 2 * width ? count : low + 2 * width;
            for (uint32_t i = low, j = middle, at = low; at < high; at++)
                to[at] = i < middle && (j == high || !goes_before(r, from[j], from[i])) ? from[i++] : from[j++];
        }
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != list) memcpy(list, from, (size_t)count * sizeof *list);
}

static int neighbours(const sarp_reads *r, uint32_t last, uint32_t page) {
    const sarp_read_page *p = r->pages + last, *q = r->pages + page;
    return !p->piece && !q->piece && q->at == p->at + 1 && q->file == p->file && q->priority == p->priority;
}

/* Makes runs of what this turn's wishes are, and queues them. */
static void gather(sarp_reads *r) {
    const uint32_t count = r->fresh_count;
    if (count > 1) sort_fresh(r, r->fresh, r->sorting, count);
    for (uint32_t i = 0; i < count;) {
        const uint32_t head = r->fresh[i];
        uint32_t last = head;
        run_start(r, head);
        while (++i < count && r->pages[head].run_pages < r->limits.coalesce && neighbours(r, last, r->fresh[i])) {
            const uint32_t page = r->fresh[i];
            run_start(r, page);
            r->pages[page].run_head = head;
            r->pages[last].run_next = page;
            r->pages[head].run_pages++;
            r->coalesced++;
            last = page;
        }
        queue_push(r, head);
    }
    r->fresh_count = 0;
}

/* --- issuing */

/* The queued run whose turn it is; 0 where none may go. */
static uint32_t turn(sarp_reads *r) {
    const uint32_t depth = r->limits.queue_depth;
    if (r->in_flight[0] + r->in_flight[1] >= depth) return 0;
    const uint32_t share = depth < BACKGROUND_SHARE ? 1 : depth / BACKGROUND_SHARE;
    const uint32_t matching = r->queues[SARP_READS_MATCHING].first;
    const uint32_t background = r->in_flight[1] < share ? r->queues[SARP_READS_BACKGROUND].first : 0;
    if (matching && !(background && r->passed_over >= PASSED_OVER_MAX)) {
        r->passed_over += background != 0;
        return matching;
    }
    if (background) r->passed_over = 0;
    return background;
}

static uint32_t issue(sarp_reads *r, uint32_t head) {
    uint32_t run = r->run_free;
    if (run) r->run_free = r->runs[run].next;
    else run = ++r->run_used; /* as many as may be in flight */
    const sarp_read_page *first = r->pages + head;
    sarp_read_run *out = r->runs + run;
    *out = (sarp_read_run){.page = head, .file = first->file, .pages = first->run_pages, .count = first->run_pages};
    out->offset = first->piece ? first->at : (first->at & ((1u << READS_SLOT_SHIFT) - 1)) * SARP_PAGE;
    out->first = run * r->limits.coalesce;
    for (uint32_t page = head, i = 0; page; page = r->pages[page].run_next, i++) {
        sarp_read_page *p = r->pages + page;
        p->state = READS_IN_FLIGHT;
        if (!p->piece) frame_take(r, p);
        r->vectors[out->first + i] = (sarp_read_vector){p->data, p->length};
    }
    r->in_flight[first->priority]++;
    r->reads++;
    if (r->in_flight[0] + r->in_flight[1] > r->in_flight_max) r->in_flight_max = r->in_flight[0] + r->in_flight[1];
    return run;
}

uint32_t sarp_reads_next(sarp_reads *r) {
    if (r->again_count) return r->again[--r->again_count];
    if (r->fresh_count) gather(r);
    const uint32_t head = turn(r);
    if (!head) return 0;
    queue_remove(r, head);
    return issue(r, head);
}

uint32_t sarp_reads_hand(sarp_reads *r) {
    for (uint32_t run; r->handed_count < r->limits.queue_depth && (run = sarp_reads_next(r));)
        r->handed[r->handed_count++] = run;
    return r->handed_count;
}

/* --- completing */

static void tell(sarp_reads *r, const sarp_read_page *p) {
    for (uint32_t link = p->links; link; link = r->links[link].next_of_page) {
        const uint32_t ticket = r->links[link].ticket;
        sarp_read_ticket *t = r->tickets + ticket;
        t->errors += p->result < 0;
        if (--t->left || !t->waiting || r->done_count >= r->limits.ticket_limit) continue;
        t->waiting = 0;
        r->done[r->done_count++] = ticket;
    }
}

static void page_done(sarp_reads *r, uint32_t page, int32_t result) {
    sarp_read_page *p = r->pages + page;
    p->result = result;
    p->state = READS_DONE;
    r->pages_held++;
    r->files[p->file].users--;
    if (result < 0) {
        reads_frame_free(r, p);
        if (!reads_error_stays(-result)) reads_unhash(r, page);
    } else if (!p->piece) {
        r->pages_read++;
        /* One that was forgotten meanwhile is no longer what its key says. */
        if (r->cache && p->hashed) sarp_cache_insert(r->cache, p->at, p->data, 1);
    }
    tell(r, p);
    p->links = 0;
}

/* A bad page must not cost its neighbours: the pages of a failed run go one by one, before all others. */
static void read_singly(sarp_reads *r, uint32_t head) {
    uint32_t behind = 0;
    for (uint32_t page = head, next; page; page = next) {
        next = r->pages[page].run_next;
        reads_frame_free(r, r->pages + page);
        run_start(r, page);
        queue_insert(r, page, behind);
        behind = page;
    }
}

static void finish(sarp_reads *r, uint32_t run, int32_t error) {
    sarp_read_run *done = r->runs + run;
    const uint32_t head = done->page;
    uint32_t left = done->read;
    r->in_flight[r->pages[head].priority]--;
    r->errors += error != 0;
    if (error && done->pages > 1) {
        read_singly(r, head);
    } else {
        for (uint32_t page = head, next; page; page = next) {
            sarp_read_page *p = r->pages + page;
            const uint32_t got = left < p->length ? left : p->length;
            next = p->run_next;
            left -= got;
            const int whole = p->piece || got == p->length;
            page_done(r, page, error ? error : whole ? (int32_t)got : -SARP_READS_SHORT);
        }
    }
    done->page = 0;
    done->next = r->run_free;
    r->run_free = run;
}

/* Takes `bytes` off the run's front. Returns what is left of it. */
static uint64_t advance(sarp_reads *r, sarp_read_run *run, uint32_t bytes) {
    uint64_t left = 0;
    run->read += bytes;
    run->offset += bytes;
    while (run->count && bytes >= r->vectors[run->first].length) {
        bytes -= (uint32_t)r->vectors[run->first].length;
        run->first++;
        run->count--;
    }
    if (run->count) {
        r->vectors[run->first].data += bytes;
        r->vectors[run->first].length -= bytes;
    }
    for (uint32_t i = 0; i < run->count; i++) left += r->vectors[run->first + i].length;
    return left;
}

int32_t sarp_reads_complete(sarp_reads *r, uint32_t run, int32_t result) {
    if (!run || run > r->run_used || !r->runs[run].page) return SARP_INVALID;
    sarp_read_run *at = r->runs + run;
    if ((result == -EINTR || result == -EAGAIN) && ++at->tries < TRIES_MAX) {
        r->again[r->again_count++] = run;
        return SARP_OK;
    }
    if (result < 0) {
        finish(r, run, result);
        return SARP_OK;
    }
    uint64_t room = 0;
    for (uint32_t i = 0; i < at->count; i++) room += r->vectors[at->first + i].length;
    if ((uint64_t)result > room) return SARP_INVALID;
    /* A direct read ends between sectors only at the end of the file, and could not go on there. */
    const int ended = result == 0 || (r->files[at->file].direct && result % SECTOR);
    if (advance(r, at, (uint32_t)result) == 0 || ended) {
        finish(r, run, 0);
        return SARP_OK;
    }
    at->tries = 0;
    r->again[r->again_count++] = run;
    return SARP_OK;
}
