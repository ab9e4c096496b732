#include "reads.h"

#include "format.h"
#include "internal_reads.h"

/* Lifetimes: tickets, files, wishes, and what is held. How runs are made and completed is in reads_run.c. */

enum { ALIGNMENT = 64, DEPTH_MAX = 4096, COALESCE_MAX = 1024, PAGES_MAX = 1 << 24 };

static const uint64_t KEYS_END = (uint64_t)SARP_READS_SLOTS << READS_SLOT_SHIFT;

/* --- memory */

static size_t carve(size_t *at, size_t count, size_t size) {
    const size_t begin = *at;
    *at = (begin + count * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return begin;
}

static uint32_t buckets_for(uint32_t page_limit) {
    uint32_t buckets = 64;
    while (buckets < page_limit && buckets < 1u << 16) buckets *= 2;
    return buckets;
}

static size_t layout(sarp_reads *r, const sarp_read_limits *l, void *memory) {
    size_t at = 0;
    const size_t pages = (size_t)l->page_limit + 1, tickets = (size_t)l->ticket_limit + 1;
    const size_t runs = (size_t)l->queue_depth + 1;
    r->link_limit = 4 * l->page_limit;
    r->bucket_count = buckets_for(l->page_limit);
#define PART(field, count, type) r->field = (type *)((uintptr_t)memory + carve(&at, count, sizeof(type)))
    PART(pages, pages, sarp_read_page);
    PART(links, (size_t)r->link_limit + 1, sarp_read_link);
    PART(tickets, tickets, sarp_read_ticket);
    PART(files, (size_t)l->file_limit + 1, sarp_read_file);
    PART(runs, runs, sarp_read_run);
    PART(vectors, runs * l->coalesce, sarp_read_vector);
    PART(slots, SARP_READS_SLOTS, uint32_t);
    PART(buckets, r->bucket_count, uint32_t);
    PART(fresh, pages, uint32_t);
    PART(sorting, pages, uint32_t);
    PART(frames_free, pages, uint32_t);
    PART(done, tickets, uint32_t);
    PART(handed, runs, uint32_t);
    PART(again, runs, uint32_t);
#undef PART
    return at;
}

static int possible(const sarp_read_limits *l) {
    return l->page_limit >= 1 && l->page_limit <= PAGES_MAX && l->ticket_limit >= 1 && l->ticket_limit <= PAGES_MAX &&
           l->file_limit >= 1 && l->file_limit <= PAGES_MAX && l->queue_depth >= 1 && l->queue_depth <= DEPTH_MAX &&
           l->coalesce >= 1 && l->coalesce <= COALESCE_MAX;
}

size_t sarp_reads_bytes(const sarp_read_limits *limits) {
    sarp_reads only_sizes;
    return possible(limits) ? layout(&only_sizes, limits, NULL) : 0;
}

int32_t sarp_reads_init(sarp_reads *r, const sarp_read_limits *limits, void *memory, uint8_t *frames) {
    if (!possible(limits)) return SARP_INVALID;
    memset(r, 0, sizeof *r);
    r->limits = *limits;
    r->frames = frames;
    layout(r, limits, memory);
    return SARP_OK;
}

/* --- files */

static sarp_read_file *open_file(const sarp_reads *r, uint32_t file) {
    return file && file <= r->file_used && r->files[file].open ? r->files + file : NULL;
}

uint32_t sarp_reads_open(sarp_reads *r, int32_t fd, int direct) {
    uint32_t file = r->file_free;
    if (file) r->file_free = r->files[file].next;
    else if (r->file_used < r->limits.file_limit) file = ++r->file_used;
    else return 0;
    r->files[file] = (sarp_read_file){
        .fd = fd < 0 ? -1 : fd, .open = 1, .direct = direct != 0, .slot = SARP_READS_SLOTS, .used_at = ++r->clock};
    return file;
}

int32_t sarp_reads_bind(sarp_reads *r, uint32_t slot, uint32_t file) {
    sarp_read_file *f = open_file(r, file);
    if (!f || f->closing || slot >= SARP_READS_SLOTS || f->slot != SARP_READS_SLOTS) return SARP_INVALID;
    if (r->slots[slot]) r->files[r->slots[slot]].slot = SARP_READS_SLOTS;
    r->slots[slot] = file;
    f->slot = slot;
    return SARP_OK;
}

int32_t sarp_reads_close(sarp_reads *r, uint32_t file) {
    sarp_read_file *f = open_file(r, file);
    if (!f) return SARP_INVALID;
    f->closing = 1;
    if (f->slot < SARP_READS_SLOTS) r->slots[f->slot] = 0;
    f->slot = SARP_READS_SLOTS;
    return (int32_t)f->users;
}

int32_t sarp_reads_free(sarp_reads *r, uint32_t file) {
    sarp_read_file *f = open_file(r, file);
    if (!f || !f->closing || f->users) return SARP_INVALID;
    f->open = 0;
    f->next = r->file_free;
    r->file_free = file;
    return SARP_OK;
}

/* --- the table of pages */

static inline uint32_t *bucket_of(const sarp_reads *r, uint64_t key) {
    return r->buckets + ((uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (r->bucket_count - 1));
}

static uint32_t lookup(const sarp_reads *r, uint64_t key) {
    uint32_t page = *bucket_of(r, key);
    while (page && r->pages[page].at != key) page = r->pages[page].chain;
    return page;
}

static uint32_t page_take(sarp_reads *r) {
    uint32_t page = r->page_free;
    if (page) r->page_free = r->pages[page].chain;
    else if (r->page_used < r->limits.page_limit) page = ++r->page_used;
    else return 0;
    r->pages_live++;
    memset(r->pages + page, 0, sizeof *r->pages);
    return page;
}

static void hash_add(sarp_reads *r, uint32_t page) {
    uint32_t *bucket = bucket_of(r, r->pages[page].at);
    r->pages[page].chain = *bucket;
    r->pages[page].hashed = 1;
    *bucket = page;
}

void reads_unhash(sarp_reads *r, uint32_t page) {
    sarp_read_page *p = r->pages + page;
    if (!p->hashed) return;
    uint32_t *at = bucket_of(r, p->at);
    while (*at != page) at = &r->pages[*at].chain;
    *at = p->chain;
    p->hashed = 0;
}

static void page_drop(sarp_reads *r, uint32_t page) {
    sarp_read_page *p = r->pages + page;
    if (--p->references) return;
    reads_unhash(r, page);
    reads_frame_free(r, p);
    p->state = READS_FREE;
    p->chain = r->page_free;
    r->page_free = page;
    r->pages_live--;
    r->pages_held--;
}

void sarp_reads_forget(sarp_reads *r, uint32_t slot) {
    for (uint32_t page = 1; page <= r->page_used; page++) {
        const sarp_read_page *p = r->pages + page;
        if (p->state != READS_FREE && p->hashed && p->at >> READS_SLOT_SHIFT == slot) reads_unhash(r, page);
    }
}

int32_t sarp_reads_find(const sarp_reads *r, uint64_t key, const uint8_t **data) {
    if (!r->pages_held) return 0;
    const uint32_t page = lookup(r, key);
    if (!page || r->pages[page].state != READS_DONE) return 0;
    *data = r->pages[page].result == SARP_PAGE ? r->pages[page].data : NULL;
    return 1;
}

/* --- tickets */

static sarp_read_ticket *used_ticket(const sarp_reads *r, uint32_t ticket) {
    return ticket && ticket <= r->ticket_used && r->tickets[ticket].used ? r->tickets + ticket : NULL;
}

uint32_t sarp_reads_ticket(sarp_reads *r) {
    uint32_t ticket = r->ticket_free;
    if (ticket) r->ticket_free = r->tickets[ticket].next;
    else if (r->ticket_used < r->limits.ticket_limit) ticket = ++r->ticket_used;
    else return 0;
    r->tickets[ticket] = (sarp_read_ticket){.used = 1};
    return ticket;
}

static int link_room(const sarp_reads *r) { return r->link_free || r->link_used < r->link_limit; }

/* The caller has seen that there is room. */
static void link_add(sarp_reads *r, uint32_t page, uint32_t ticket) {
    sarp_read_page *p = r->pages + page;
    uint32_t link = r->link_free;
    if (link) r->link_free = r->links[link].next_of_ticket;
    else link = ++r->link_used;
    r->links[link] = (sarp_read_link){page, ticket, 0, r->tickets[ticket].links};
    r->tickets[ticket].links = link;
    p->references++;
    if (p->state == READS_DONE) {
        r->tickets[ticket].errors += p->result < 0;
        return;
    }
    r->links[link].next_of_page = p->links;
    p->links = link;
    r->tickets[ticket].left++;
}

int32_t sarp_reads_wait(sarp_reads *r, uint32_t ticket) {
    sarp_read_ticket *t = used_ticket(r, ticket);
    if (!t) return SARP_INVALID;
    t->waiting = t->left > 0;
    return t->waiting;
}

uint32_t sarp_reads_errors(const sarp_reads *r, uint32_t ticket, uint64_t *keys, int32_t *errors, uint32_t limit) {
    const sarp_read_ticket *t = used_ticket(r, ticket);
    uint32_t count = 0;
    for (uint32_t link = t ? t->links : 0; link && count < limit; link = r->links[link].next_of_ticket) {
        const sarp_read_page *p = r->pages + r->links[link].page;
        if (p->state != READS_DONE || p->result >= 0 || p->piece) continue;
        keys[count] = p->at;
        errors[count++] = -p->result;
    }
    return count;
}

int32_t sarp_reads_release(sarp_reads *r, uint32_t ticket) {
    sarp_read_ticket *t = used_ticket(r, ticket);
    if (!t || t->left) return SARP_INVALID;
    for (uint32_t link = t->links, next; link; link = next) {
        next = r->links[link].next_of_ticket;
        page_drop(r, r->links[link].page);
        r->links[link].next_of_ticket = r->link_free;
        r->link_free = link;
    }
    t->used = 0;
    t->next = r->ticket_free;
    r->ticket_free = ticket;
    return SARP_OK;
}

/* --- wishes */

static uint32_t page_new(sarp_reads *r, uint32_t file, uint64_t at, uint32_t length, uint32_t priority) {
    const uint32_t page = page_take(r);
    if (!page) return 0;
    sarp_read_page *p = r->pages + page;
    p->at = at;
    p->file = file;
    p->length = length;
    p->priority = (uint8_t)priority;
    p->state = READS_FRESH;
    r->files[file].users++;
    r->fresh[r->fresh_count++] = page;
    return page;
}

/* Whether the ticket was the last to want the page: most repetitions within a call, which cost nothing but a link. */
static int wanted_just_now(const sarp_reads *r, uint32_t page, uint32_t ticket) {
    const uint32_t link = r->pages[page].links;
    return link && r->links[link].ticket == ticket;
}

static int32_t want_one(sarp_reads *r, uint32_t ticket, uint64_t key, uint32_t priority) {
    uint32_t page = lookup(r, key);
    if (page && wanted_just_now(r, page, ticket)) return SARP_OK;
    if (!link_room(r)) return SARP_FULL;
    if (page) {
        r->joined++;
        if (priority < r->pages[page].priority) reads_promote(r, page, priority);
    } else {
        const uint32_t file = r->slots[key >> READS_SLOT_SHIFT];
        if (!file) return SARP_NEED;
        page = page_new(r, file, key, SARP_PAGE, priority);
        if (!page) return SARP_FULL;
        r->files[file].used_at = ++r->clock;
        hash_add(r, page);
    }
    link_add(r, page, ticket);
    return SARP_OK;
}

int32_t sarp_reads_want(sarp_reads *r, uint32_t ticket, uint64_t *keys, size_t count, uint32_t priority,
                        uint32_t *unopened) {
    *unopened = 0;
    if (!used_ticket(r, ticket) || priority > SARP_READS_BACKGROUND) return SARP_INVALID;
    for (size_t i = 0; i < count; i++) {
        if (keys[i] >= KEYS_END) return SARP_INVALID;
        const int32_t status = want_one(r, ticket, keys[i], priority);
        if (status == SARP_NEED) keys[(*unopened)++] = keys[i];
        else if (status != SARP_OK) return status;
    }
    return SARP_OK;
}

uint32_t sarp_reads_piece(sarp_reads *r, uint32_t ticket, uint32_t file, uint64_t offset, uint8_t *data,
                          uint32_t length, uint32_t priority) {
    const sarp_read_file *f = open_file(r, file);
    if (!used_ticket(r, ticket) || !f || f->closing || !length || length > 1u << 30 ||
        priority > SARP_READS_BACKGROUND || !link_room(r))
        return 0;
    const uint32_t page = page_new(r, file, offset, length, priority);
    if (!page) return 0;
    r->pages[page].piece = 1;
    r->pages[page].data = data;
    link_add(r, page, ticket);
    return page;
}

int32_t sarp_reads_put(sarp_reads *r, uint32_t ticket, uint64_t key, uint8_t *data, int32_t error) {
    if (!used_ticket(r, ticket) || key >= KEYS_END) return SARP_INVALID;
    if (!link_room(r)) return SARP_FULL;
    uint32_t page = lookup(r, key);
    if (!page) {
        page = page_take(r);
        if (!page) return SARP_FULL;
        sarp_read_page *p = r->pages + page;
        p->at = key;
        p->length = SARP_PAGE;
        p->state = READS_DONE;
        p->data = data;
        p->result = error > 0 ? -error : data ? SARP_PAGE : -SARP_READS_SHORT;
        r->pages_held++;
        if (p->result >= 0 || reads_error_stays(-p->result)) hash_add(r, page);
    }
    link_add(r, page, ticket);
    return SARP_OK;
}
