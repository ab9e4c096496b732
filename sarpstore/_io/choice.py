"""Which backend a store gets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from sarpstore._errors import OptionError
from sarpstore._io.threads import ThreadBackend
from sarpstore._io.uring import UringBackend

if TYPE_CHECKING:
    from sarpstore._io.backend import Backend

__all__ = ["choose_backend"]

_log = logging.getLogger("sarpstore")


def choose_backend(io: Literal["auto", "uring", "threads"], queue_depth: int) -> Backend:
    """The backend that the option `io` asks for; under "auto" io_uring where the system lets it be had.

    OptionError, with the reason, where "uring" can't be had.
    """
    if io == "threads":
        return ThreadBackend()
    try:
        return UringBackend(queue_depth)
    except OptionError as error:
        if io == "uring":
            raise
        _log.info("reads go to threads: %s", error)
        return ThreadBackend()
