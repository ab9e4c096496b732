"""Token lists: one request a line, `[1, 2, 3]` or `{"tokens": [1, 2, 3], "session": "a", "namespace": "m"}`.

Replayed in the order of the file. The list is both the prompt and what is inserted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sarpstore_tools.traces.formats import TokensRecord
from sarpstore_tools.traces.model import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore_tools.traces.files import RecordFile


def token_list_turns(file: RecordFile) -> Iterator[Turn]:
    """A turn for every list of `file`; a list without a session is one of its own."""
    for number, record in file.records():
        if isinstance(record, list):
            record = TokensRecord(record)
        tokens = np.array(record.tokens, dtype=np.uint32)
        session = f"{file.name}:{number}" if record.session is None else str(record.session)
        yield Turn(session, tokens, tokens, record.namespace)
