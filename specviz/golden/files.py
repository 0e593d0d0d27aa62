"""Golden acceptance lengths as files: the YAML form of InferenceX, read strictly and written so that it reads the same.

    # comments that say where the figures come from
    model:
      thinking_on:
        1: 1.83
        2: 2.43

Also read: a flat list, `- 1: 1.83` and so on, in place of a model's modes, of a mode's lengths or of the whole file.
(SemiAnalysisAI/InferenceX, golden_al_distribution/, Apache-2.0.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import yaml

from specviz.errors import UserError
from specviz.golden.curves import Curve, Golden

SHIPPED = Path(__file__).resolve().parents[2] / "presets" / "golden"
LARGEST_FILE = 128 * 1024  # bytes; those that are published have about 1,000
LONGEST_DRAFT = 256  # no file's draft lengths go on beyond it
DEEPEST = 4  # levels of nesting that the form can have
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
_FOREIGN = (yaml.AnchorToken, yaml.AliasToken, yaml.TagToken, yaml.DirectiveToken)  # nothing a table of numbers needs


def read(path: Path) -> Golden:
    """Raises UserError with the line for a file that is not of the form, or can't be read."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as a golden file ({error}); give a YAML file in UTF-8.") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Golden:
    """Read a golden file's text; `name` is what errors call it. Raises UserError with the line."""
    if len(text.encode()) > LARGEST_FILE:
        raise UserError(f"{name} has more than {LARGEST_FILE // 1024} KB, which no golden file needs; give another.")
    try:
        comments = tuple(_comments(text, name))
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        _refuse(name, line, f"this is not YAML ({error.problem})")
    except yaml.reader.ReaderError as error:
        _refuse(name, text.count("\n", 0, error.position), "a character stands here that no YAML text may hold")
    if root is None:
        raise UserError(f"{name} holds no curve; give a model, a mode and its acceptance lengths.")
    return Golden(Path(name).stem, tuple(_curves(root, name)), comments)


def render(golden: Golden) -> str:
    """The file's text. All comments come first, those too that stood between or beside the figures."""
    lines = list(golden.comments)
    models: dict[str, list[Curve]] = {}
    for curve in golden.curves:
        models.setdefault(curve.model, []).append(curve)
    for model, curves in models.items():
        lines += [f"{_key(model)}:"] if model else []
        for curve in curves:
            indent = "  " * bool(model)
            lines += [f"{indent}{_key(curve.mode)}:"] if curve.mode else []
            start = f"{indent}  " if curve.mode else f"{indent}- "
            lines += [f"{start}{k}: {_value(length)}" for k, length in curve.lengths.items()]
    return "\n".join(lines) + "\n"


def write(golden: Golden, path: Path) -> None:
    """Raises UserError if the file can't be written."""
    try:
        path.write_text(render(golden), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} can't be written ({error.strerror}); give another place.") from error


def shipped(folder: Path = SHIPPED) -> list[Golden]:
    """What comes with specviz, by file name: public figures and our own. Each says in its comments which it is."""
    return [read(path) for path in sorted(folder.glob("*.yaml"))]


def published() -> list[Golden]:
    """The public figures that come with specviz."""
    return [golden for golden in shipped() if golden.status == "published"]


def _comments(text: str, name: str) -> Iterator[str]:
    """All comments, from the # on: what stands between the tokens. Refuses on the way what the form has no use for.

    Read token by token, so that what is nested too deeply is refused before anything is built of it.
    """
    depth = end = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        gap = text[end : token.start_mark.index]
        yield from (line[line.index("#") :].rstrip() for line in gap.splitlines() if "#" in line)
        end = max(end, token.end_mark.index)
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > DEEPEST:
            _refuse(name, token.start_mark.line, "this is nested more deeply than model, mode and lengths")
        if isinstance(token, _FOREIGN):
            _refuse(name, token.start_mark.line, "anchors, aliases, tags and directives have no place here")


def _curves(root: yaml.Node, name: str) -> Iterator[Curve]:
    if isinstance(root, yaml.SequenceNode):
        yield Curve("", "", _lengths(root, name))
        return
    for model, modes in _entries(root, name, "a model's name").items():
        if isinstance(modes, yaml.SequenceNode):
            yield Curve(model, "", _lengths(modes, name))
            continue
        for mode, lengths in _entries(modes, name, "a mode's name, such as thinking_on").items():
            yield Curve(model, mode, _lengths(lengths, name))


def _entries(node: yaml.Node, name: str, what: str) -> dict[str, yaml.Node]:
    """The values of a mapping whose keys are names."""
    if not isinstance(node, yaml.MappingNode):
        _refuse(name, node.start_mark.line, f"{what} with what belongs to it is wanted here")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        line = key.start_mark.line
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            _refuse(name, line, f"{what} is wanted here")
        if _NUMBER.fullmatch(key.value) and isinstance(value, yaml.ScalarNode):
            _refuse(name, line, f"an acceptance length stands where {what} is wanted")
        if key.value in found:
            _refuse(name, line, f"{key.value!r} is there twice")
        found[key.value] = value
    if not found:
        _refuse(name, node.start_mark.line, f"{what} is wanted here")
    return found


def _lengths(node: yaml.Node, name: str) -> dict[int, float]:
    """Acceptance lengths by draft length: a mapping, or a list of mappings."""
    parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
    found: dict[int, float] = {}
    for part in parts:
        if not isinstance(part, yaml.MappingNode):
            _refuse(name, part.start_mark.line, "draft lengths with their acceptance lengths are wanted, as `3: 2.88`")
        for key, value in part.value:
            k = _draft_length(key, name)
            if k in found:
                _refuse(name, key.start_mark.line, f"the draft length {k} is there twice")
            found[k] = _acceptance_length(value, k, name)
    if not found:
        _refuse(name, node.start_mark.line, "draft lengths with their acceptance lengths are wanted, as `3: 2.88`")
    return dict(sorted(found.items()))


def _draft_length(node: yaml.Node, name: str) -> int:
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= LONGEST_DRAFT:
        _refuse(name, node.start_mark.line, f"the draft length must be a whole number from 1 to {LONGEST_DRAFT}")
    return int(text)


def _acceptance_length(node: yaml.Node, k: int, name: str) -> float:
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    length = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 1 <= length <= k + 1:  # nor is it if it is not a number
        _refuse(name, node.start_mark.line, f"the acceptance length for {k} must be a number from 1 to {k + 1}")
    return length


def _refuse(name: str, line: int, why: str) -> NoReturn:
    """line: counted from 0."""
    raise UserError(f"{name}, line {line + 1}: {why}; correct the file.")


def _key(text: str) -> str:
    """The name as YAML reads it back as text, in quotes where it needs them."""
    is_plain = re.fullmatch(r"[A-Za-z][\w.+/-]*", text, re.ASCII) and isinstance(yaml.safe_load(text), str)
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _value(length: float) -> str:
    """With two decimals, as these figures are usually given, or with as many as it has."""
    return f"{length:.2f}" if length == round(length, 2) else repr(length)
