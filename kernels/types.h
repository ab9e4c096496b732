/* What several modules of the kernel share. Every structure is the caller's memory; the kernel never allocates. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    SARP_OK = 0,
    SARP_NEED = 1,     /* pages or partitions are missing: bring them and call again */
    SARP_NO_ROOM = 2,  /* the gathering commit is full */
    SARP_FULL = 3,     /* the directory's memory bound is reached */
    SARP_INVALID = -1  /* bytes or arguments that no writer of this version makes */
};

/* What every directory of a store shares: how references stand for positions, and what its keys depend on. */
typedef struct {
    uint64_t *slot_files; /* slot -> file number, 65,536 of them; 0: free */
    uint64_t secret[2];
    uint32_t slot_count; /* slots below this one may be in use */
    uint32_t features;
    uint32_t routing; /* 0: divergence, 1: sarp */
    uint32_t reserved;
} sarp_base;

/* How one log record changes the directory (format-spec/directory.md, section 3), 48 bytes. Records of other types
   than segment have only type, position and commit. */
typedef struct {
    uint64_t key;
    uint64_t root_key;
    uint64_t position;
    uint64_t supersedes; /* position; 0: none */
    uint64_t commit;
    uint8_t n, d, dp, type;
    uint32_t reserved;
} sarp_change;
