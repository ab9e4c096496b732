#include "crc32c.h"

#include <string.h>

#include "cpu.h"

/*
 * Slicing by eight (Kounavis and Berry, 2005): table k gives what a byte contributes that is followed by k more
 * bytes of the same eight. A CRC is linear, so a byte's entry is the XOR of its bits' entries. With the reflected
 * polynomial 0x82F63B78 and step(c) = c >> 1 ^ (c & 1 ? 0x82F63B78 : 0), the entry of bit j in table k is the
 * polynomial stepped 8k + 7 - j times: these are the 64 constants below, and the compiler does the rest.
 */
#define BIT(v, j, entry) (((v) >> (j) & 1u) * (entry))
#define SLICE_0(v) \
    (BIT(v, 7, 0x82F63B78u) ^ BIT(v, 6, 0x417B1DBCu) ^ BIT(v, 5, 0x20BD8EDEu) ^ BIT(v, 4, 0x105EC76Fu) ^ \
     BIT(v, 3, 0x8AD958CFu) ^ BIT(v, 2, 0xC79A971Fu) ^ BIT(v, 1, 0xE13B70F7u) ^ BIT(v, 0, 0xF26B8303u))
#define SLICE_1(v) \
    (BIT(v, 7, 0xFBC3FAF9u) ^ BIT(v, 6, 0xFF17C604u) ^ BIT(v, 5, 0x7F8BE302u) ^ BIT(v, 4, 0x3FC5F181u) ^ \
     BIT(v, 3, 0x9D14C3B8u) ^ BIT(v, 2, 0x4E8A61DCu) ^ BIT(v, 1, 0x274530EEu) ^ BIT(v, 0, 0x13A29877u))
#define SLICE_2(v) \
    (BIT(v, 7, 0x8B277743u) ^ BIT(v, 6, 0xC76580D9u) ^ BIT(v, 5, 0xE144FB14u) ^ BIT(v, 4, 0x70A27D8Au) ^ \
     BIT(v, 3, 0x38513EC5u) ^ BIT(v, 2, 0x9EDEA41Au) ^ BIT(v, 1, 0x4F6F520Du) ^ BIT(v, 0, 0xA541927Eu))
#define SLICE_3(v) \
    (BIT(v, 7, 0x52A0C93Fu) ^ BIT(v, 6, 0xABA65FE7u) ^ BIT(v, 5, 0xD725148Bu) ^ BIT(v, 4, 0xE964B13Du) ^ \
     BIT(v, 3, 0xF64463E6u) ^ BIT(v, 2, 0x7B2231F3u) ^ BIT(v, 1, 0xBF672381u) ^ BIT(v, 0, 0xDD45AAB8u))
#define SLICE_4(v) \
    (BIT(v, 7, 0x6EA2D55Cu) ^ BIT(v, 6, 0x37516AAEu) ^ BIT(v, 5, 0x1BA8B557u) ^ BIT(v, 4, 0x8F2261D3u) ^ \
     BIT(v, 3, 0xC5670B91u) ^ BIT(v, 2, 0xE045BEB0u) ^ BIT(v, 1, 0x7022DF58u) ^ BIT(v, 0, 0x38116FACu))
#define SLICE_5(v) \
    (BIT(v, 7, 0x1C08B7D6u) ^ BIT(v, 6, 0x0E045BEBu) ^ BIT(v, 5, 0x85F4168Du) ^ BIT(v, 4, 0xC00C303Eu) ^ \
     BIT(v, 3, 0x6006181Fu) ^ BIT(v, 2, 0xB2F53777u) ^ BIT(v, 1, 0xDB8CA0C3u) ^ BIT(v, 0, 0xEF306B19u))
#define SLICE_6(v) \
    (BIT(v, 7, 0xF56E0EF4u) ^ BIT(v, 6, 0x7AB7077Au) ^ BIT(v, 5, 0x3D5B83BDu) ^ BIT(v, 4, 0x9C5BFAA6u) ^ \
     BIT(v, 3, 0x4E2DFD53u) ^ BIT(v, 2, 0xA5E0C5D1u) ^ BIT(v, 1, 0xD0065990u) ^ BIT(v, 0, 0x68032CC8u))
#define SLICE_7(v) \
    (BIT(v, 7, 0x34019664u) ^ BIT(v, 6, 0x1A00CB32u) ^ BIT(v, 5, 0x0D006599u) ^ BIT(v, 4, 0x847609B4u) ^ \
     BIT(v, 3, 0x423B04DAu) ^ BIT(v, 2, 0x211D826Du) ^ BIT(v, 1, 0x9278FA4Eu) ^ BIT(v, 0, 0x493C7D27u))

