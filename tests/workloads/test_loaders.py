"""Users' files of prompts: every form by exact values, and every mistake with its place and in one sentence."""

from __future__ import annotations

import json

import pytest

from specviz import prompts
from specviz.errors import UserError
from specviz.workloads import loaders
from specviz.workloads.loaders import MAX_BYTES, MAX_CHARACTERS, MAX_PROMPTS, parse, read
from specviz.workloads.prompts import Prompt


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refusal(content: str | bytes, name: str) -> str:
    with pytest.raises(UserError) as refused:
        parse(content, name)
    message = str(refused.value)
    assert message.endswith(".") and "\n" not in message
    return message


SPEC_BENCH = lines(
    {"question_id": 81, "category": "writing", "turns": ["Describe a harbour.", "Now as a limerick."]},
    {"question_id": 201, "category": "translation", "turns": ["Translate: Guten Tag."], "reference": ["Good day."]},
)
SPEED_BENCH = lines(
    {
        "question_id": "8c1f",
        "category": "coding",
        "sub_category": None,
        "turns": ["Sort a list."],
        "source": "made up",
        "src_id": "7",
        "difficulty": "easy",
        "multiturn": False,
    },
    {"question_id": "8c20", "category": "rag", "turns": [{"role": "user", "content": "Who came?"}]},
)


def test_rows_of_public_benchmarks():
    assert parse(SPEC_BENCH, "question.jsonl") == (
        Prompt("81", "writing", ("Describe a harbour.", "Now as a limerick.")),
        Prompt("201", "translation", ("Translate: Guten Tag.",)),
    )
    assert parse(SPEED_BENCH, "qualitative.jsonl") == (
        Prompt("8c1f", "coding", ("Sort a list.",)),
        Prompt("8c20", "rag", ("Who came?",)),
    )


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"prompt": "a", "text": "b"}, ("a",)),
        ({"prompt": None, "text": " b\n"}, (" b\n",)),
        ({"question": "c", "answer": "d"}, ("c",)),
        ({"instruction": "e", "input": ""}, ("e",)),
        ({"instruction": "e", "input": "f", "output": "g"}, ("e\n\nf",)),
        ({"question": "c", "input": "f"}, ("c",)),
        ({"turns": ["h"], "prompt": "a"}, ("h",)),
        ({"prompt": "split only\u2028at newlines"}, ("split only\u2028at newlines",)),
    ],
)
def test_what_is_asked_stands_under_one_of_several_keys(row, turns):
    assert parse(json.dumps(row, ensure_ascii=False), "mine.jsonl") == (Prompt("line-1", "prompts", turns),)


def test_of_a_conversation_the_users_turns_are_asked_and_the_system_speaks_before_them():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who was first?"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "And then?"},
        {"role": "developer", "content": "Speak up."},
        {"role": "user", "content": "Last?"},
        {"role": "assistant", "content": "Nobody."},
    ]
    (prompt,) = parse(lines({"id": "talk", "workload": "chat", "messages": messages}), "talk.ndjson")
    assert prompt == Prompt("talk", "chat", ("Be brief.\n\nWho was first?", "And then?", "Speak up.\n\nLast?"))


def test_the_texts_of_a_contents_parts_go_below_one_another():
    parts = [{"type": "text", "text": "Look."}, {"type": "text", "text": "What is it?"}]
    for key in ("messages", "turns"):
        (prompt,) = parse(lines({key: [{"role": "user", "content": parts}]}), "mine.jsonl")
        assert prompt.turns == ("Look.\nWhat is it?",)


def test_one_object_is_a_prompt_or_holds_the_rows():
    for indent in (None, 1):
        one = parse(json.dumps({"prompt": "a", "data": [1]}, indent=indent), "mine.json")
        assert [prompt.turns for prompt in one] == [("a",)]
        for key in ("data", "prompts", "questions", "rows"):
            rows = {"version": 1, key: [{"prompt": "a"}, {"question": "b", "id": 3}]}
            assert parse(json.dumps(rows, indent=indent), "mine.json") == (
                Prompt("entry-1", "prompts", ("a",)),
                Prompt("3", "prompts", ("b",)),
            )


def test_a_list_of_objects_is_read_too_and_missing_ids_tell_the_place():
    rows = [{"prompt": "a", "id": 3}, {"prompt": "b"}]
    for text in (json.dumps(rows), "\n" + json.dumps(rows, indent=2)):
        assert parse(text, "mine.json") == (Prompt("3", "prompts", ("a",)), Prompt("entry-2", "prompts", ("b",)))
    assert [prompt.id for prompt in parse('{"text": "a"}\n\n{"text": "b"}\n', "mine.json")] == ["line-1", "line-3"]


