#include "internal_murmur3.h"

#include <string.h>

/* Little-endian hosts only: on others the digests would be right by themselves, but not the mmh3 package's. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "sarpstore's kernel is for little-endian machines"
#endif

typedef struct {
    uint64_t h1, h2;
} state_t;

static inline uint64_t rotl(uint64_t v, int bits) { return v << bits | v >> (64 - bits); }

static inline uint64_t load_word(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static const uint64_t C1 = 0x87C37B91114253D5u, C2 = 0x4CF5AD432745937Fu;

static inline uint64_t scrambled_first(uint64_t word) { return rotl(word * C1, 31) * C2; }

static inline uint64_t scrambled_second(uint64_t word) { return rotl(word * C2, 33) * C1; }

static inline state_t absorb(state_t s, uint64_t first, uint64_t second) {
    s.h1 = (rotl(s.h1 ^ scrambled_first(first), 27) + s.h2) * 5 + 0x52DCE729;
    s.h2 = (rotl(s.h2 ^ scrambled_second(second), 31) + s.h1) * 5 + 0x38495AB5;
    return s;
}

static inline uint64_t finish(uint64_t h) {
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCDu;
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 33;
}

/* The digest as the two words that it is: from block to block it stays in registers. */
static inline state_t digest_after(state_t s, uint64_t total, const uint8_t *data, size_t length) {
    for (; length >= 16; data += 16, length -= 16) s = absorb(s, load_word(data), load_word(data + 8));
    if (length != 0) {
        /* Zero bytes add nothing, so a padded tail does what the reference's switch over its length does. */
        uint8_t tail[16] = {0};
        memcpy(tail, data, length);
        s.h1 ^= scrambled_first(load_word(tail)), s.h2 ^= scrambled_second(load_word(tail + 8));
    }
    s.h1 ^= total, s.h2 ^= total;
    s.h1 += s.h2, s.h2 += s.h1;
    s.h1 = finish(s.h1), s.h2 = finish(s.h2);
    s.h1 += s.h2, s.h2 += s.h1;
    return s;
}

static inline void store_digest(uint8_t *p, state_t s) {
    memcpy(p, &s.h1, sizeof s.h1);
    memcpy(p + 8, &s.h2, sizeof s.h2);
}

void sarp_murmur3_chain(uint8_t *digest, size_t digest_bytes, const uint8_t *tokens, size_t blocks, size_t block_bytes,
                        uint8_t *ids) {
    const state_t zero = {0, 0};
    state_t s = zero;
    if (blocks == 0) return;
    if (digest_bytes != 0) s = (state_t){load_word(digest), load_word(digest + 8)};
    for (size_t i = 0; i < blocks; i++, tokens += block_bytes, digest_bytes = SARP_MURMUR3_DIGEST_BYTES) {
        const state_t start = digest_bytes != 0 ? absorb(zero, s.h1, s.h2) : zero;
        s = digest_after(start, digest_bytes + block_bytes, tokens, block_bytes);
        if (ids) store_digest(ids + i * SARP_MURMUR3_DIGEST_BYTES, s);
    }
    store_digest(digest, s);
}
