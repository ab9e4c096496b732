/* A partition's entries: one sequence over pages of the arena, a fixed number of them a page. */
#pragma once
#include <string.h>

#include "types.h"

#define NO_PAGE UINT32_MAX

static inline uint8_t *arena_page(const sarp_arena *arena, uint32_t page) {
    return arena->memory + (size_t)page * SARP_ARENA_PAGE;
}

static inline uint32_t arena_available(const sarp_arena *arena) {
    return arena->pages_free + arena->page_limit - arena->page_next;
}

/* Pages in use. */
static inline uint32_t arena_used(const sarp_arena *arena) { return arena->page_next - arena->pages_free; }

static inline void arena_reset(sarp_arena *arena) {
    arena->page_next = arena->pages_free = 0;
    arena->page_free = NO_PAGE;
}

/* Gives a sequence that has `have` pages as many as `want`, or takes them back. The caller has checked that there are. */
void arena_resize(sarp_arena *arena, uint32_t *pages, uint32_t have, uint32_t want);

/* Slots of `size` bytes, `fit` of them a page. Moves slots `slot` to `end` - 1 up by one, or slots `slot` + 1 to `end` - 1
   down by one. */
void arena_open_slot(const sarp_arena *arena, const uint32_t *pages, uint32_t size, uint32_t fit, uint32_t slot, uint32_t end);
void arena_close_slot(const sarp_arena *arena, const uint32_t *pages, uint32_t size, uint32_t fit, uint32_t slot, uint32_t end);
