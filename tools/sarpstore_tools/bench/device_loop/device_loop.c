/* The device's limit where fio is missing: DEPTH threads read random pages of 4 KiB of one file, past the page cache.

   device_loop FILE DEPTH SECONDS: makes FILE (512 MiB of noise) where it is missing, and prints
   {"reads_per_second": …, "p50_us": …, "p99_us": …}. Status 1, with a line on stderr, where it cannot. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, DEPTH_MAX = 1024, BUCKETS = 100000 };
#define FILE_BYTES (INT64_C(512) << 20)

typedef struct {
    int fd;
    uint64_t random, reads;
    double until;
    uint32_t buckets[BUCKETS]; /* latencies in µs; the last has the longer ones, too */
} reader;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t next(uint64_t *state) { /* xorshift64 (Marsaglia) */
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static void make(const char *path) {
    if (access(path, R_OK) == 0) return;
    const int fd = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
    static uint64_t block[1 << 17];
    uint64_t state = 1;
    if (fd < 0) fail(path);
    for (int64_t at = 0; at < FILE_BYTES; at += (int64_t)sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof *block; i++) block[i] = next(&state);
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block) fail(path);
    }
    if (fsync(fd) || close(fd)) fail(path);
}

static void *read_on(void *argument) {
    reader *r = argument;
    void *page = NULL;
    if (posix_memalign(&page, PAGE, PAGE)) fail("memory");
    for (double began = now(); began < r->until;) {
        const off_t at = (off_t)(next(&r->random) % (FILE_BYTES / PAGE)) * PAGE;
        if (pread(r->fd, page, PAGE, at) != PAGE) fail("read");
        const double ended = now();
        const double us = (ended - began) * 1e6;
        r->buckets[us < BUCKETS - 1 ? (uint32_t)us : BUCKETS - 1]++;
        r->reads++;
        began = ended;
    }
    free(page);
    return NULL;
}

static uint32_t percentile(const reader *readers, long depth, uint64_t total, double share) {
    uint64_t below = 0;
    for (uint32_t us = 0; us < BUCKETS; us++) {
        for (long i = 0; i < depth; i++) below += readers[i].buckets[us];
        if ((double)below >= share * (double)total) return us;
    }
    return BUCKETS;
}

int main(int count, char **words) {
    const long depth = count == 4 ? strtol(words[2], NULL, 10) : 0;
    const double seconds = count == 4 ? strtod(words[3], NULL) : 0;
    if (depth < 1 || depth > DEPTH_MAX || !(seconds > 0)) {
        fprintf(stderr, "usage: device_loop FILE DEPTH SECONDS\n");
        return 1;
    }
    make(words[1]);
    const int fd = open(words[1], O_RDONLY | O_DIRECT);
    if (fd < 0) fail(words[1]);
    reader *readers = calloc((size_t)depth, sizeof *readers);
    pthread_t *threads = calloc((size_t)depth, sizeof *threads);
    if (!readers || !threads) fail("memory");
    const double began = now();
    for (long i = 0; i < depth; i++) {
        readers[i].fd = fd;
        readers[i].random = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(i + 1);
        readers[i].until = began + seconds;
        errno = pthread_create(threads + i, NULL, read_on, readers + i);
        if (errno) fail("thread");
    }
    uint64_t total = 0;
    for (long i = 0; i < depth; i++) {
        pthread_join(threads[i], NULL);
        total += readers[i].reads;
    }
    printf("{\"reads_per_second\": %.1f, \"p50_us\": %u, \"p99_us\": %u}\n", (double)total / (now() - began),
           percentile(readers, depth, total, .5), percentile(readers, depth, total, .99));
    return 0;
}
