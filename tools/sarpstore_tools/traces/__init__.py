"""Traces: requests to replay, from files of many formats or from a built-in generator.

`TraceSpec` says what to replay, `open_trace` gives the `Trace`, whose turns stream: readers are generators and
hold no more than the sessions that are active.
"""

from sarpstore_tools.traces.model import TOKEN_BLOCK, Message, Session, Tokens, Trace, TraceError, Turn
from sarpstore_tools.traces.source import TraceSpec, open_trace

__all__ = [
    "TOKEN_BLOCK",
    "Message",
    "Session",
    "Tokens",
    "Trace",
    "TraceError",
    "TraceSpec",
    "Turn",
    "open_trace",
]
