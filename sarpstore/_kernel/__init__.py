"""The C kernel: the only importer of the cffi module.

`ffi` and `lib` are cffi's; `FEATURES` is what this CPU offers (SSE4.2, AVX2, SHA-NI), asked once, and
handed to every kernel call, since the kernel itself keeps no state. `SARPSTORE_FORCE_SCALAR=1` makes it 0,
which selects the portable path everywhere: how the scalar twins are tested on any machine.
"""

from __future__ import annotations

import os

from sarpstore._kernel._native import ffi, lib

FEATURES: int = 0 if os.environ.get("SARPSTORE_FORCE_SCALAR") == "1" else lib.sarp_cpu_features()

__all__ = ["FEATURES", "ffi", "lib"]
