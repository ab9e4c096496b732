"""Every trace format is read, recognized by its first record, and refused with file and line where it is malformed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sarpstore_tools.traces import TraceError, TraceSpec, open_trace
from sarpstore_tools.traces.agent_requests import ParagraphTokenizer, split_paragraphs
from sarpstore_tools.traces.files import open_records
from sarpstore_tools.traces.mooncake import expand

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
SHARE = {"id": "s", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}
EVAL = {"conv": [{"user": "hi", "sys": "hello"}, {"user": "more", "sys": ""}], "id": "1_30"}
AGENT = {"timestamp": 5, "input": "user: hi", "output": "hello", "session_id": "a"}
HISTORY = {"state": {"history": CHAT["messages"]}, "task": {"task_id": 0}}

SAMPLES = {
    "mooncake": {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [3, 9]},
    "tokens": {"tokens": [1, 2, 3], "session": "a"},
    "openai": CHAT,
    "sharegpt": SHARE,
    "mt-eval": EVAL,
    "lmcache-agent": AGENT,
    "codeact": HISTORY,
}


class LetterTokenizer:
    """A token a character, and 1 to begin with."""

    start = np.array([1], dtype=np.uint32)

    def encode(self, texts):
        return [np.array([ord(letter) for letter in text], dtype=np.uint32) for text in texts]


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    """Traces of text are tokenized by letters."""
    monkeypatch.setattr("sarpstore_tools.traces.source.load_tokenizer", lambda _path: LetterTokenizer())


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path, **options):
    return list(open_trace(TraceSpec(label="t", path=str(path), **options)).turns())


def text(tokens):
    return "".join(map(chr, tokens[1:]))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_is_recognized_by_its_first_record(tmp_path, name):
    file = open_records(write_lines(tmp_path / "t.jsonl", SAMPLES[name]))
    assert (file.format.name, file.is_document) == (name, False)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_turn_inserts_what_it_matched_and_more(tmp_path, name):
    turns = read(write_lines(tmp_path / "t.jsonl", SAMPLES[name], SAMPLES[name]))
    assert len(turns) >= 2
    for turn in turns:
        assert turn.match.dtype == turn.insert.dtype == np.uint32
        assert np.array_equal(turn.insert[: len(turn.match)], turn.match)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_malformed_record_is_refused_with_file_line_and_what_was_expected(tmp_path, name):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(SAMPLES[name]) + "\n\n" + '{"not": "that"}\n')
    with pytest.raises(TraceError, match=r"t\.jsonl:3: .*expected .*format " + name):
        read(path)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cut_line_is_refused_with_file_and_line(tmp_path, name):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(SAMPLES[name]) + "\n" + json.dumps(SAMPLES[name])[:-4] + "\n")
    with pytest.raises(TraceError, match=r"t\.jsonl:2: "):
        read(path)


def test_chat_turns_follow_the_template_and_each_history_is_a_prefix_of_the_next(tmp_path):
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]},
        {"role": "tool", "content": "42"},
    ]
    first, second, third = read(write_lines(tmp_path / "t.jsonl", {"messages": messages}))
    assert text(first.match) == "<|system|>\nbe kind\n<|user|>\nhi\n<|assistant|>\n"
    assert text(first.insert) == text(first.match) + "hello\n"
    assert text(second.match) == text(first.insert) + "<|user|>\nmore\n<|assistant|>\n"
    assert text(third.match) == text(second.match) + '[{"id": 1}]\n<|tool|>\n42\n'
    assert np.array_equal(third.match, third.insert)
    assert np.array_equal(third.match[: len(second.match)], second.match)


def test_sharegpt_names_become_roles_and_a_leading_answer_is_only_history(tmp_path):
    record = {"conversations": [{"from": "gpt", "value": "welcome"}, *SHARE["conversations"]]}
    (turn,) = read(write_lines(tmp_path / "t.jsonl", record))
    assert text(turn.insert) == "<|assistant|>\nwelcome\n<|user|>\nhi\n<|assistant|>\nhello\n"


def test_a_json_document_of_conversations_is_read(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([SHARE, SHARE, {"conversations": []}], indent=1))
    assert len(read(path)) == 2


def test_a_malformed_record_of_a_document_is_named_by_its_place(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([SHARE, {"conversations": [{"from": "human"}]}]))
    with pytest.raises(TraceError, match=r"t\.json, record 2: .*`value`.*expected"):
        read(path)


def test_an_mt_eval_line_may_be_a_bare_list_and_an_empty_answer_inserts_the_prompt(tmp_path):
    first, second = read(write_lines(tmp_path / "t.jsonl", EVAL["conv"]))
    assert text(first.insert).endswith("<|assistant|>\nhello\n")
    assert np.array_equal(second.match, second.insert)


def test_sessions_are_advanced_round_robin(tmp_path):
    turns = read(write_lines(tmp_path / "t.jsonl", EVAL, EVAL))
    assert [turn.session.split(":")[1] for turn in turns] == ["1", "2", "1", "2"]
    assert len(read(tmp_path / "t.jsonl", limit=3)) == 3


def test_agent_requests_of_several_files_are_merged_by_time(tmp_path):
    write_lines(tmp_path / "a.jsonl", {**AGENT, "timestamp": 9}, {**AGENT, "timestamp": 1})
    write_lines(tmp_path / "b.jsonl", {**AGENT, "timestamp": 3, "session_id": "b", "input": "user: hi\n\nuser: more"})
    trace = open_trace(TraceSpec(label="t", path=str(tmp_path)))
    turns = list(trace.turns())
    assert trace.total == 3
    assert [turn.session for turn in turns] == ["a", "b", "a"]
    assert text(turns[0].insert) == "user: hi\n\nassistant: hello"
    assert np.array_equal(turns[1].match[: len(turns[0].match)], turns[0].match)


def test_paragraphs_join_to_the_text_and_a_prefix_is_tokenized_alike_wherever_it_stands():
    for sample in ("", "a", "\n\na\n\n\nb\nc\n\n", "a\n\n\n\n"):
        assert "".join(split_paragraphs(sample)) == sample
    paragraphs = ParagraphTokenizer(LetterTokenizer())
    short, long = paragraphs.encode("a\n\nb", first=True), paragraphs.encode("a\n\nb\n\nc\n\nb", first=True)
    assert np.array_equal(long[: len(short)], short)


def test_mooncake_ids_expand_to_the_same_tokens_everywhere_and_the_last_block_is_trimmed(tmp_path):
    one, two = expand([3, 9], 700), expand([3, 9, 4], 1536)
    assert len(one) == 700
    assert np.array_equal(two[:700], one)
    assert not np.array_equal(expand([3], 16), expand([4], 16))
    assert int(two.max()) < 32_000
    (turn,) = read(write_lines(tmp_path / "conversation.jsonl", SAMPLES["mooncake"]))
    assert turn.namespace == "conversation"
    assert np.array_equal(turn.match, one)


def test_mooncake_refuses_more_tokens_than_its_ids_stand_for(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", SAMPLES["mooncake"], {"input_length": 513, "hash_ids": [1]})
    with pytest.raises(TraceError, match=r"t\.jsonl:2: input_length 513; expected at most 512"):
        read(path)


def test_token_lists_may_be_bare_and_have_namespaces(tmp_path):
    first, second = read(write_lines(tmp_path / "t.jsonl", [1, 2], {"tokens": [7], "session": 4, "namespace": "m"}))
    assert (first.match.tolist(), first.namespace) == ([1, 2], "")
    assert (second.match.tolist(), second.session, second.namespace) == ([7], "4", "m")


def test_a_token_out_of_range_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"t\.jsonl:1: "):
        read(write_lines(tmp_path / "t.jsonl", [1, 2**32]))


def test_a_folder_leaves_out_what_is_no_trace_and_says_so(tmp_path):
    write_lines(tmp_path / "a.jsonl", CHAT)
    write_lines(tmp_path / "b.jsonl", {"other": 1})
    trace = open_trace(TraceSpec(label="t", path=str(tmp_path)))
    assert len(list(trace.turns())) == 1
    assert any("b.jsonl:1" in note for note in trace.notes)


@pytest.mark.parametrize("content", ["", "\n", "not json\n", '{"other": 1}\n', "[]\n"])
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=r"t\.jsonl.*expected"):
        read(path)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="holds no"):
        read(tmp_path)


def test_an_explicit_format_overrides_recognition(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", {**SHARE, "messages": CHAT["messages"]})
    assert read(path)[0].session.startswith("t:1")
    with pytest.raises(TraceError, match=r"expected an object like .*conv"):
        read(path, format="mt-eval")