def test_a_table_with_quotes_a_byte_order_mark_and_cells_of_several_lines():
    table = '\ufeffID, Category ,prompt\r\na,tea,"Black, or ""green""?"\r\n\r\n,,"two\nlines"\r\nb,,last\r\n'
    expected = (
        Prompt("a", "tea", ('Black, or "green"?',)),
        Prompt("line-4", "prompts", ("two\nlines",)),
        Prompt("b", "prompts", ("last",)),
    )
    assert parse(table.encode(), "mine.csv") == expected
    assert parse("question;workload\nOne, two;count\n", "mine.CSV") == (Prompt("line-2", "count", ("One, two",)),)
    assert parse("text\tid\nOne; two, three\t1\n", "mine.tsv") == (Prompt("1", "prompts", ("One; two, three",)),)


def test_text_holds_a_prompt_per_line_or_several_lines_between_separators():
    assert parse("One?\r\n\r\n  Two?\r\n", "mine.txt") == (
        Prompt("line-1", "prompts", ("One?",)),
        Prompt("line-3", "prompts", ("  Two?",)),
    )
    assert parse("---\nOne\n\nand more\n\n ---\n---\n\nTwo\n---", "mine.md") == (
        Prompt("line-2", "prompts", ("One\n\nand more",)),
        Prompt("line-9", "prompts", ("Two",)),
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("just text", r'no prompt; write it as an object such as {"prompt": "Why is the sky blue?"}.'),
        ({"answer": "x"}, "has no prompt; give one as turns, messages, prompt, instruction, question or text."),
        ({"prompt": None}, "has no prompt;"),
        ({"prompt": "  "}, "a turn is empty or no text"),
        ({"prompt": 5}, "a turn is empty or no text"),
        ({"instruction": ["x"], "input": "y"}, "a turn is empty or no text"),
        ({"turns": ["x", None]}, "a turn is empty or no text"),
        ({"turns": ["x", {"role": "user", "content": "y"}]}, "a turn is empty or no text"),
        ({"turns": []}, "'turns' must be a list with at least one entry"),
        ({"turns": "x"}, "'turns' must be a list with at least one entry"),
        ({"messages": {}}, "'messages' must be a list with at least one entry"),
        ({"messages": ["x"]}, "message 1 is none of a system, a user or an assistant"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "message 1 is none of a system, a user or an assistant"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "message 1 is none of a system, a user or an assistant"),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            'the content of message 1 has a part that is no {"type": "text", "text": "..."}; leave it out.',
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "the content of message 1 has a part"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "message 1 has a part that is no"),
        ({"messages": [{"role": "user", "content": []}]}, "the content of message 1 is empty or no text"),
        ({"messages": [{"role": "user", "content": " "}]}, "the content of message 1 is empty or no text"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "its messages end before a user asks something"),
        ({"turns": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}, "its messages end before"),
        ({"prompt": "x", "id": 1.5}, "'id' must be a line of text or a whole number, up to 100 characters long"),
        ({"prompt": "x", "id": True}, "'id' must be a line of text"),
        ({"prompt": "x", "id": " "}, "'id' must be a line of text"),
        ({"prompt": "x", "question_id": "a\nb"}, "'question_id' must be a line of text"),
        ({"prompt": "x", "category": ["y"]}, "'category' must be a line of text"),
        ({"prompt": "x", "workload": "y" * 101}, "'workload' must be a line of text"),
        ({"prompt": "x" * (MAX_CHARACTERS + 1)}, "has more than 200,000 characters; shorten it"),
        (
            {"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH\n\n{article}"]},
            "its text is left out; fill the file in with SPEED-Bench's own preparation first",
        ),
    ],
)
def test_a_wrong_row_is_named_with_its_line(row, words):
    message = refusal(lines({"prompt": "fine"}) + "\n" + lines(row), "mine.jsonl")
    assert message.startswith("mine.jsonl, line 3") and words in message


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', "mine.jsonl", "mine.jsonl, line 2 is not JSON"),
        ('{"prompt": "a", "id": NaN}', "mine.jsonl", "mine.jsonl, line 1 is not JSON ('NaN' is not a finite number)"),
        (r'{"prompt": "\ud83d"}', "mine.jsonl", "mine.jsonl, line 1 is not JSON"),
        ('{"prompt": ' + "[" * 100_000, "mine.jsonl", "mine.jsonl, line 1 is not JSON"),
        ("[" * 100_000, "mine.json", "mine.json is not JSON"),
        ('{"prompt": "a"\n{"prompt": "b"}\n', "m.jsonl", "m.jsonl is not JSON: line 1 is no object (Expecting ','"),
        ('{\n"prompt": \n', "mine.json", "and nor is the whole file (Expecting value: line 3 column 1"),
        ('{"data": []}', "mine.json", "mine.json has no prompts; give at least one"),
        ('{"data": ["a"]}', "mine.json", "mine.json, entry 1 is no prompt; write it as an object such as"),
        ('{"data": {"prompt": "a"}}', "mine.json", "mine.json, line 1 has no prompt; give one as"),
        ('{"data": [], "rows": []}', "mine.json", "several lists of prompts; keep one of data, prompts, questions or"),
        ('{"data": [{"prompt": "a"}]}\n{"prompt": "b"}', "mine.json", "mine.json, line 1 has no prompt"),
        ('{\n"other": 1}', "mine.json", "mine.json, entry 1 has no prompt; give one as turns"),
        ('[{"prompt": "a"}, 7]', "mine.json", "mine.json, entry 2 is no prompt"),
        ("[]", "mine.json", "mine.json has no prompts; give at least one"),
        ("", "mine.jsonl", "mine.jsonl has no prompts"),
        ("\ufeff\n", "mine.csv", "mine.csv has no prompts"),
        ("prompt\n", "mine.csv", "mine.csv has no prompts"),
        ("---\n \n---\n", "mine.txt", "mine.txt has no prompts"),
        ("id,answer\n1,x\n", "mine.csv", "line 1 is no header with a column of prompts; call one of them prompt, "),
        ("prompt,id,ID\nx,1,2\n", "mine.csv", "mine.csv, line 1 has two columns of one name; rename one"),
        ('prompt,id\n"a\nb",1\nc, d,2\n', "mine.csv", "mine.csv, line 4: the header has 2 columns and this row 3; put"),
        ("prompt,id\nc\n", "mine.csv", "mine.csv, line 2: the header has 2 columns and this row 1"),
        ("prompt,id\n,1\n", "mine.csv", "mine.csv, line 2 has no prompt"),
        ('prompt,id\na,1\n"b,2\nc,3\n', "mine.csv", "mine.csv, line 3 is no CSV (unexpected end of data)"),
        (b'{"prompt": "caf\xe9"}', "mine.jsonl", "mine.jsonl holds bytes that are not UTF-8; save it as UTF-8"),
        ("prompt".encode("utf-16"), "mine.csv", "mine.csv holds bytes that are not UTF-8"),
        ("half \ud83d", "mine.txt", "mine.txt holds bytes that are not UTF-8"),
        (b"PAR1", "test.parquet", "test.parquet can't be read; give prompts as one of: .jsonl, .ndjson, .json, .csv,"),
        ("x", "mine", "mine can't be read; give prompts as one of"),
        (b"x" * (MAX_BYTES + 1), "mine.txt", "mine.txt has more than 20 MB; give fewer prompts"),
        ("x\n" * (MAX_PROMPTS + 1), "mine.txt", "mine.txt has more than 20,000 prompts; give fewer"),
        (lines({"text": "a", "id": 1}, {"text": "b", "id": "1"}), "m.jsonl", "m.jsonl, line 2: line 1 has the id '1'"),
    ],
)
def test_a_wrong_file_is_named(content, name, words):
    assert words in refusal(content, name)


def test_as_many_as_are_allowed_are_read():
    assert len(parse("x\n" * MAX_PROMPTS, "mine.txt")) == MAX_PROMPTS
    assert len(parse("x" * MAX_CHARACTERS, "mine.txt")[0].text) == MAX_CHARACTERS == prompts.MAX_PROMPT_CHARS


def test_files_are_read_within_the_limit(tmp_path, monkeypatch):
    file = tmp_path / "mine.txt"
    file.write_text("One?\nTwo?")
    assert [prompt.text for prompt in read(file)] == ["One?", "Two?"]
    monkeypatch.setattr(loaders, "MAX_BYTES", 8)
    with pytest.raises(UserError, match="more than 0 MB"):
        read(file)
    with pytest.raises(UserError, match="No such file or directory"):
        read(tmp_path / "none.txt")
    with pytest.raises(UserError, match=r"none\.zip can't be read; give prompts as one of"):
        read(tmp_path / "none.zip")
