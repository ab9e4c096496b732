/* What several modules of the kernel share. Every structure is the caller's memory; the kernel never allocates. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    SARP_OK = 0,
    SARP_NEED = 1,     /* pages or partitions are missing: bring them and call again */
    SARP_NO_ROOM = 2,  /* the gathering commit is full */
    SARP_FULL = 3,     /* the directory's memory bound is reached */
    SARP_INFINITE = 4, /* an element is infinite or no number */
    SARP_INVALID = -1  /* bytes or arguments that no writer of this version makes */
};

enum {
    SARP_ARENA_PAGE = 1024,
    SARP_PARTITION_PAGES = 32,
    SARP_PARTITION_LOADED = 1,
    SARP_PARTITION_DIRTY = 2 /* changed since it was loaded or imaged */
};

enum {
    SARP_SLOTS = 65536,
    SARP_SLOT_INDEX = 131072 /* a power of two */
};

struct sarp_removals;

/* What every directory of a store shares: how references stand for positions, what its keys depend on, what was removed, and
   how much of each log file its entries name. */
typedef struct {
    uint64_t *slot_files; /* slot -> file number, SARP_SLOTS of them; 0: free */
    uint32_t *slot_index; /* file number -> slot + 1, open-addressed, SARP_SLOT_INDEX of them; 0: free (slots.h) */
    uint64_t *slot_live;  /* slot -> bytes of segment records that entries name, whole units; NULL: not counted */
    uint32_t *slot_entries; /* slot -> entries that name it, of every list; NULL with slot_live */
    struct sarp_removals *removals; /* NULL: nothing was ever removed */
    uint64_t secret[2];
    uint32_t slot_count; /* slots below this one may be in use */
    uint32_t features;
    uint32_t routing; /* 0: divergence, 1: sarp: the number in log headers */
    uint32_t location_bytes; /* of a block, for slot_live and eviction */
    uint32_t evicts;  /* recency is kept: matches lift entries */
    uint32_t clock;   /* ticks, modulo 32 */
    uint32_t resting; /* level of entries that come from images or the log: 16 at first, a tick lowers it, at least 2 */
} sarp_base;

/* Pages that sorted sequences of entries grow in, one at a time. */
typedef struct {
    uint8_t *memory; /* page_limit pages */
    uint32_t page_limit, page_next;
    uint32_t page_free; /* head of the free list, UINT32_MAX: empty */
    uint32_t pages_free;
} sarp_arena;

/* How a log record changes the directory, 48 bytes. Records of types that do not have only type, position and commit.

   divergence (format-spec/directory.md, section 3): one change a segment record. sarp (postings.md, section 4): one for each
   element of a list that comes or goes; root_key is its filter, or a state's flags, and `supersedes` the position
   of the segment record that it refers to, 0 for a state. */
typedef struct {
    uint64_t key;
    uint64_t root_key;
    uint64_t position;
    uint64_t supersedes; /* position; 0: none */
    uint64_t commit;
    uint8_t n, d, dp, type;
    uint8_t point, operation; /* sarp: 1 add, 2 drop; 0: nothing */
    uint8_t level; /* of a new entry; 0: base->resting */
    uint8_t reserved;
} sarp_change;
