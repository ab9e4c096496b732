/* Between reads.c and reads_run.c. */
#pragma once
#include <errno.h>
#include <string.h>

#include "reads.h"

enum { READS_SLOT_SHIFT = 18 };

/* What becomes of a page or piece. */
enum { READS_FREE = 0, READS_FRESH, READS_QUEUED, READS_IN_FLIGHT, READS_DONE };

/* Whether those who ask later, while the page is held, are told the same: not where the system may recover. */
static inline int reads_error_stays(int32_t error) {
    return error == EIO || error == ENOENT || error == SARP_READS_SHORT;
}

void reads_unhash(sarp_reads *reads, uint32_t page);
void reads_frame_free(sarp_reads *reads, sarp_read_page *page);

/* Lets a page that is not in flight yet go before background work, with the rest of its run. */
void reads_promote(sarp_reads *reads, uint32_t page, uint32_t priority);
