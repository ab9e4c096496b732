#include "slots.h"

#include "internal_bits.h"

/* Frees a place of the index: what was pushed past it moves back into it (Knuth 6.4, algorithm R). */
static void place_free(sarp_base *base, uint32_t hole) {
    const uint32_t mask = SARP_SLOT_INDEX - 1;
    for (uint32_t i = (hole + 1) & mask; base->slot_index[i]; i = (i + 1) & mask) {
        const uint32_t home = (uint32_t)base->slot_files[base->slot_index[i] - 1] & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        base->slot_index[hole] = base->slot_index[i];
        hole = i;
    }
    base->slot_index[hole] = 0;
}

void sarp_slot_set(sarp_base *base, uint32_t slot, uint64_t file_number) {
    const uint64_t before = base->slot_files[slot];
    if (before == file_number) return;
    if (before) place_free(base, slot_place(base, before));
    base->slot_files[slot] = file_number;
    if (!file_number) return;
    /* Where a file is in two slots, which no writer makes, the one that it was given last counts. */
    base->slot_index[slot_place(base, file_number)] = slot + 1;
    if (base->slot_count <= slot) base->slot_count = slot + 1;
}
