"""Builds the cffi module `sarpstore._kernel._native` out of `kernels/*.c`.

One header per C module declares its public part, and the same text is what cffi reads: preprocessor
lines are dropped, so a declaration exists once. Used three ways: as hatchling's build hook
(`pip install`), as a script (`python kernels/build_kernel.py`, builds in place), and with
`SARPSTORE_SANITIZE=1` in the environment, which instruments the kernel with ASAN and UBSAN.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cffi import FFI
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

KERNELS = Path(__file__).resolve().parent
MODULE = "sarpstore._kernel._native"


def declarations(header: Path) -> str:
    """The C declarations of a public header, without its preprocessor lines."""
    return "\n".join(line for line in header.read_text().splitlines() if not line.startswith("#"))


def ffibuilder() -> FFI:
    # `internal_*.h` and `format.h` are between the C files only.
    headers = [h for h in sorted(KERNELS.glob("*.h")) if not h.name.startswith("internal_") and h.name != "format.h"]
    # A structure stands before what uses it.
    first = ("types.h", "removals.h", "directory.h", "pages.h", "match.h", "commit.h", "postings.h", "rope.h")
    order = {name: i for i, name in enumerate(first)}
    headers.sort(key=lambda h: (order.get(h.name, len(order)), h.name))
    ffi = FFI()
    for header in headers:
        ffi.cdef(declarations(header))
    sanitize = os.environ.get("SARPSTORE_SANITIZE") == "1"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-fno-strict-aliasing"]
    # No compiler may fuse a product with a sum: portable and SIMD paths give the same bits.
    flags += ["-ffp-contract=off"]
    flags += ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"] if sanitize else ["-O3"]
    ffi.set_source(
        MODULE,
        "\n".join(f'#include "{h.name}"' for h in headers),
        sources=[str(c) for c in sorted(KERNELS.glob("*.c"))],
        depends=[str(h) for h in sorted(KERNELS.glob("*.h"))],
        include_dirs=[str(KERNELS)],
        extra_compile_args=flags,
        extra_link_args=["-fsanitize=address,undefined"] if sanitize else [],
    )
    return ffi


class BuildSideBySide(build_ext):
    """Compiles the files of an extension on all processors; setuptools takes them one by one."""

    def build_extensions(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], *arguments: Any, **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(lambda source: compile_some([source], *arguments, **options), sources))
            return [name for names in objects for name in names]

        self.compiler.compile = compile_all
        super().build_extensions()


def build(root: Path) -> Path:
    """Compiles the module and puts it beside `sarpstore/_kernel/__init__.py` under `root`."""
    with tempfile.TemporaryDirectory() as tmp:
        extension = ffibuilder().distutils_extension(tmp, verbose=False)
        distribution = Distribution({"ext_modules": [extension], "cmdclass": {"build_ext": BuildSideBySide}})
        command = distribution.get_command_obj("build_ext")
        command.build_lib = command.build_temp = tmp
        distribution.run_command("build_ext")
        built = Path(command.get_ext_fullpath(extension.name))
        target = root / "sarpstore" / "_kernel" / built.name
        for old in target.parent.glob("_native*.so"):
            old.unlink()
        shutil.copy2(built, target)
        return target


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, where hatchling need not be installed
    pass
else:

    class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
            if self.target_name != "wheel":
                return
            build(Path(self.root))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    sys.stdout.write(f"{build(KERNELS.parent)}\n")
