/* The bytes of format-spec/, version 1, for the C side. `sarpstore/_format.py` is the Python side; a test holds the
   two against each other. Nothing else in the kernel defines a byte. */
#pragma once

enum {
    SARP_UNIT = 64,
    SARP_PAGE = 4096,
    SARP_PAGE_UNITS = 64,
    SARP_WINDOW = 64, /* blocks */
    SARP_ID = 16,     /* bytes of a block id */
    SARP_LOG_HEADER = 8192,

    SARP_SEGMENT = 1,
    SARP_REMOVE = 2,
    SARP_CLEAR_HOLDER = 3,
    SARP_NAMESPACE = 4,
    SARP_COMMIT = 5,
    SARP_RETIRE_FILE = 6,
    SARP_SEAL = 7,
    SARP_SUMMARY = 8,
    SARP_CHUNK_PAYLOAD = 9,
    SARP_POSTINGS = 10,
    SARP_COUNT = 11,

    SARP_ROUTING_DIVERGENCE = 0,
    SARP_ROUTING_SARP = 1,

    SARP_FLAG_IGNORABLE = 1,
    SARP_FLAG_COPY = 2,
    SARP_COMMIT_MARK = 1,
    SARP_COMMIT_CLOSED = 2,

    /* every record */
    SARP_AT_HEADER_CRC = 0,
    SARP_AT_BODY_CRC = 4,
    SARP_AT_LENGTH = 8,
    SARP_AT_TYPE = 10,
    SARP_AT_FLAGS = 11,
    SARP_AT_N = 12,
    SARP_AT_D = 13,
    SARP_AT_DP = 14,
    SARP_AT_HEADER_UNITS = 15,
    SARP_AT_SEQUENCE = 16,
    SARP_AT_COMMIT = 24,
    SARP_AT_HOLDER = 32,
    SARP_AT_NAMESPACE = 40,

    /* segment */
    SARP_AT_WINDOW = 36,
    SARP_AT_PREFIX_ID = 48,
    SARP_AT_BORN = 64,
    SARP_AT_PARENT_KEY = 72,
    SARP_AT_SUPERSEDES = 80,
    SARP_AT_POINTS = 88,
    SARP_AT_OLD_N = 89,
    SARP_AT_ROOT_BORN = 96,
    SARP_SEGMENT_HEADER = 128,

    /* remove, clear-holder */
    SARP_AT_EFFECT = 48,
    SARP_REMOVE_HEADER = 64,
    SARP_REMOVE_IDS_MAX = 252,

    /* count */
    SARP_COUNT_HEADER = 64,
    SARP_COUNT_ENTRY = 24,
    SARP_COUNT_ENTRIES_MAX = 168,

    /* commit */
    SARP_AT_COMMIT_PAGES = 32,
    SARP_AT_COMMIT_RECORDS = 36,
    SARP_AT_COMMIT_CHECKSUM = 40,
    SARP_AT_COMMIT_FLAGS = 44,
    SARP_AT_COMMIT_SYNCED = 48,

    /* seal, summary */
    SARP_AT_SEAL_SUMMARIES = 32,
    SARP_AT_SEAL_ENTRIES = 36,
    SARP_AT_SEAL_FIRST = 40,
    SARP_SUMMARY_HEADER = 64,
    SARP_SUMMARY_ENTRY = 32,
    SARP_SUMMARY_ENTRIES_MAX = 126,

    /* postings */
    SARP_POSTINGS_HEADER = 64,
    SARP_POSTINGS_ENTRY = 32,
    SARP_AT_OPERATION = 24, /* of an entry */
    SARP_AT_DROPPED = 26,   /* of an entry, u48 */
    SARP_POSTINGS_ENTRIES_MAX = 126
};

#define SARP_REFERENCE_NONE ((UINT64_C(1) << 40) - 1)
#define SARP_KEY_MASK ((UINT64_C(1) << 48) - 1)
