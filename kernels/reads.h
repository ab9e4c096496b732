/* Reads that are wanted, on their way, or done and still held: a table of log pages, the queues in front of the device,
   and the tickets of those who wait. A pure data structure: whoever reads takes runs out of it (`sarp_reads_next`) and
   says how they ended (`sarp_reads_complete`).

       want ──► fresh ──gather──► queues ──next──► runs in flight ──complete──► pages held ──release──► free
                 (one turn's wishes become runs)

   A page's key is `slot << 18 | page number in the file`. It is read once however many want it, and stays where it is
   until the last ticket that wanted it is released. Neighbours that are wanted in the same turn are one run. Matching
   goes before background work, which gets an eighth of the places and, so that it never starves, a turn after every
   sixteen that matching had. Index 0 of every array stands for none. */
#pragma once
#include "pages.h"

enum {
    SARP_READS_MATCHING = 0,
    SARP_READS_BACKGROUND = 1,
    SARP_READS_SLOTS = 65536,
    SARP_READS_SHORT = 61 /* ENODATA: the file ends within the page */
};

typedef struct {
    uint32_t page_limit;   /* pages and pieces that are wanted or held at once */
    uint32_t ticket_limit;
    uint32_t file_limit;
    uint32_t queue_depth;  /* runs in flight */
    uint32_t coalesce;     /* pages of one run */
} sarp_read_limits;

/* A page, or a piece of a larger read, which has no key and goes into the caller's memory. */
typedef struct {
    uint64_t at;         /* the page's key, or the piece's offset in bytes */
    uint8_t *data;       /* NULL for a page that is not in flight or done */
    uint32_t length;     /* bytes */
    int32_t result;      /* when done: bytes read, or a negative errno */
    uint32_t file;
    uint32_t chain;      /* next in its bucket, or next free */
    uint32_t links;      /* those who wait for it */
    uint32_t references; /* tickets that hold it */
    uint32_t run_head, run_next, run_pages;
    uint32_t queue_next, queue_previous;
    uint32_t frame;      /* number + 1 */
    uint8_t state, priority, piece, hashed;
    uint32_t reserved;
} sarp_read_page;

/* One ticket's interest in one page. */
typedef struct {
    uint32_t page, ticket;
    uint32_t next_of_page, next_of_ticket; /* the latter also: next free */
} sarp_read_link;

typedef struct {
    uint32_t links, left; /* `left`: pages that are not done */
    uint32_t errors;      /* pages that could not be read */
    uint32_t next;        /* next free */
    uint8_t used, waiting;
    uint16_t reserved;
} sarp_read_ticket;

/* An open file: by descriptor, or (fd -1) one that the caller reads by its own means. */
typedef struct {
    int32_t fd;
    uint32_t users; /* pages and pieces that are not done */
    uint32_t slot;
    uint32_t next;  /* next free */
    uint64_t used_at;
    uint8_t open, closing, direct, fixed;
    uint32_t reserved;
} sarp_read_file;

/* As the system's struct iovec. */
typedef struct {
    uint8_t *data;
    uint64_t length;
} sarp_read_vector;

/* A run in flight: `vectors[first .. first + count)` are what is left of it, from byte `offset` of the file on. */
typedef struct {
    uint64_t offset;
    uint32_t page;  /* its first page; the others follow by run_next */
    uint32_t file;
    uint32_t pages, first, count;
    uint32_t read;  /* bytes so far */
    uint32_t tries;
    uint32_t next;  /* next free */
} sarp_read_run;

typedef struct {
    uint32_t first, last;
} sarp_read_queue;

