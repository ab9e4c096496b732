"""When the markers that a mark pass has made needless may be forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sarpstore._io import give_way

if TYPE_CHECKING:
    from sarpstore._io import Turns
    from sarpstore._log.removals import Removals

__all__ = ["Retirement"]


class Retirement:
    """Markers up to a finished pass's position retire when a checkpoint that began after the pass is published.

    Until then a recovery could bring back entries that only they kill. A checkpoint asks `due` as it begins (its head
    need not have the markers up to there), and hands it to `retire` when it is published.
    """

    def __init__(self, removals: Removals, turns: Turns) -> None:
        self._turns = turns
        self._removals = removals
        self.due = 0
        """Position of the last finished pass; 0: there was none since the last retirement."""
        self.waiting = 0
        """How many of the markers that there were then are left, about: they are needless, and wait to retire."""

    def passed(self, position: int, markers: int) -> None:
        """A pass has finished, at whose beginning there were so many markers."""
        self.due = max(self.due, position)
        self.waiting = markers

    async def retire(self, due: int) -> int:
        """Forget the markers up to what `due` was when the published checkpoint began; how many."""
        if not due:
            return 0
        self._removals.c.settled = max(int(self._removals.c.settled), due)
        retired = 0
        for some in self._removals.retiring(due):
            retired += some
            await give_way(self._turns)
        if self.due == due:
            self.due = self.waiting = 0
        else:  # another pass has finished meanwhile, which had counted these
            self.waiting = max(0, self.waiting - retired)
        return retired
