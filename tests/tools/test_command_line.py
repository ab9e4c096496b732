"""The console script: help without importing a command, one line for an error, and its exit status."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sarpstore_tools import main as command_line
from sarpstore_tools.recovery import drop_page_cache, resident_pages


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_info:
        command_line.main(arguments)
    captured = capsys.readouterr()
    return exit_info.value.code, captured.out, captured.err


def test_help_names_every_command_and_imports_none():
    code = (
        "import sys\nfrom sarpstore_tools.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "names = {'replay', 'dump', 'verify', 'stats', 'bench', 'chunks', 'crashtest'}\n"
        "assert not any(f'sarpstore_tools.{name}' in sys.modules for name in names)\n"
        "assert 'sarpstore' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in command_line.COMMANDS:
        assert f"\n  {name} " in done.stdout


def test_the_version_is_the_package_s(capsys):
    status, out, _ = run(capsys, "--version")
    assert status == 0
    assert out.startswith("sarpstore, version ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("--bogus",),
        ("replay", "/no/such/trace"),
        ("replay", "--concurrency", "0"),
        ("replay", "--format", "bogus"),
        ("replay", __file__, "--sessions", "3"),
    ],
)
def test_a_wrong_call_is_one_line_on_stderr_and_status_2(capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("sarpstore: ")
    assert err.count("\n") == 1


def test_a_command_that_is_not_installed_says_so(capsys, monkeypatch):
    monkeypatch.setitem(command_line.COMMANDS, "bench", ("sarpstore_tools.no_such_module:bench", ""))
    status, _, err = run(capsys, "bench")
    assert status == 2
    assert "no command bench" in err


def test_a_bare_call_shows_the_help(capsys):
    _, out, err = run(capsys)
    assert "Usage: sarpstore" in out + err


def test_the_page_cache_is_dropped_and_what_is_left_is_reported(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(40_000))
    assert resident_pages(path)[1] == 10
    how, left, pages = drop_page_cache(tmp_path)
    assert how.startswith("posix_fadvise")
    assert 0 <= left <= pages == 10
    (tmp_path / "empty").touch()
    assert resident_pages(tmp_path / "empty") == (0, 0)
