/* SHA-256 (FIPS 180-4): the compression function only. Padding is the caller's, who knows the whole message. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SARP_SHA256_DIGEST_BYTES = 32, SARP_SHA256_CHUNK_BYTES = 64 };

/*
 * Takes `chunks` times 64 bytes at `data` (any alignment) into `state`. The state is kept as the 32 big-endian bytes
 * of a digest at all times, so that the last state is the digest, and the next message's beginning, as it stands.
 */
typedef void sarp_sha256_compress_fn(uint8_t *state, const uint8_t *data, size_t chunks);

/* SARP_CPU_SHA_NI selects the CPU's SHA instructions. */
sarp_sha256_compress_fn *sarp_sha256_compress(uint32_t features);

/* The state before the first chunk of a message. */
extern const uint8_t sarp_sha256_start[SARP_SHA256_DIGEST_BYTES];
