"""Golden files: what is read is written alike, and what is no golden file is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from specviz import golden
from specviz.errors import UserError
from specviz.golden import Curve, Golden

TEXT = """\
# Source GitHub Actions run: https://example.org/runs/1
# dataset: coding | top_p: 0.95 | output_len: 4096
#
# {
#   "MODEL": "some/model"
# }
some-model:
  thinking_on:
    1: 1.83
    2: 2.43
  thinking_off:
    1: 1.80
    3: 2.7512
other:
  thinking_on:
    2: 3.00
"""


def test_a_file_reads_and_writes_alike():
    read = golden.parse(TEXT, "folder/some.yaml")
    assert read == Golden(
        "some",
        (
            Curve("some-model", "thinking_on", {1: 1.83, 2: 2.43}),
            Curve("some-model", "thinking_off", {1: 1.8, 3: 2.7512}),
            Curve("other", "thinking_on", {2: 3.0}),
        ),
        tuple(TEXT.splitlines()[:6]),
    )
    assert golden.render(read) == TEXT


@pytest.mark.parametrize(
    ("text", "curves"),
    [
        ("[{1: 1.90}, {2: 2.43}]", (Curve("", "", {1: 1.9, 2: 2.43}),)),
        ("- 2: 2.43\n- 1: '1.90'\n", (Curve("", "", {1: 1.9, 2: 2.43}),)),
        ("m: [{1: 1.90}]\nn: {on: {1: 2}}", (Curve("m", "", {1: 1.9}), Curve("n", "on", {1: 2.0}))),
        ("m:\n- 1: 1.9\n", (Curve("m", "", {1: 1.9}),)),
        ("m: {on: [{1: 1.9, 2: 2.1}]}", (Curve("m", "on", {1: 1.9, 2: 2.1}),)),
        ('"a: b # c": {"off": {1: 1.0}, "3": {1: 2.0}, "": {1: 1.5}}', None),
        ('"a: b # c": {"off": {1: 1.0}, "3": {1: 2.0}, "ü ✓": {1: 1.5}}', None),
    ],
)
def test_other_forms_read_and_write_alike(text: str, curves: tuple[Curve, ...] | None):
    if '"": ' in text:
        with pytest.raises(UserError, match="line 1: a mode's name"):
            golden.parse(text, "some.yaml")
        return
    read = golden.parse(text, "some.yaml")
    assert curves is None or read.curves == curves
    assert golden.parse(golden.render(read), "some.yaml") == read


def test_comments_are_kept_wherever_they_stand():
    text = "# first\nm: # the model\n  'a # b':\n    # before\n    1: 1.5  # beside\n# last"
    read = golden.parse(text, "some.yaml")
    assert read.comments == ("# first", "# the model", "# before", "# beside", "# last")
    assert read.curves == (Curve("m", "a # b", {1: 1.5}),)
    assert golden.parse(golden.render(read), "some.yaml") == read


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("m:\n  on: [1: 1.9", 2, "not YAML"),
        ("m:\n\ton: {1: 1.9}", 2, "not YAML"),
        ("m:\n  on:\n    1:\t1.9", 3, "not YAML"),
        ("m: {on: {1: 1.9}}\n--- \nn: {on: {1: 1.9}}", 2, "not YAML"),
        ("m:\n  on: {1: 1.9}\n# \x07", 3, "a character"),
        ("just words", 1, "a model's name"),
        ("\nm: 1.9", 2, "a mode's name"),
        ("\n1: 1.9", 2, "an acceptance length stands where a model's name"),
        ("m:\n  1: 1.9", 2, "an acceptance length stands where a mode's name"),
        ("m:\n  on: 1.9", 2, "draft lengths with"),
        ("m:\n  on: [1.9, 2.4]", 2, "draft lengths with"),
        ("m:\n  on: {}", 2, "draft lengths with"),
        ("m: {}", 1, "a mode's name"),
        ("? [a]\n: {on: {1: 1.9}}", 1, "a model's name"),
        ("m:\n  on:\n    0: 1.0", 3, "from 1 to 256"),
        ("m:\n  on:\n    257: 1.0", 3, "from 1 to 256"),
        ("m:\n  on:\n    1.5: 1.0", 3, "from 1 to 256"),
        ("m:\n  on:\n    -1: 1.0", 3, "from 1 to 256"),
        ("m:\n  on:\n    1_0: 1.0", 3, "from 1 to 256"),
        ("m:\n  on:\n    k: 1.0", 3, "from 1 to 256"),
        ("m:\n  on:\n    1: 1.9\n    2: 3.01", 4, "for 2 must be a number from 1 to 3"),
        ("m:\n  on:\n    1: 0.99", 3, "for 1 must be a number from 1 to 2"),
        ("m:\n  on:\n    1: .nan", 3, "for 1 must be"),
        ("m:\n  on:\n    1: .inf", 3, "for 1 must be"),
        ("m:\n  on:\n    1: 1e999", 3, "for 1 must be"),
        ("m:\n  on:\n    1: true", 3, "for 1 must be"),
        ("m:\n  on:\n    1: {1: 1.2}", 3, "for 1 must be"),
        ("m:\n  on:\n    1: 1.8\n    1: 1.9", 4, "1 is there twice"),
        ("m:\n  on:\n  - 1: 1.8\n  - 1: 1.9", 4, "1 is there twice"),
        ("m:\n  on: {1: 1.8}\n  on: {1: 1.9}", 3, "'on' is there twice"),
        ("m: {on: {1: 1.8}}\nm: {off: {1: 1.9}}", 2, "'m' is there twice"),
        ("m: &a {on: {1: 1.8}}\nn: *a", 1, "anchors"),
        ("m:\n  on: !!map {1: 1.8}", 2, "tags"),
        ("%YAML 1.1\n---\nm: {on: {1: 1.8}}", 1, "directives"),
        ("m:\n  on:\n    a: {b: {c: 1}}", 3, "nested more deeply"),
        ("a:\n " + "[" * 30_000, 2, "nested more deeply"),
    ],
)
def test_what_is_no_golden_file_is_refused_with_its_line(text: str, line: int, why: str):
    with pytest.raises(UserError) as refused:
        golden.parse(text, "some.yaml")
    assert str(refused.value).startswith(f"some.yaml, line {line}: ") and why in str(refused.value)


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_file_is_refused(text: str):
    with pytest.raises(UserError, match=r"^some\.yaml holds no curve"):
        golden.parse(text, "some.yaml")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    file = tmp_path / "large.yaml"
    file.write_text(TEXT + "#" * 128 * 1024)
    with pytest.raises(UserError, match="more than 128 KB"):
        golden.read(file)


@pytest.mark.parametrize("content", [b"m: \xff", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None):
    file = tmp_path / "some.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"some\.yaml can't be read as a golden file"):
        golden.read(file)


def test_a_file_is_written_and_read(tmp_path: Path):
    made = golden.parse(TEXT, "made.yaml")
    golden.write(made, tmp_path / "made.yaml")
    assert golden.read(tmp_path / "made.yaml") == made
    with pytest.raises(UserError, match="can't be written"):
        golden.write(made, tmp_path / "no" / "made.yaml")


def test_published_files_say_what_they_are_and_are_whole():
    files = {file.name: file for file in golden.published()}
    assert set(files) == {
        "deepseek-v4-pro-0813-dspark",
        "deepseek-v4-pro-mtp",
        "glm-5.2-mtp",
        "kimi-k2.5-eagle3",
        "kimi-k3-dspark",
        "kimi-k3-dspark-block",
        "minimax-m3-eagle3",
        "minimax-m3-eagle3-gqa",
        "qwen3.5-397b-mtp",
    }
    for file in files.values():
        assert file.source.startswith("https://github.com/SemiAnalysisAI/InferenceX/actions/runs/")
        assert file.provenance["licence"] == "Apache-2.0" and file.provenance["read"] == "2026-11"
        assert file.name.split("-")[-1].removesuffix("gqa").removesuffix("block") in (file.method, "")
        assert golden.parse(golden.render(file), f"{file.name}.yaml") == file
        for curve in file.curves:
            assert list(curve.lengths) == list(range(1, 9))
            survival = golden.implied_survival(curve)
            assert list(survival) == sorted(survival, reverse=True) and survival[-1] >= 0 and survival[0] <= 1


@pytest.mark.parametrize(
    ("file", "mode", "lengths"),
    [  # entered a second time, from the published files
        ("qwen3.5-397b-mtp", "thinking_on", (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21)),
        ("qwen3.5-397b-mtp", "thinking_off", (1.92, 2.70, 3.33, 3.83, 4.20, 4.48, 4.73, 4.71)),
        ("deepseek-v4-pro-mtp", "thinking_on", (1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58)),
        ("deepseek-v4-pro-mtp", "thinking_off", (1.92, 2.61, 2.97, 3.00, 3.10, 3.16, 3.00, 3.11)),
        ("deepseek-v4-pro-0813-dspark", "thinking_on", (1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47)),
        ("glm-5.2-mtp", "thinking_on", (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06)),
        ("kimi-k2.5-eagle3", "thinking_on", (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77)),
        ("kimi-k2.5-eagle3", "thinking_off", (1.80, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51)),
        ("kimi-k3-dspark", "thinking_on", (1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88)),
        ("kimi-k3-dspark-block", "thinking_on", (1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00)),
        ("minimax-m3-eagle3", "thinking_on", (1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74)),
        ("minimax-m3-eagle3", "thinking_off", (1.84, 2.52, 2.93, 3.41, 3.59, 3.57, 3.85, 4.06)),
        ("minimax-m3-eagle3-gqa", "thinking_on", (1.79, 2.39, 2.78, 3.02, 3.21, 3.30, 3.52, 3.51)),
        ("minimax-m3-eagle3-gqa", "thinking_off", (1.83, 2.46, 2.97, 3.29, 3.72, 3.76, 3.75, 3.93)),
    ],
)
def test_published_figures_are_those_of_their_source(file: str, mode: str, lengths: tuple[float, ...]):
    found = next(each for each in golden.published() if each.name == file)
    assert tuple(found.curve(mode).lengths.values()) == lengths
