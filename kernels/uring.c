#define _GNU_SOURCE
#include "uring.h"

#include "internal_uring.h"

#if defined(__linux__)
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    ENTRIES_MAX = 4096,
    FILES_MAX = 4096,
    ROUNDS = 32, /* of one turn: completions that come meanwhile do not hold the caller for ever */
    /* The kernel hands what one call submits to the device in one go, when it has prepared the last of them: a large
       batch would leave the device idle meanwhile. Measured at depth 32. */
    BATCH = 8,
    LARGE_READ = 64 << 10,
    EVENT_BYTES = 8
};

_Static_assert(sizeof(sarp_read_vector) == sizeof(struct iovec), "handed to the kernel as it is");


static int32_t register_call(const sarp_uring *ring, uint32_t what, const void *data, uint32_t count) {
    return syscall(URING_CALL_REGISTER, ring->fd, what, data, count) < 0 ? -errno : 0;
}

static int32_t enter_call(sarp_uring *ring, uint32_t submit, uint32_t wait, uint32_t flags) {
    ring->enters++;
    if (ring->enter_error) return ring->enter_error;
    const long done = syscall(URING_CALL_ENTER, ring->fd, submit, wait, flags, NULL, (size_t)0);
    return done < 0 ? -errno : (int32_t)done;
}

static inline uint32_t load_acquire(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static inline void store_release(uint32_t *at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

/* --- setting up */

static const uint32_t SETUPS[] = {
    URING_SETUP_CLAMP | URING_SETUP_SUBMIT_ALL | URING_SETUP_SINGLE_ISSUER | URING_SETUP_DEFER_TASKRUN |
        URING_SETUP_TASKRUN_FLAG,                                                                  /* 6.1 */
    URING_SETUP_CLAMP | URING_SETUP_SUBMIT_ALL | URING_SETUP_COOP_TASKRUN | URING_SETUP_TASKRUN_FLAG, /* 5.19 */
    URING_SETUP_CLAMP,                                                                             /* 5.6 */
};

static int32_t set_up(sarp_uring *ring, uint32_t entries, int32_t simplest, uring_parameters *p) {
    const size_t count = sizeof SETUPS / sizeof *SETUPS;
    for (size_t i = simplest ? count - 1 : 0; i < count; i++) {
        memset(p, 0, sizeof *p);
        p->flags = SETUPS[i];
        const long fd = syscall(URING_CALL_SETUP, entries, p);
        if (fd >= 0) {
            ring->fd = (int32_t)fd;
            ring->setup = SETUPS[i];
            ring->features = p->features;
            return 0;
        }
        if (errno != EINVAL) return -errno;
    }
    return -EINVAL;
}

static void *map(const sarp_uring *ring, uint64_t bytes, int64_t offset) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, offset);
    return at == MAP_FAILED ? NULL : at;
}

static int32_t map_rings(sarp_uring *ring, const uring_parameters *p) {
    const uint64_t sq = p->sq.array + (uint64_t)p->sq_entries * sizeof(uint32_t);
    const uint64_t cq = p->cq.completions + (uint64_t)p->cq_entries * sizeof(uring_completion);
    ring->rings_bytes = sq > cq ? sq : cq;
    ring->entries_bytes = (uint64_t)p->sq_entries * sizeof(uring_entry);
    ring->rings = map(ring, ring->rings_bytes, URING_OFFSET_RINGS);
    if (!ring->rings) return -errno;
    ring->entries_map = map(ring, ring->entries_bytes, URING_OFFSET_ENTRIES);
    if (!ring->entries_map) return -errno;
#define AT(offset) (uint32_t *)(void *)(ring->rings + (offset))
    ring->sq_head = AT(p->sq.head);
    ring->sq_tail = AT(p->sq.tail);
    ring->sq_flags = AT(p->sq.flags);
    ring->cq_head = AT(p->cq.head);
    ring->cq_tail = AT(p->cq.tail);
    ring->cq_flags = p->cq.flags ? AT(p->cq.flags) : NULL;
    ring->sq_mask = *AT(p->sq.mask);
    ring->cq_mask = *AT(p->cq.mask);
    uint32_t *array = AT(p->sq.array);
#undef AT
    ring->completions = ring->rings + p->cq.completions;
    ring->entries = p->sq_entries;
    ring->tail = *ring->sq_tail;
    for (uint32_t i = 0; i < p->sq_entries; i++) array[i] = i;
    return 0;
}

static uring_entry *entry_take(sarp_uring *ring) {
    if (ring->tail - load_acquire(ring->sq_head) >= ring->entries) return NULL;
    uring_entry *entry = (uring_entry *)(void *)ring->entries_map + (ring->tail & ring->sq_mask);
    memset(entry, 0, sizeof *entry);
    ring->tail++;
    ring->unsubmitted++;
    return entry;
}

