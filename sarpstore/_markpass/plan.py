"""What a mark pass decides, from one row for each entry. Pure; the kernel does it, in a call that is made on a thread.

Memory, beside the rows' 48 bytes a segment and the removals' 8: 24 bytes a segment; 16 for each whole one of a window
and of one next to it, and 10 more for each of the window where that is most. So at most 50 a segment, where one window
has all of them. Then 8 a segment are kept, and 8 for each window that something branches off in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore._errors import LimitError
from sarpstore._kernel import MARK_ROW_DTYPE, ffi, lib, pointer, reserve

__all__ = ["Plan", "make_plan"]

U64s = npt.NDArray[np.uint64]

_ROWS_MAX: Final = (1 << 32) - 1  # the kernel numbers them with 32 bits
_NONE: Final = np.empty(0, np.uint64)


@dataclass(slots=True)
class Plan:
    """What the sweeps apply, and what the rows said of the log's files. uint64 all."""

    verdicts: U64s
    """Ascending: reference << 8 | blocks that stay; 0: the entry goes."""
    masks: U64s
    """Ascending, one a root key: key << 16 | mask bits of the entries that stay."""
    intact: U64s
    """By slot, `SARP_SLOTS` of them: records of which every block is alive."""

    def give_up(self) -> None:
        """Forget all of it. Large memory takes long to be given back: this is called on a thread, too."""
        self.verdicts = self.masks = self.intact = _NONE


def make_plan(rows: npt.NDArray[Any], removals: U64s, position: int) -> Plan:
    """The plan for rows (`MARK_ROW_DTYPE`, contiguous) of all entries of records up to `position`, the pass's.

    `removals` are the positions of all markers and epochs, in any order; they are sorted in place, the rows stay as
    they are. LimitError where there is no memory, or from 4,294,967,296 rows on.
    """
    assert rows.dtype == MARK_ROW_DTYPE
    if len(rows) > _ROWS_MAX:
        raise LimitError(f"a mark pass over {len(rows):,} segments: at most {_ROWS_MAX:,} can be decided together")
    what = "the plan of a mark pass"
    scratch = reserve(lib.sarp_mark_decide_bytes(len(rows), len(removals)), what)
    verdicts, masks = reserve(len(rows) * 8, what), reserve(len(rows) * 8, what)
    intact = reserve(lib.SARP_SLOTS * 8, what)
    c = ffi.new("sarp_mark_decision *")
    c.rows, c.row_count = pointer("sarp_mark_row *", rows), len(rows)
    c.removals, c.removal_count = pointer("uint64_t *", removals), len(removals)
    c.scratch = pointer("void *", scratch)
    c.verdicts, c.masks, c.intact = (pointer("uint64_t *", space) for space in (verdicts, masks, intact))
    c.position = position
    lib.sarp_mark_decide(c)
    return Plan(
        np.frombuffer(verdicts, np.uint64, len(rows)),
        np.frombuffer(masks, np.uint64, int(c.mask_count)),
        np.frombuffer(intact, np.uint64),
    )
