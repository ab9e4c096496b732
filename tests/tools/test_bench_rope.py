"""The benchmark of rotation at a tiny size: every figure is there, and targets set the exit status."""

from __future__ import annotations

import json

import pytest
from sarpstore_tools.bench import rope
from sarpstore_tools.main import main


def test_rope_measures_every_dtype_style_and_head(capsys, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--mib", "1", "--repeats", "2", "--no-pin", "--no-targets", "--json", str(report)]
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "rope", *arguments])
    out = capsys.readouterr().out
    assert exit_info.value.code == 0
    found = json.loads(report.read_bytes())
    names = {figure["name"] for figure in found["figures"]}
    assert len(names) == len(rope.DTYPES) * len(rope.STYLES) * len(rope.HEAD_DIMS)
    assert "bfloat16, neox, head_dim 64, 1 MiB" in names
    for figure in found["figures"]:
        assert figure["value"] > 0
        assert (figure["target"], figure["repeats"]) == (rope.RATIO_TARGET, 2)
        assert figure["name"] in out


def test_a_case_has_as_many_tokens_as_its_keys_fill():
    for case in rope._cases((8, 64)):
        key_bytes = case.layout.token_bytes // 2
        assert case.tokens * key_bytes <= case.mib << 20 < (case.tokens + 1) * key_bytes
