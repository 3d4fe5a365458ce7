"""Generated code as lines with the stages marked: Triton source, PTX, LLVM IR, assembly.

The code generators do not say what they wrote for which stage; their text does.  Triton source has
variables named after stages and a comment above what is for each, LLVM IR has the comments; PTX
says from which line of the source each instruction comes.  Assembly has the names of kernels only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

from tedsl.backends.cpu.emit.module import symbol
from tedsl.backends.triton.emit.names import sanitise
from tedsl.ir.nodes import Module
from tedsl.view.data import Line, Mark, Table

_WORD = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"_(?:\d+|acc\d*|base|before|desc|last|moved|next|part|tile|wide)$")
_SAYS = re.compile(r": | by ")
_LOCATION = re.compile(r"^\s*\.loc\s")
_FROM_SOURCE = re.compile(r"//\s*k[0-9a-f]{32}\.py:(\d+):")
_INLINED_AT = re.compile(r"inlined_at (\d+) (\d+) \d+")
_COMMENT = re.compile(r"  ; (.*)$")
_LABEL = re.compile(r"[a-z]+(\d+):$")
_NUMBERED = re.compile(r"[%a-z](\d+)(?=:| =)")
_SHOWN_IN_TABLE = (int, float, str, bool)
_SHOULD_BE_NONE = ("stack", "spills", "spilled")


def triton_lines(source: str, stages: Mapping[str, int]) -> list[Line]:
    """The lines of a Triton program.

    A line belongs to the buffer in the comment above it, down to the next one or to where its block
    ends; words that are made of a stage's name are marked.

    Args:
        source: what the backend generated.
        stages: the number of the stage that each name of a buffer stands for.
    """
    words: dict[str, int] = {}
    for name, number in stages.items():
        words.setdefault(sanitise(name), number)
    lines: list[Line] = []
    section, depth = -1, 0
    for text in source.splitlines():
        bare = text.lstrip()
        indent = len(text) - len(bare)
        if bare and indent < depth:
            section = -1
        if bare.startswith("# "):
            name = _SAYS.split(bare[2:])[0]
            section, depth = stages.get(name, -1), indent
            head = (Mark(indent + 2, len(name), section),) if section >= 0 else ()
            lines.append(Line(text, head))
            continue
        marks = [Mark(0, 0, section)] if section >= 0 and bare else []
        for found in _WORD.finditer(text):
            stage = _named(found[0], words)
            if stage is not None:
                marks.append(Mark(found.start(), len(found[0]), stage))
        lines.append(Line(text, tuple(marks)))
    return lines


def ptx_lines(asm: str, source: Sequence[Line]) -> Iterator[Line]:
    """The lines of PTX, each for the stages of the source line that its `.loc` names.

    Args:
        asm: the PTX of all kernels.
        source: what `triton_lines` made of the program.
    """
    owners: tuple[Mark, ...] = ()
    for text in asm.splitlines():
        if _LOCATION.match(text):
            line = _source_line(text)
            if line is not None:
                owners = _owners(source[line - 1]) if 0 < line <= len(source) else ()
        elif text.startswith((".visible", "}", ".func")):
            owners = ()
        bare = text.strip()
        yield Line(text, owners if bare and not bare.startswith(("//", "$", ".loc")) else ())


def llvm_lines(text: str, module: Module, stages: Mapping[str, int]) -> Iterator[Line]:
    """The lines of LLVM IR.

    A line belongs to the buffer in the comment above it, down to the next one, or to where a loop
    around both ends: names are numbered as they are made, so the labels of that loop have lower
    numbers than what was named before the comment.

    Args:
        text: what the backend generated.
        module: what it was generated from; its functions have the names of stages.
        stages: the number of the stage that each name of a buffer stands for.
    """
    highest, before, section = 0, 0, -1
    for line in native_lines(text, module, stages):
        comment, label = _COMMENT.match(line.text), _LABEL.match(line.text)
        if line.text.startswith(("define", "}")):
            highest, section = 0, -1
        elif comment is not None:
            section, before = stages.get(comment[1], -1), highest
            yield Line(line.text, (Mark(4, len(comment[1]), section),) if section >= 0 else ())
            continue
        elif label is not None and int(label[1]) <= before:
            section = -1
        highest = max((highest, *(int(found[1]) for found in _NUMBERED.finditer(line.text))))
        yield Line(line.text, (Mark(0, 0, section), *line.marks)) if section >= 0 else line


def native_lines(text: str, module: Module, stages: Mapping[str, int]) -> Iterator[Line]:
    """The lines of assembly: a kernel's function has the name of the stage whose loops it runs."""
    functions = {
        f"{symbol(func.name)}.{place}": stages[func.name]
        for place, func in enumerate(module.funcs)
        if func.name in stages
    }
    names = "|".join(map(re.escape, sorted(functions, key=len, reverse=True)))
    if not names:
        yield from map(Line, text.splitlines())
        return
    pattern = re.compile(rf"(?<![\w.])({names})(?![\w])")
    for line in text.splitlines():
        marks = (Mark(m.start(1), len(m[1]), functions[m[1]]) for m in pattern.finditer(line))
        yield Line(line, tuple(marks))


def resource_table(resources: Mapping[str, Any]) -> Table | None:
    """The figures of each kernel that a table can hold: numbers and short words, no code."""
    records: dict[str, dict[str, str]] = {}
    for name, value in resources.items():
        if is_dataclass(value):
            items = [(each.name, getattr(value, each.name)) for each in fields(value) if each.repr]
        else:
            items = [("value", value)]
        records[name] = {
            key: f"{item:,}" if isinstance(item, int) else str(item)
            for key, item in items
            if isinstance(item, _SHOWN_IN_TABLE) and item != name
        }
    columns = tuple(dict.fromkeys(chain.from_iterable(records.values())))
    if not columns:
        return None
    rows = ((name, *(record.get(key, "") for key in columns)) for name, record in records.items())
    warned = tuple(n for n, name in enumerate(columns, 1) if name in _SHOULD_BE_NONE)
    return Table(("kernel", *columns), tuple(rows), warned)


def _named(word: str, words: Mapping[str, int]) -> int | None:
    """The stage whose name a variable is made of."""
    while word not in words:
        shorter = _PART.sub("", word)
        if shorter == word:
            return None
        word = shorter
    return words[word]


def _source_line(loc: str) -> int | None:
    """The line of the program that a `.loc` is from, through what was inlined into it; None when
    it only tells of another file."""
    inlined = _INLINED_AT.search(loc)
    if inlined is not None:
        return int(inlined[2]) if inlined[1] == "1" else None
    found = _FROM_SOURCE.search(loc)
    return None if found is None else int(found[1])


def _owners(line: Line) -> tuple[Mark, ...]:
    """The stages of a whole source line: those of its section, else those it names."""
    whole = [mark.stage for mark in line.marks if mark.length == 0]
    stages = dict.fromkeys(whole or (mark.stage for mark in line.marks))
    return tuple(Mark(0, 0, stage) for stage in stages)