#define ENTRIES_4(slice, v) slice(v), slice((v) + 1), slice((v) + 2), slice((v) + 3)
#define ENTRIES_16(slice, v) \
    ENTRIES_4(slice, v), ENTRIES_4(slice, (v) + 4), ENTRIES_4(slice, (v) + 8), ENTRIES_4(slice, (v) + 12)
#define ENTRIES_64(slice, v) \
    ENTRIES_16(slice, v), ENTRIES_16(slice, (v) + 16), ENTRIES_16(slice, (v) + 32), ENTRIES_16(slice, (v) + 48)
#define TABLE(slice) \
    { ENTRIES_64(slice, 0u), ENTRIES_64(slice, 64u), ENTRIES_64(slice, 128u), ENTRIES_64(slice, 192u) }

static const uint32_t SLICES[8][256] = {
    TABLE(SLICE_0), TABLE(SLICE_1), TABLE(SLICE_2), TABLE(SLICE_3),
    TABLE(SLICE_4), TABLE(SLICE_5), TABLE(SLICE_6), TABLE(SLICE_7),
};

static uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* `state` is the register itself: not inverted. So in the functions below. */
static uint32_t crc_portable(uint32_t state, const uint8_t *data, size_t length) {
    for (; length >= 8; data += 8, length -= 8) {
        const uint32_t low = state ^ load_le32(data), high = load_le32(data + 4);
        state = SLICES[7][low & 0xFF] ^ SLICES[6][low >> 8 & 0xFF] ^ SLICES[5][low >> 16 & 0xFF] ^
                SLICES[4][low >> 24] ^ SLICES[3][high & 0xFF] ^ SLICES[2][high >> 8 & 0xFF] ^
                SLICES[1][high >> 16 & 0xFF] ^ SLICES[0][high >> 24];
    }
    for (; length != 0; data++, length--) state = state >> 8 ^ SLICES[0][(state ^ *data) & 0xFF];
    return state;
}

#if defined(__x86_64__)
#include <immintrin.h>

/*
 * Carry-less multiplication folds four 128-bit accumulators over 64 bytes a round (Gopal et al., "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ", Intel 2009); the crc32 instruction reduces what they come to and does the
 * rest. It alone would answer one word in three or four cycles.
 *
 * Multiplying a word by x^(64m - 33) mod P moves it over m words: the 33 are what the crc32 instruction adds when it
 * reduces the product, x^32, and the x^1 of reflecting a product that is one bit short of whole words. Reflected, x^31
 * is 1, and each power is step() (see above) of the one below it.
 */
#define MOVE_2 0x493C7D27u
#define MOVE_3 0xF20C0DFEu
#define MOVE_8 0x9E4ADDF8u
#define MOVE_9 0x740EEF02u

#define SSE42 __attribute__((target("sse4.2,pclmul"))) static inline

SSE42 uint64_t load_word(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

SSE42 __m128i load_vector(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }

/* Moves the low word of `v` by the low factor, the high word by the high one, and takes `next` in. */
SSE42 __m128i fold(__m128i v, __m128i factors, __m128i next) {
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(v, factors, 0x00), _mm_clmulepi64_si128(v, factors, 0x11)), next);
}

SSE42 uint32_t crc_sse42(uint32_t start, const uint8_t *data, size_t length) {
    uint64_t state = start;
    if (length >= 128) { /* below, reducing costs what folding saves */
        const __m128i over_64 = _mm_set_epi64x(MOVE_8, MOVE_9), over_16 = _mm_set_epi64x(MOVE_2, MOVE_3);
        __m128i v0 = _mm_xor_si128(load_vector(data), _mm_cvtsi32_si128((int)start)), v1 = load_vector(data + 16),
                v2 = load_vector(data + 32), v3 = load_vector(data + 48);
        for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
            v0 = fold(v0, over_64, load_vector(data));
            v1 = fold(v1, over_64, load_vector(data + 16));
            v2 = fold(v2, over_64, load_vector(data + 32));
            v3 = fold(v3, over_64, load_vector(data + 48));
        }
        v3 = fold(fold(fold(v0, over_16, v1), over_16, v2), over_16, v3);
        state = _mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(v3)), (uint64_t)_mm_extract_epi64(v3, 1));
    }
    for (; length >= 8; data += 8, length -= 8) state = _mm_crc32_u64(state, load_word(data));
    uint32_t rest = (uint32_t)state;
    if (length >= 4) {
        rest = _mm_crc32_u32(rest, load_le32(data));
        data += 4, length -= 4;
    }
    for (; length != 0; data++, length--) rest = _mm_crc32_u8(rest, *data);
    return rest;
}
#endif

uint32_t sarp_crc32c(uint32_t features, uint32_t crc, const uint8_t *data, size_t length) {
#if defined(__x86_64__)
    if (features & SARP_CPU_SSE42) return ~crc_sse42(~crc, data, length);
#else
    (void)features;
#endif
    return ~crc_portable(~crc, data, length);
}
