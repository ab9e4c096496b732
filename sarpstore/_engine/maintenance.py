"""Work that keeps a store in bounds over months: mark passes, compaction, eviction, times to live.

    what is asked for, and how full things are ──► due (pure) ──► one piece of work at a time ──► whoever waits is told

One task does it all, one piece after another, since a pass, a compaction and an eviction must not meet; insertions,
removals, matches and checkpoints go on meanwhile.
"""