/* A ring that can be set up but not entered (as some sandboxes have it) is of no use. */
static int32_t try_out(sarp_uring *ring) {
    if (!(ring->features & URING_FEAT_SINGLE_MMAP) || !(ring->features & URING_FEAT_RW_CUR_POS)) return -ENOSYS;
    uring_entry *entry = entry_take(ring);
    if (!entry) return -EIO;
    entry->opcode = URING_OP_NOP;
    store_release(ring->sq_tail, ring->tail);
    ring->unsubmitted = 0;
    const int32_t done = enter_call(ring, 1, 1, URING_ENTER_GETEVENTS);
    if (done < 0) return done;
    const uint32_t head = *ring->cq_head;
    if (done != 1 || load_acquire(ring->cq_tail) == head) return -EIO;
    store_release(ring->cq_head, head + 1);
    return 0;
}

static int32_t open_steps(sarp_uring *ring, uint32_t entries, int32_t simplest) {
    uring_parameters p;
    int32_t status = set_up(ring, entries, simplest, &p);
    if (status == 0) status = map_rings(ring, &p);
    if (status == 0) status = try_out(ring);
    if (status < 0) return status;
    ring->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->event_fd < 0) return -errno;
    return register_call(ring, URING_REGISTER_EVENTFD, &ring->event_fd, 1);
}

int32_t sarp_uring_open(sarp_uring *ring, uint32_t entries, int32_t simplest) {
    memset(ring, 0, sizeof *ring);
    ring->fd = ring->event_fd = -1;
    ring->batch = BATCH;
    if (!entries || entries > ENTRIES_MAX) return -EINVAL;
    const int32_t status = open_steps(ring, entries, simplest);
    if (status < 0) sarp_uring_close(ring);
    return status;
}

int32_t sarp_uring_fix_memory(sarp_uring *ring, uint8_t *data, uint64_t bytes) {
    const struct iovec vector = {data, bytes};
    const int32_t status = register_call(ring, URING_REGISTER_BUFFERS, &vector, 1);
    if (status == 0) {
        ring->fixed = data;
        ring->fixed_bytes = bytes;
    }
    return status;
}

int32_t sarp_uring_fix_files(sarp_uring *ring, uint32_t count) {
    int32_t none[FILES_MAX];
    if (!count || count > FILES_MAX) return -EINVAL;
    for (uint32_t i = 0; i < count; i++) none[i] = -1;
    const int32_t status = register_call(ring, URING_REGISTER_FILES, none, count);
    if (status == 0) ring->files_fixed = count;
    return status;
}

int32_t sarp_uring_fix_file(sarp_uring *ring, sarp_reads *reads, uint32_t file) {
    if (!file || file > reads->file_used || file >= ring->files_fixed) return -EINVAL;
    sarp_read_file *f = reads->files + file;
    const int32_t fd = f->open && !f->closing ? f->fd : -1;
    const uring_files_update update = {.offset = file, .fds = (uint64_t)(uintptr_t)&fd};
    const int32_t status = register_call(ring, URING_REGISTER_FILES_UPDATE, &update, 1);
    f->fixed = status == 0 && fd >= 0;
    return status;
}

void sarp_uring_close(sarp_uring *ring) {
    if (ring->entries_map) munmap(ring->entries_map, ring->entries_bytes);
    if (ring->rings) munmap(ring->rings, ring->rings_bytes);
    if (ring->event_fd >= 0) close(ring->event_fd);
    if (ring->fd >= 0) close(ring->fd);
    memset(ring, 0, sizeof *ring);
    ring->fd = ring->event_fd = -1;
}

/* --- a turn */

static uint32_t reap(sarp_uring *ring, sarp_reads *reads) {
    uint32_t head = *ring->cq_head, count = 0;
    const uint32_t tail = load_acquire(ring->cq_tail);
    for (; head != tail; head++, count++) {
        const uring_completion *c = (const uring_completion *)(const void *)ring->completions + (head & ring->cq_mask);
        sarp_reads_complete(reads, (uint32_t)c->user_data, c->result);
    }
    store_release(ring->cq_head, head);
    return count;
}

static void prepare(const sarp_uring *ring, const sarp_reads *reads, uint32_t run, uring_entry *entry) {
    const sarp_read_run *r = reads->runs + run;
    const sarp_read_file *file = reads->files + r->file;
    const sarp_read_vector *vector = reads->vectors + r->first;
    const uint64_t place = (uint64_t)((uintptr_t)vector->data - (uintptr_t)ring->fixed);
    entry->fd = file->fixed ? (int32_t)r->file : file->fd;
    entry->flags = file->fixed ? URING_SQE_FIXED_FILE : 0;
    /* What the system has in its cache is copied by who hands it over, who has to touch fresh memory besides: of a
       mebibyte, a millisecond of the event loop. */
    if (r->count == 1 && vector->length >= LARGE_READ) entry->flags |= URING_SQE_ASYNC;
    entry->offset = r->offset;
    entry->user_data = run;
    if (r->count != 1) {
        entry->opcode = URING_OP_READV;
        entry->address = (uint64_t)(uintptr_t)vector;
        entry->length = r->count;
        return;
    }
    const int fixed = place < ring->fixed_bytes && vector->length <= ring->fixed_bytes - place;
    entry->opcode = fixed ? URING_OP_READ_FIXED : URING_OP_READ;
    entry->address = (uint64_t)(uintptr_t)vector->data;
    entry->length = (uint32_t)vector->length;
}

