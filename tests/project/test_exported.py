"""Users see one name, `sarpstore`, with a sorted `__all__` that is the whole of it."""

from __future__ import annotations

import re
from pathlib import Path

import sarpstore

README = Path(__file__).resolve().parents[2] / "README.md"


def test_all_is_complete() -> None:
    # That it is sorted is the linter's business (RUF022).
    assert len(set(sarpstore.__all__)) == len(sarpstore.__all__)
    # Integrations are there once something imported one of them.
    public = {name for name in vars(sarpstore) if not name.startswith("_")} - {"integrations"}
    assert set(sarpstore.__all__) == public


def test_every_public_thing_has_a_docstring() -> None:
    for name in sarpstore.__all__:
        thing = getattr(sarpstore, name)
        if isinstance(thing, type) or callable(thing):
            assert (thing.__doc__ or "").strip(), name
    for cls in (sarpstore.Store, sarpstore.Namespace, sarpstore.Match):
        for name, member in vars(cls).items():
            if not name.startswith("_") and callable(member):
                assert (member.__doc__ or "").strip(), f"{cls.__name__}.{name}"


def test_every_error_stands_in_the_drawn_hierarchy() -> None:
    from sarpstore import _errors

    drawn = set(re.findall(r"\w+Error", _errors.__doc__ or ""))
    assert drawn == {name for name in _errors.__all__ if name.endswith("Error")} | {"ValueError", "OSError"}


def test_the_readme_examples_run(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    for example, most in zip(examples, (14, 24), strict=True):
        assert len([line for line in example.splitlines() if line.strip()]) <= most
    monkeypatch.chdir(tmp_path)
    for example in examples:
        for _ in range(2):
            out: list[str] = []
            names = {"print": lambda *a, out=out: out.append(" ".join(map(str, a))), "__name__": "x"}
            exec(compile(example, "README.md", "exec"), names)
            assert out, "the example prints what it found"
    assert out == ["2 (30, 2, 3, 8, 64)"], "the second time its chunks are there"
