/* io_uring by its system calls: takes runs out of a table of reads, hands them to the kernel, many with one call, and
   brings back what came of them. Everything is called by one thread; nothing here waits for a read. */
#pragma once
#include "reads.h"

typedef struct {
    int32_t fd, event_fd; /* `event_fd` becomes readable when there is something to bring back */
    uint32_t setup;       /* IORING_SETUP_ flags that the kernel took */
    uint32_t features;    /* IORING_FEAT_ flags that it offers */
    uint32_t entries;
    uint32_t tail;        /* of the submission queue, submitted or not */
    uint32_t unsubmitted;
    uint32_t files_fixed; /* registered file places */
    uint8_t *rings;       /* one mapping of both */
    uint8_t *entries_map;
    uint64_t rings_bytes, entries_bytes;
    uint32_t *sq_head, *sq_tail, *sq_flags, *cq_head, *cq_tail, *cq_flags;
    uint32_t sq_mask, cq_mask;
    uint8_t *completions;
    const uint8_t *fixed; /* registered memory */
    uint64_t fixed_bytes;
    uint64_t enters;
    int32_t enter_error;  /* for tests: what io_uring_enter answers instead of entering */
    uint32_t batch;       /* reads that one system call submits, at most */
} sarp_uring;

/* Sets a ring up for so many reads at once and tries it. 0 or a negative errno: EPERM or ENOSYS where it is forbidden.
   `simplest`: without the flags that newer kernels offer. */
int32_t sarp_uring_open(sarp_uring *ring, uint32_t entries, int32_t simplest);

/* Optional: memory and files that the kernel need not look up at each read. 0 or a negative errno. */
int32_t sarp_uring_fix_memory(sarp_uring *ring, uint8_t *data, uint64_t bytes);
int32_t sarp_uring_fix_files(sarp_uring *ring, uint32_t count);

/* Puts a file of the table into its place among the fixed ones (fd -1: takes it out). */
int32_t sarp_uring_fix_file(sarp_uring *ring, sarp_reads *reads, uint32_t file);

/* Completes what has ended and submits what may go (`woken`: since `event_fd` is readable); runs of files without a
   descriptor are moved to `reads->handed`. Returns 0; 1 where there is more to do at once; 2 where the kernel takes no
   more now and no completion will follow; or a negative errno, with which the runs that could not be submitted are
   completed. */
int32_t sarp_uring_turn(sarp_uring *ring, sarp_reads *reads, int32_t woken);

/* Waits up to so many milliseconds for something to bring back: only for the end. 0 or a negative errno. */
int32_t sarp_uring_wait(sarp_uring *ring, int32_t timeout_ms);

void sarp_uring_close(sarp_uring *ring);

/* What is left of a run in flight, read by a plain system call, from any thread: bytes, or a negative errno. The file
   has a descriptor. To be completed with what this returns. */
int32_t sarp_reads_pread(const sarp_reads *reads, uint32_t run);
