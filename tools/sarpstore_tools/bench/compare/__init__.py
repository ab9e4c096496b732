"""`sarpstore bench compare`: this store beside its peers, on the same requests, in the same run.

requests (traces → request files) → cells (a fresh process each) → comparison (medians) → tables, plots, JSON
"""

from sarpstore_tools.bench.compare.command import compare_command

__all__ = ["compare_command"]
