#include "internal_arena.h"

static uint32_t page_take(sarp_arena *arena) {
    if (arena->page_free != NO_PAGE) {
        const uint32_t page = arena->page_free;
        memcpy(&arena->page_free, arena_page(arena, page), sizeof arena->page_free);
        arena->pages_free--;
        return page;
    }
    return arena->page_next++;
}

static void page_give(sarp_arena *arena, uint32_t page) {
    memcpy(arena_page(arena, page), &arena->page_free, sizeof arena->page_free);
    arena->page_free = page;
    arena->pages_free++;
}

void arena_resize(sarp_arena *arena, uint32_t *pages, uint32_t have, uint32_t want) {
    for (; have < want && have < SARP_PARTITION_PAGES; have++) pages[have] = page_take(arena);
    for (; have > want; have--) page_give(arena, pages[have - 1]);
}

void arena_open_slot(const sarp_arena *arena, const uint32_t *pages, uint32_t size, uint32_t fit, uint32_t slot, uint32_t end) {
    uint32_t hole = end;
    for (;;) {
        uint8_t *page = arena_page(arena, pages[hole / fit]);
        const uint32_t begin = hole - hole % fit, from = begin > slot ? begin : slot;
        memmove(page + (from % fit + 1) * size, page + from % fit * size, (size_t)(hole - from) * size);
        if (from == slot) return;
        memcpy(page, arena_page(arena, pages[hole / fit - 1]) + (fit - 1) * size, size);
        hole = begin - 1;
    }
}

void arena_close_slot(const sarp_arena *arena, const uint32_t *pages, uint32_t size, uint32_t fit, uint32_t slot, uint32_t end) {
    uint32_t hole = slot;
    for (;;) {
        uint8_t *page = arena_page(arena, pages[hole / fit]);
        const uint32_t next = hole - hole % fit + fit, to = next < end ? next : end;
        memmove(page + hole % fit * size, page + (hole % fit + 1) * size, (size_t)(to - hole - 1) * size);
        if (to == end) return;
        memcpy(page + (fit - 1) * size, arena_page(arena, pages[next / fit]), size);
        hole = next;
    }
}
