/*
 * CRC32C (Castagnoli polynomial 0x1EDC6F41, reflected), the checksum of every record: RFC 3720 appendix B.4.
 * It detects torn, stale and damaged bytes; it is no defence against someone who can write the files.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/*
 * The CRC32C of `length` bytes at `data` (any alignment), continued from `crc`: 0 starts a checksum, a former
 * result goes on with it, so crc(crc(0, a), b) is the checksum of a followed by b. Inversion of the register
 * before and after is inside. `data` may be NULL where `length` is 0. `features`: SARP_CPU_SSE42 selects the
 * CPU's crc32 instruction. Cannot fail.
 */
uint32_t sarp_crc32c(uint32_t features, uint32_t crc, const uint8_t *data, size_t length);
