/*
 * Block ids: the chained hash of a token sequence. The digest of block i is H(digest of block i - 1 || its tokens as
 * little-endian u32), and its id the first 16 bytes; what stands before the first block is the namespace's root, or
 * nothing. So an id names the whole prefix that ends with its block. With SARP_HASH_SHA256 and no root the digests
 * are the page keys of SGLang; SARP_HASH_MMH3 is MurmurHash3_x64_128 with seed 0, as in the mmh3 package: some times
 * faster, and no defence against tenants who look for collisions.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SARP_HASH_SHA256 = 0, SARP_HASH_MMH3 = 1 };
enum { SARP_HASH_ID_BYTES = 16, SARP_HASH_STATE_BYTES_MAX = 32, SARP_HASH_BLOCK_TOKENS_MAX = 1024 };
enum { SARP_HASH_BAD_ARGUMENT = -1 };

/* Bytes of a full digest, which is all that a chain carries from block to block: 32 or 16; 0 for an unknown hash. */
size_t sarp_hash_state_bytes(int32_t hash);

/*
 * Hashes `blocks` blocks of `block_tokens` tokens (1 to SARP_HASH_BLOCK_TOKENS_MAX) that follow `previous`.
 *   previous      the full digest before the first block, `previous_bytes` = sarp_hash_state_bytes(hash); or, with
 *                 `previous_bytes` 0, nothing (then it may be NULL): the first digest is that of the tokens alone
 *   tokens        blocks * block_tokens values, aligned or not
 *   ids           receives blocks * SARP_HASH_ID_BYTES bytes; may be NULL where only the last digest is wanted
 *   last_digest   receives the full digest of the last block; may be `previous`, so that long sequences are hashed in
 *                 slices. With `blocks` 0 it receives `previous`, or stays as it is where there is none
 *   features      SARP_CPU_SHA_NI selects the CPU's SHA instructions
 * Returns 0, or SARP_HASH_BAD_ARGUMENT (unknown hash, a length out of its bounds, a pointer missing) with nothing
 * written.
 */
int32_t sarp_hash_chain(uint32_t features, int32_t hash, const uint8_t *previous, size_t previous_bytes,
                        const uint32_t *tokens, size_t blocks, size_t block_tokens, uint8_t *ids, uint8_t *last_digest);

/* The ids of an engine's keys: each of `count` keys of `key_bytes` bytes by itself, as SARP_HASH_MMH3 hashes it. */
void sarp_hash_keys(const uint8_t *keys, size_t count, size_t key_bytes, uint8_t *ids);
