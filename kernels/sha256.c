#include "internal_sha256.h"

#include "cpu.h"

/* FIPS 180-4, 5.3.3: the fractional parts of the square roots of the first 8 primes, 32 bits of each. */
const uint8_t sarp_sha256_start[SARP_SHA256_DIGEST_BYTES] = {
    0x6A, 0x09, 0xE6, 0x67, 0xBB, 0x67, 0xAE, 0x85, 0x3C, 0x6E, 0xF3, 0x72, 0xA5, 0x4F, 0xF5, 0x3A,
    0x51, 0x0E, 0x52, 0x7F, 0x9B, 0x05, 0x68, 0x8C, 0x1F, 0x83, 0xD9, 0xAB, 0x5B, 0xE0, 0xCD, 0x19,
};

/* FIPS 180-4, 4.2.2: the fractional parts of the cube roots of the first 64 primes. */
_Alignas(16) static const uint32_t K[64] = {
    0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
    0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
    0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
    0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
    0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
    0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
    0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
    0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2,
};

static uint32_t load_be32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void store_be32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24), p[1] = (uint8_t)(v >> 16), p[2] = (uint8_t)(v >> 8), p[3] = (uint8_t)v;
}

static uint32_t rotr(uint32_t v, int bits) { return v >> bits | v << (32 - bits); }

/* One round with the working variables named by their role, so that none of them is moved from round to round. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                            \
    do {                                                                                                            \
        const uint32_t t = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + (g ^ (e & (f ^ g))) + K[i] + w[(i) & 15]; \
        d += t;                                                                                                     \
        h = t + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) | (c & (a | b)));                               \
    } while (0)

#define EIGHT_ROUNDS(i)                         \
    do {                                        \
        ROUND(a, b, c, d, e, f, g, h, (i));     \
        ROUND(h, a, b, c, d, e, f, g, (i) + 1); \
        ROUND(g, h, a, b, c, d, e, f, (i) + 2); \
        ROUND(f, g, h, a, b, c, d, e, (i) + 3); \
        ROUND(e, f, g, h, a, b, c, d, (i) + 4); \
        ROUND(d, e, f, g, h, a, b, c, (i) + 5); \
        ROUND(c, d, e, f, g, h, a, b, (i) + 6); \
        ROUND(b, c, d, e, f, g, h, a, (i) + 7); \
    } while (0)

static void compress_portable(uint8_t *state, const uint8_t *data, size_t chunks) {
    uint32_t s[8], w[16];
    for (int i = 0; i < 8; i++) s[i] = load_be32(state + 4 * i);
    for (; chunks != 0; data += SARP_SHA256_CHUNK_BYTES, chunks--) {
        uint32_t a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
        for (int i = 0; i < 16; i++) w[i] = load_be32(data + 4 * i);
        for (int i = 0; i < 64; i += 16) {
            /* The schedule is a ring: word i takes the place of word i - 16. */
            for (int j = 0; i != 0 && j < 16; j++) {
                const uint32_t early = w[(j + 1) & 15], late = w[(j + 14) & 15];
                w[j] += (rotr(early, 7) ^ rotr(early, 18) ^ early >> 3) + w[(j + 9) & 15] +
                        (rotr(late, 17) ^ rotr(late, 19) ^ late >> 10);
            }
            EIGHT_ROUNDS(i);
            EIGHT_ROUNDS(i + 8);
        }
        s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
    }
    for (int i = 0; i < 8; i++) store_be32(state + 4 * i, s[i]);
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Four rounds with the message words in `w`, which then becomes the words of sixteen rounds later, if there are any. */
#define FOUR_ROUNDS(i, w, w4, w8, w12)                                                                          \
    do {                                                                                                        \
        const __m128i sum = _mm_add_epi32(w, _mm_load_si128((const __m128i *)(K + (i))));                       \
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);                                                          \
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));                                 \
        if ((i) < 48)                                                                                           \
            w = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w, w4), _mm_alignr_epi8(w12, w8, 4)), w12); \
    } while (0)

#define SIXTEEN_ROUNDS(i)                     \
    do {                                      \
        FOUR_ROUNDS((i), w0, w1, w2, w3);     \
        FOUR_ROUNDS((i) + 4, w1, w2, w3, w0); \
        FOUR_ROUNDS((i) + 8, w2, w3, w0, w1); \
        FOUR_ROUNDS((i) + 12, w3, w0, w1, w2); \
    } while (0)

__attribute__((target("sha,ssse3,sse4.1"))) static void compress_sha_ni(uint8_t *state, const uint8_t *data,
                                                                         size_t chunks) {
    const __m128i words = _mm_set_epi64x(0x0C0D0E0F08090A0B, 0x0405060700010203); /* big-endian words */
    const __m128i row = _mm_set_epi64x(0x0001020304050607, 0x08090A0B0C0D0E0F);   /* and their order reversed */
    /* The instructions want the variables as rows (a b e f) and (c d g h), the first of each uppermost. */
    const __m128i dcba = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)state), row);
    const __m128i hgfe = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(state + 16)), row);
    __m128i abef = _mm_unpackhi_epi64(hgfe, dcba), cdgh = _mm_unpacklo_epi64(hgfe, dcba);
    for (; chunks != 0; data += SARP_SHA256_CHUNK_BYTES, chunks--) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        const __m128i *message = (const __m128i *)data;
        __m128i w0 = _mm_shuffle_epi8(_mm_loadu_si128(message), words);
        __m128i w1 = _mm_shuffle_epi8(_mm_loadu_si128(message + 1), words);
        __m128i w2 = _mm_shuffle_epi8(_mm_loadu_si128(message + 2), words);
        __m128i w3 = _mm_shuffle_epi8(_mm_loadu_si128(message + 3), words);
        SIXTEEN_ROUNDS(0);
        SIXTEEN_ROUNDS(16);
        SIXTEEN_ROUNDS(32);
        SIXTEEN_ROUNDS(48);
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi8(_mm_unpackhi_epi64(cdgh, abef), row));
    _mm_storeu_si128((__m128i *)(state + 16), _mm_shuffle_epi8(_mm_unpacklo_epi64(cdgh, abef), row));
}
#endif

sarp_sha256_compress_fn *sarp_sha256_compress(uint32_t features) {
#if defined(__x86_64__)
    if (features & SARP_CPU_SHA_NI) return compress_sha_ni;
#else
    (void)features;
#endif
    return compress_portable;
}
