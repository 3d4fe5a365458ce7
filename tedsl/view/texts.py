"""Texts of a page: each line once, each text told by the one before it, and the stages marked.

Loop IR is marked by the printer itself, through a namer that brackets what it names.  Other texts
are marked by their grammar: what follows a name in them tells a stage from a loop of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from tedsl.expr.nodes import Axis, Var
from tedsl.ir.nodes import Buffer
from tedsl.ir.printer import Namer
from tedsl.scheduling.plan import Plan
from tedsl.tensor.tensor import Operation
from tedsl.view.data import Change, Line, Mark

_OPEN, _MIDDLE, _CLOSE = "\x02", "\x1f", "\x03"  # of no printed name
_BRACKETS = re.compile(f"{_OPEN}(\\d+){_MIDDLE}([^{_CLOSE}]*){_CLOSE}")
_PLACE = re.compile(r"_(?:acc\d*|before|last|moved|next|wide)$")
_QUOTED = re.compile(r's\[("(?:[^"\\]|\\.)*")\]')
_COMPARED = 4000
"""Texts that differ in more lines are not compared line by line: the old one goes."""


class Lines:
    """The table of lines.  A line with the same text and the same marks is there once."""

    def __init__(self) -> None:
        self._places: dict[Line, int] = {}

    def place(self, line: Line) -> int:
        """The place of the line."""
        return self._places.setdefault(line, len(self._places))

    def places(self, lines: Iterable[Line]) -> tuple[int, ...]:
        """The places of lines that follow each other."""
        return tuple(map(self.place, lines))

    def table(self) -> tuple[Line, ...]:
        """All of them, in order."""
        return tuple(self._places)


class Stages:
    """The numbers of stages by name, in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of the stage called `name`."""
        return self.numbers.setdefault(name, len(self.numbers))


class Buffers(Mapping[str, int]):
    """The stage that each name of a buffer stands for: the stage's own name, that of one of its
    results (`C_1`), or that of a place that a pass keeps beside either (`C_acc_wide`)."""

    def __init__(self, plan: Plan, stages: Stages) -> None:
        self._known = {stage.name: stages.number(stage.name) for stage in plan.stages}
        for stage in plan.stages:
            count = len(stage.op.outputs)
            for result in range(count if count > 1 else 0):
                self._known.setdefault(f"{stage.name}_{result}", self._known[stage.name])

    def __getitem__(self, name: str) -> int:
        while name not in self._known:
            shorter = _PLACE.sub("", name)
            if shorter == name:
                raise KeyError(name)
            name = shorter
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Told:
    """A sequence of texts, each told by the one before it."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._last: tuple[int, ...] = ()

    def tell(self, text: Iterable[Line]) -> tuple[Change, ...]:
        """How to get from the last text to this one."""
        before, self._last = self._last, self._lines.places(text)
        return tuple(changes(before, self._last))


def changes(old: Sequence[int], new: Sequence[int]) -> Iterator[Change]:
    """The parts of `new`, told by `old`: first what goes, then what comes in its place."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    if head:
        yield head
    if max(len(a), len(b)) > _COMPARED:
        codes = [("replace", 0, len(a), 0, len(b))]
    else:
        codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes() if a or b else []
    for kind, a0, a1, b0, b1 in codes:
        if kind == "equal":
            yield a1 - a0
            continue
        if a1 > a0:
            yield a0 - a1
        if b1 > b0:
            yield tuple(b[b0:b1])
    if tail:
        yield tail


class MarkingNamer(Namer):
    """Names buffers of known stages so that `bracketed` finds them in the text.

    `stages` has the number of the stage that each name of a buffer stands for.
    """

    def __init__(self, stages: Mapping[str, int], outer: Namer | None = None) -> None:
        super().__init__(outer)
        self._stages = stages

    def inner(self) -> Namer:
        """A namer that also brackets."""
        return MarkingNamer(self._stages, self)

    def name(self, thing: Axis | Var | Operation | Buffer) -> str:
        """The name, in brackets where it is that of a stage."""
        text = super().name(thing)
        stage = self._stages.get(thing.name) if isinstance(thing, Buffer) else None
        return text if stage is None else f"{_OPEN}{stage}{_MIDDLE}{text}{_CLOSE}"


def bracketed(text: str) -> Iterator[Line]:
    """The lines of a text that a `MarkingNamer` took part in, brackets turned into marks."""
    for raw in text.splitlines():
        plain: list[str] = []
        marks: list[Mark] = []
        at = last = 0
        for found in _BRACKETS.finditer(raw):
            between, name = raw[last : found.start()], found[2]
            at += len(between)
            marks.append(Mark(at, len(name), int(found[1])))
            plain += [between, name]
            at, last = at + len(name), found.end()
        yield Line("".join([*plain, raw[last:]]), tuple(marks))


def nest_lines(text: str, stages: Mapping[str, int]) -> Iterator[Line]:
    """The lines of a printed plan.

    A stage is followed by `[`, by `: ` or by ` is inlined`; where a line lists stages (an extern's
    inputs, the rows of a scan) every word is one.
    """
    names = _alternatives(stages)
    word = rf"(?<![\w.])({names})(?![\w]|\.\w)"
    either = re.compile(rf"(?<![\w.])({names})(?=(?:\.v\d+)?\[|: | is inlined)")
    listed = re.compile(word)
    for line in text.splitlines():
        lists = line.startswith("extern ") or ": rows of " in line
        yield _marked(line, listed if lists else either, stages)


def python_line(text: str, stages: Mapping[str, int]) -> Line:
    """A line of `as_python`: every `s["C"]` is a stage."""
    marks: list[Mark] = []
    for found in _QUOTED.finditer(text):
        name = re.sub(r"\\(.)", r"\1", found[1][1:-1])
        if name in stages:
            marks.append(Mark(found.start(1), len(found[1]), stages[name]))
    return Line(text, tuple(marks))


def _marked(line: str, pattern: re.Pattern[str], stages: Mapping[str, int]) -> Line:
    found = pattern.finditer(line) if stages else ()
    return Line(line, tuple(Mark(m.start(1), len(m[1]), stages[m[1]]) for m in found))


def _alternatives(names: Iterable[str]) -> str:
    """A pattern for any of the names, the longest first."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