/* Puts what may go into the submission queue. There is a place for every run in flight. */
static void fill(sarp_uring *ring, sarp_reads *reads) {
    while (ring->unsubmitted < ring->batch && ring->tail - load_acquire(ring->sq_head) < ring->entries) {
        const uint32_t run = sarp_reads_next(reads);
        if (!run) break;
        if (reads->files[reads->runs[run].file].fd < 0) reads->handed[reads->handed_count++] = run;
        else prepare(ring, reads, run, entry_take(ring));
    }
    store_release(ring->sq_tail, ring->tail);
}

/* Takes back what the kernel has not taken, and ends it with the error. */
static void give_up(sarp_uring *ring, sarp_reads *reads, int32_t error) {
    const uint32_t count = ring->unsubmitted;
    ring->tail -= count;
    ring->unsubmitted = 0;
    store_release(ring->sq_tail, ring->tail);
    for (uint32_t i = 0; i < count; i++) {
        const uring_entry *entry = (const uring_entry *)(void *)ring->entries_map + ((ring->tail + i) & ring->sq_mask);
        sarp_reads_complete(reads, (uint32_t)entry->user_data, error);
    }
}

static int pending(const sarp_uring *ring) {
    return (load_acquire(ring->sq_flags) & (URING_SQ_TASKRUN | URING_SQ_CQ_OVERFLOW)) ||
           load_acquire(ring->cq_tail) != *ring->cq_head;
}

/* While a turn runs it looks for itself: signals are for when nobody does. */
static void signals(const sarp_uring *ring, int on) {
    if (!ring->cq_flags) return;
    __atomic_store_n(ring->cq_flags, on ? 0 : URING_CQ_EVENTFD_DISABLED, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void drain_event(const sarp_uring *ring) {
    uint64_t count;
    const ssize_t got = read(ring->event_fd, &count, EVENT_BYTES);
    (void)got; /* EAGAIN: nobody signalled */
}

/* One round: 1 where another may find more, 0 where not, or a negative errno. */
static int32_t turn_round(sarp_uring *ring, sarp_reads *reads) {
    reap(ring, reads);
    fill(ring, reads);
    if (!ring->unsubmitted && !pending(ring)) return 0;
    const int32_t done = enter_call(ring, ring->unsubmitted, 0, URING_ENTER_GETEVENTS);
    if (done >= 0) {
        ring->unsubmitted -= (uint32_t)done < ring->unsubmitted ? (uint32_t)done : ring->unsubmitted;
        return 1;
    }
    return done == -EINTR || done == -EAGAIN || done == -EBUSY ? 1 : done;
}

int32_t sarp_uring_turn(sarp_uring *ring, sarp_reads *reads, int32_t woken) {
    int32_t status = 1;
    if (ring->fd < 0) return -EBADF;
    if (woken) drain_event(ring);
    signals(ring, 0);
    for (int round = 0; round < ROUNDS && status == 1; round++) status = turn_round(ring, reads);
    signals(ring, 1);
    if (status < 0) {
        give_up(ring, reads, status);
        return status;
    }
    if (pending(ring)) return 1;
    if (!ring->unsubmitted) return 0;
    const uint32_t in_kernel = reads->in_flight[0] + reads->in_flight[1] - reads->handed_count - ring->unsubmitted;
    return in_kernel ? 0 : 2;
}

int32_t sarp_uring_wait(sarp_uring *ring, int32_t timeout_ms) {
    struct pollfd p = {.fd = ring->event_fd, .events = POLLIN};
    if (pending(ring)) return 0;
    return poll(&p, 1, timeout_ms) < 0 && errno != EINTR ? -errno : 0;
}

/* --- without a ring */

int32_t sarp_reads_pread(const sarp_reads *reads, uint32_t run) {
    if (!run || run > reads->limits.queue_depth || !reads->runs[run].page) return -EINVAL;
    const sarp_read_run *r = reads->runs + run;
    const struct iovec *vectors = (const struct iovec *)(const void *)(reads->vectors + r->first);
    const ssize_t got = preadv(reads->files[r->file].fd, vectors, (int)r->count, (off_t)r->offset);
    return got < 0 ? -errno : (int32_t)got;
}

#else
#error "the I/O kernel is for Linux"
#endif
