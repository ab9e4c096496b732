/* io_uring's interface to the kernel, as of Linux 6.0, for builds whose system headers are older. */
#pragma once
#include <stdint.h>

enum {
    URING_OP_NOP = 0,
    URING_OP_READV = 1,
    URING_OP_READ_FIXED = 4,
    URING_OP_READ = 22,

    URING_SQE_FIXED_FILE = 1,
    URING_SQE_ASYNC = 1 << 4,

    URING_SETUP_CLAMP = 1 << 4,
    URING_SETUP_SUBMIT_ALL = 1 << 7,
    URING_SETUP_COOP_TASKRUN = 1 << 8,
    URING_SETUP_TASKRUN_FLAG = 1 << 9,
    URING_SETUP_SINGLE_ISSUER = 1 << 12,
    URING_SETUP_DEFER_TASKRUN = 1 << 13,

    URING_FEAT_SINGLE_MMAP = 1 << 0,
    URING_FEAT_NODROP = 1 << 1,
    URING_FEAT_SUBMIT_STABLE = 1 << 2,
    URING_FEAT_RW_CUR_POS = 1 << 3, /* came with IORING_OP_READ */

    URING_ENTER_GETEVENTS = 1,

    URING_SQ_CQ_OVERFLOW = 1 << 1,
    URING_SQ_TASKRUN = 1 << 2,
    URING_CQ_EVENTFD_DISABLED = 1,

    URING_REGISTER_BUFFERS = 0,
    URING_REGISTER_FILES = 2,
    URING_REGISTER_EVENTFD = 4,
    URING_REGISTER_FILES_UPDATE = 6,

    URING_OFFSET_RINGS = 0
};
#define URING_OFFSET_ENTRIES 0x10000000

/* The same on every architecture since they share their newer numbers. */
enum { URING_CALL_SETUP = 425, URING_CALL_ENTER = 426, URING_CALL_REGISTER = 427 };

typedef struct {
    uint8_t opcode, flags;
    uint16_t ioprio;
    int32_t fd;
    uint64_t offset, address;
    uint32_t length, rw_flags;
    uint64_t user_data;
    uint16_t buffer, personality;
    uint32_t file_index;
    uint64_t reserved[2];
} uring_entry;

typedef struct {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
} uring_completion;

typedef struct {
    uint32_t head, tail, mask, entries, flags, dropped, array, reserved;
    uint64_t user_address;
} uring_sq_offsets;

typedef struct {
    uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
    uint64_t user_address;
} uring_cq_offsets;

typedef struct {
    uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, reserved[3];
    uring_sq_offsets sq;
    uring_cq_offsets cq;
} uring_parameters;

typedef struct {
    uint32_t offset, reserved;
    uint64_t fds;
} uring_files_update;

_Static_assert(sizeof(uring_entry) == 64 && sizeof(uring_completion) == 16, "the kernel's sizes");
_Static_assert(sizeof(uring_parameters) == 120 && sizeof(uring_files_update) == 16, "the kernel's sizes");
