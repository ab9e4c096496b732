"""The mark pass (format-spec/removal.md, section 3): after it, no entry is dead by a removal up to its position.

    load all partitions → take a position → sync the log up to it → rows of all records that entries name → plan → sweep

So markers up to that position are needless, and can be retired once a checkpoint has saved the directory as it is now.
"""

from sarpstore._markpass.plan import Plan, make_plan
from sarpstore._markpass.retirement import Retirement
from sarpstore._markpass.run import MarkPass, PassResult

__all__ = ["MarkPass", "PassResult", "Plan", "Retirement", "make_plan"]
