"""Taking out what emptied lists have left: the states of posting lists (format-spec/postings.md, section 4).

A list that is expanded again later is expanded by what is in it then. So that replay does not take what was posted in
between for posted everywhere, a postings record says when a state went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sarpstore._io import give_way
from sarpstore._kernel import lib
from sarpstore._log.commits import postings_record

if TYPE_CHECKING:
    from sarpstore._directory import Cursor, Directory
    from sarpstore._io import Turns
    from sarpstore._log.gather import Gatherer
    from sarpstore._log.writer import LogWriter

__all__ = ["drop_states"]


async def drop_states(directory: Directory, gatherer: Gatherer, log: LogWriter, turns: Turns) -> int:
    """Take the states of all lists without postings out; how many. Who is cut short leaves some to the next."""
    dropped = 0
    # Most stores have none, and under pressure each turn of the loop is somebody's who waits for room.
    begin: Cursor | None = directory.begin_of(directory.first()) if directory.states else None
    while begin is not None:
        number = directory.at(begin)
        changes = directory.empty_states(number)
        if not len(changes):
            begin = directory.end_of(number)
        elif gatherer.buffer.append(postings_record(changes), rule=lib.SARP_PLACE_BEHIND):
            directory.apply(changes)
            log.gathered()
            dropped += len(changes)
        else:
            await log.make_room()
            log.check()
        await give_way(turns)
    return dropped
