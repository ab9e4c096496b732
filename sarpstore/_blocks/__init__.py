"""Token blocks: what callers hand over, made into block ids."""

from sarpstore._blocks.hashing import BlockHasher, canonical_root
from sarpstore._blocks.inputs import as_ids, as_locations, as_tokens, ids_in_turns, locations_in_turns, tokens_in_turns

__all__ = [
    "BlockHasher",
    "as_ids",
    "as_locations",
    "as_tokens",
    "canonical_root",
    "ids_in_turns",
    "locations_in_turns",
    "tokens_in_turns",
]
