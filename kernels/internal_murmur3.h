/* Chains of MurmurHash3_x64_128 (Austin Appleby, public domain), seed 0: fast, and anyone can make collisions. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SARP_MURMUR3_DIGEST_BYTES = 16 };

/*
 * Each block's digest is that of the digest before it followed by its `block_bytes` bytes (any alignment), as the
 * mmh3 package's mmh3_x64_128_digest gives it. `digest` holds the one before the first block (`digest_bytes` 16) or
 * nothing (0), and receives the last one where there is a block; `ids` receives them all, or is NULL.
 */
void sarp_murmur3_chain(uint8_t *digest, size_t digest_bytes, const uint8_t *tokens, size_t blocks, size_t block_bytes,
                        uint8_t *ids);
