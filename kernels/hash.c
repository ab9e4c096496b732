#include "hash.h"

#include <string.h>

#include "internal_murmur3.h"
#include "internal_sha256.h"

enum { CHUNK = SARP_SHA256_CHUNK_BYTES, DIGEST = SARP_SHA256_DIGEST_BYTES };

size_t sarp_hash_state_bytes(int32_t hash) {
    switch (hash) {
        case SARP_HASH_SHA256: return SARP_SHA256_DIGEST_BYTES;
        case SARP_HASH_MMH3: return SARP_MURMUR3_DIGEST_BYTES;
        default: return 0;
    }
}

/*
 * A message is cut in three: a first chunk that begins with the previous digest, chunks of tokens that are compressed
 * where they lie, and the end with its padding. Only the first and the last are copied.
 */
static void chain_sha256(uint32_t features, uint8_t *digest, size_t digest_bytes, const uint8_t *tokens, size_t blocks,
                         size_t block_bytes, uint8_t *ids) {
    sarp_sha256_compress_fn *const compress = sarp_sha256_compress(features);
    for (; blocks != 0; blocks--, tokens += block_bytes, digest_bytes = DIGEST) {
        uint8_t end[2 * CHUNK];
        const uint64_t message_bits = (uint64_t)(digest_bytes + block_bytes) * 8;
        const uint8_t *rest = tokens;
        size_t rest_bytes = block_bytes, end_bytes = 0;
        uint8_t state[DIGEST];
        memcpy(state, sarp_sha256_start, DIGEST);
        if (digest_bytes != 0) {
            memcpy(end, digest, DIGEST);
            end_bytes = DIGEST;
            if (rest_bytes >= CHUNK - DIGEST) {
                memcpy(end + DIGEST, rest, CHUNK - DIGEST);
                compress(state, end, 1);
                rest += CHUNK - DIGEST, rest_bytes -= CHUNK - DIGEST, end_bytes = 0;
            }
        }
        if (rest_bytes >= CHUNK) {
            compress(state, rest, rest_bytes / CHUNK);
            rest += rest_bytes / CHUNK * CHUNK, rest_bytes %= CHUNK;
        }
        memcpy(end + end_bytes, rest, rest_bytes);
        end_bytes += rest_bytes;
        const size_t padded = end_bytes + 9 <= CHUNK ? CHUNK : 2 * CHUNK;
        memset(end + end_bytes, 0, padded - end_bytes);
        end[end_bytes] = 0x80;
        for (int i = 0; i < 8; i++) end[padded - 1 - i] = (uint8_t)(message_bits >> 8 * i);
        compress(state, end, padded / CHUNK);
        memcpy(digest, state, DIGEST);
        if (ids) {
            memcpy(ids, digest, SARP_HASH_ID_BYTES);
            ids += SARP_HASH_ID_BYTES;
        }
    }
}

int32_t sarp_hash_chain(uint32_t features, int32_t hash, const uint8_t *previous, size_t previous_bytes,
                        const uint32_t *tokens, size_t blocks, size_t block_tokens, uint8_t *ids,
                        uint8_t *last_digest) {
    const size_t digest_bytes = sarp_hash_state_bytes(hash);
    if (digest_bytes == 0) return SARP_HASH_BAD_ARGUMENT;
    if (previous_bytes != 0 && (previous_bytes != digest_bytes || !previous)) return SARP_HASH_BAD_ARGUMENT;
    if (block_tokens < 1 || block_tokens > SARP_HASH_BLOCK_TOKENS_MAX) return SARP_HASH_BAD_ARGUMENT;
    if (!last_digest || (blocks != 0 && !tokens)) return SARP_HASH_BAD_ARGUMENT;
    if (blocks > SIZE_MAX / sizeof(uint32_t) / SARP_HASH_BLOCK_TOKENS_MAX) return SARP_HASH_BAD_ARGUMENT;

    uint8_t digest[SARP_HASH_STATE_BYTES_MAX];
    if (previous_bytes != 0) memcpy(digest, previous, digest_bytes);
    const uint8_t *bytes = (const uint8_t *)tokens;
    const size_t block_bytes = block_tokens * sizeof(uint32_t);
    if (hash == SARP_HASH_SHA256)
        chain_sha256(features, digest, previous_bytes, bytes, blocks, block_bytes, ids);
    else
        sarp_murmur3_chain(digest, previous_bytes, bytes, blocks, block_bytes, ids);
    if (blocks != 0 || previous_bytes != 0) memcpy(last_digest, digest, digest_bytes);
    return 0;
}

void sarp_hash_keys(const uint8_t *keys, size_t count, size_t key_bytes, uint8_t *ids) {
    uint8_t digest[SARP_MURMUR3_DIGEST_BYTES];
    for (size_t i = 0; i < count; i++)
        sarp_murmur3_chain(digest, 0, keys + i * key_bytes, 1, key_bytes, ids + i * SARP_HASH_ID_BYTES);
}
