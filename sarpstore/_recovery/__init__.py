"""Recovery: finding the state that a store's files hold (format-spec/recovery.md)."""

from sarpstore._recovery.accept import Accepted, Damage, accept
from sarpstore._recovery.recover import Recovered, holds_store, read_log_changes, recover

__all__ = ["Accepted", "Damage", "Recovered", "accept", "holds_store", "read_log_changes", "recover"]
