"""Recovery: finding the state that a store's files hold (format-spec/recovery.md)."""

from sarpstore._recovery.accept import Accepted, Damage, accept
from sarpstore._recovery.facts import Facts
from sarpstore._recovery.recover import Recovered, read_log_changes, recover
from sarpstore._recovery.survey import holds_store, read_header

__all__ = [
    "Accepted",
    "Damage",
    "Facts",
    "Recovered",
    "accept",
    "holds_store",
    "read_header",
    "read_log_changes",
    "recover",
]
