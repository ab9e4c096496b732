"""Imports go down only (engine → checkpoint, recovery → directory, log, blocks → io → files → kernel → …)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the bottom up. A module may import its own layer's package and everything in rows above its own.
LAYERS = [
    {"_errors", "_format", "_clock"},
    {"_kernel", "_options"},
    {"_files"},
    {"_io"},
    {"_blocks", "_log"},
    {"_directory", "_chunks"},
    {"_checkpoint"},
    {"_recovery"},
    {"_markpass", "_eviction", "_compaction"},
    {"_engine"},
    {"__init__"},
    {"integrations"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LINES_MAX = 500


def part_of(path: Path) -> str:
    """The layer name of a file: its package's, or its own."""
    relative = path.relative_to(ROOT / "sarpstore")
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_parts(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it goes"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "sarpstore" else [module]
        parts |= {name.split(".")[1] for name in names if name.startswith("sarpstore.")}
    return parts


ENGINE_FILES = sorted((ROOT / "sarpstore").rglob("*.py"))


@pytest.mark.parametrize("path", ENGINE_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    own = part_of(path)
    for other in imported_parts(path) - {own}:
        assert LEVEL[other] < LEVEL[own], f"{own} must not import {other}"


def test_only_the_kernel_package_imports_the_compiled_module() -> None:
    users = [p for p in ENGINE_FILES if "_native" in p.read_text() and p.parent.name != "_kernel"]
    assert users == []


def test_the_spec_reader_and_its_tools_know_nothing_of_the_engine() -> None:
    tools = ROOT / "tools" / "sarpstore_tools"
    alone = ("dump.py", "verify.py", "stats.py", "statsview.py", "statstables.py", "chunkview.py")
    files = [*sorted((tools / "specreader").rglob("*.py")), *(tools / name for name in alone)]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(m == "sarpstore" or m.startswith("sarpstore.") for m in modules), path


def test_tools_use_the_public_api_alone() -> None:
    for path in sorted((ROOT / "tools").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if module.startswith("sarpstore.") and not re.fullmatch(r"sarpstore\.integrations\.[a-z]\w*", module):
                pytest.fail(f"{path} imports {module}")


def test_integrations_use_the_public_api_alone() -> None:
    for path in sorted((ROOT / "sarpstore" / "integrations").rglob("*.py")):
        assert imported_parts(path) <= {"integrations"}, path


@pytest.mark.parametrize("folder", ["sarpstore", "tools", "kernels", "fuzz", "tests"])
def test_modules_stay_small(folder: str) -> None:
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in {".py", ".c", ".h"}:
            lines = len(path.read_text().splitlines())
            assert lines <= LINES_MAX, f"{path.relative_to(ROOT)} has {lines} lines"


def test_the_top_level_holds_what_the_layout_names() -> None:
    allowed = {
        "pyproject.toml",
        "sarpstore",
        "kernels",
        "format-spec",
        "tests",
        "fuzz",
        "tools",
        "README.md",
        "LICENSE",
    }
    here = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    assert here - allowed - {"build", "dist"} == set()