typedef struct sarp_reads {
    sarp_read_limits limits;
    sarp_read_page *pages;
    sarp_read_link *links;
    sarp_read_ticket *tickets;
    sarp_read_file *files;
    sarp_read_run *runs;
    sarp_read_vector *vectors;
    uint32_t *slots;   /* the file of each slot */
    uint32_t *buckets;
    uint32_t *fresh;   /* pages and pieces that are not in a queue yet */
    uint32_t *sorting; /* room for sorting them */
    uint32_t *frames_free;
    uint32_t *done;    /* tickets that were waited for and have nothing left; the caller empties the list */
    uint32_t *handed;  /* runs that the caller is to read; the caller empties the list */
    uint32_t *again;   /* runs in flight of which a part is left to read */
    uint8_t *frames;   /* page_limit frames of 4 KiB */
    sarp_cache *cache; /* gets every page that is read, or NULL */
    sarp_read_queue queues[2];
    uint32_t in_flight[2];
    uint32_t bucket_count, link_limit;
    uint32_t page_free, page_used, link_free, link_used, ticket_free, ticket_used, file_free, file_used;
    uint32_t run_free, run_used, frames_free_count, frames_used;
    uint32_t fresh_count, done_count, handed_count, again_count;
    uint32_t passed_over, pages_live, pages_held, reserved;
    uint64_t clock;
    uint64_t reads, pages_read, coalesced, joined, errors, in_flight_max;
} sarp_reads;

/* Bytes of memory (zeroed) that a table with these limits needs besides its frames; 0 for impossible limits. */
size_t sarp_reads_bytes(const sarp_read_limits *limits);

/* Makes an empty table. `frames` are page_limit * 4096 bytes. SARP_OK or SARP_INVALID. */
int32_t sarp_reads_init(sarp_reads *reads, const sarp_read_limits *limits, void *memory, uint8_t *frames);

/* A file that can be read from now on; 0 where there is no room. `direct`: it was opened with O_DIRECT. */
uint32_t sarp_reads_open(sarp_reads *reads, int32_t fd, int direct);

/* Pages of this slot are this file's from now on. Pages that the slot's former file still has under way stay its. */
int32_t sarp_reads_bind(sarp_reads *reads, uint32_t slot, uint32_t file);

/* No new reads of the file. Returns how many are still to be done, after the last of which it can be freed. */
int32_t sarp_reads_close(sarp_reads *reads, uint32_t file);
int32_t sarp_reads_free(sarp_reads *reads, uint32_t file);

/* The slot's pages, read or under way, are no longer what the slot's pages are: nobody finds them any more. */
void sarp_reads_forget(sarp_reads *reads, uint32_t slot);

/* A ticket without pages; 0 where there is no room. */
uint32_t sarp_reads_ticket(sarp_reads *reads);

/* Adds pages to a ticket; `keys` may name a page twice. Those whose slot has no open file are moved to the front of
   `keys`, and their number to `unopened`. SARP_FULL where there is no room (some may have been added), SARP_INVALID. */
int32_t sarp_reads_want(sarp_reads *reads, uint32_t ticket, uint64_t *keys, size_t count, uint32_t priority,
                        uint32_t *unopened);

/* Adds a piece of a larger read, whose `data` must stay until it is done. Returns its page, or 0 for no room. */
uint32_t sarp_reads_piece(sarp_reads *reads, uint32_t ticket, uint32_t file, uint64_t offset, uint8_t *data,
                          uint32_t length, uint32_t priority);

/* Adds a page that is done: `data` (4096 bytes that outlive the ticket), or an errno. A page already there stays. */
int32_t sarp_reads_put(sarp_reads *reads, uint32_t ticket, uint64_t key, uint8_t *data, int32_t error);

/* Whether the ticket has to be waited for; then it will be in `done` once. */
int32_t sarp_reads_wait(sarp_reads *reads, uint32_t ticket);

/* Pages of the ticket that could not be read, with their errnos, at most `limit`. Returns how many. */
uint32_t sarp_reads_errors(const sarp_reads *reads, uint32_t ticket, uint64_t *keys, int32_t *errors, uint32_t limit);

/* Gives up a ticket that has nothing left to wait for, with the pages that no other holds; else SARP_INVALID. */
int32_t sarp_reads_release(sarp_reads *reads, uint32_t ticket);

/* 1 and the page's bytes (NULL: it cannot be read) where it is held; else 0. */
int32_t sarp_reads_find(const sarp_reads *reads, uint64_t key, const uint8_t **data);

/* The next run to be read, in flight from now on; 0 where none may go. */
uint32_t sarp_reads_next(sarp_reads *reads);

/* Moves all runs that may go to `handed`. Returns the length of that list. */
uint32_t sarp_reads_hand(sarp_reads *reads);

/* What came of a run's read: bytes, 0 at end of file, or a negative errno. */
int32_t sarp_reads_complete(sarp_reads *reads, uint32_t run, int32_t result);
