"""What a page shows, as plain data: the contract between Python, which collects it, and the page's
scripts, which show it.

Stages and lines are numbers: places in `Page.stages` and `Page.lines`, which hold each once.
Imports nothing of the package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, cast

FORMAT = 1
"""Changes when an older script could not read the data."""


@dataclass(frozen=True, slots=True)
class Mark:
    """`length` characters from `start` name a stage.  Of length 0: the whole line is for it."""

    start: int
    length: int
    stage: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and the stages in it, from left to right."""

    text: str
    marks: tuple[Mark, ...] = ()


Change = int | tuple[int, ...]
"""Part of a text, told by the text before it: n > 0, its next n lines stay; n < 0, its next -n
lines go; a tuple, these lines of the table come."""


class NodeKind(StrEnum):
    """What an operation is."""

    INPUT = "input"
    STATE = "state"
    COMPUTE = "compute"
    REDUCTION = "reduction"
    SCAN = "scan"
    EXTERN = "extern"


class PlaceKind(StrEnum):
    """Where a stage is computed: NONE for what is not, WITH in a nest or grid of another."""

    NONE = "none"
    KERNEL = "kernel"
    WITH = "with"
    AT = "at"
    INLINE = "inline"


@dataclass(frozen=True, slots=True)
class Node:
    """A stage at one moment.  `cluster` is the stage whose kernel it runs in, -1 for none."""

    stage: int
    kind: NodeKind
    type: str
    place: PlaceKind
    where: str
    cluster: int
    output: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """Who reads whom at one moment: `edges` are (producer, reader), both as places in `nodes`, and
    the bytes of the tensors where the reader's kernel has them from memory: at the first edge to
    that kernel, -1 where a call gives the sizes; 0 within a kernel and at others."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the trace; the first is `create_schedule`.

    `python` are lines; `nest` is the loop nest after it, told by that of the step before; `graph`
    is a place in `Page.graphs`; `site` is where it was called.
    """

    python: tuple[int, ...]
    stage: int
    site: str
    nest: tuple[Change, ...]
    graph: int


@dataclass(frozen=True, slots=True)
class Pass:
    """The loop IR after one pass, told by that after the pass before."""

    name: str
    what: str
    text: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Generated code: a title, how to colour it, and its lines."""

    title: str
    language: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Figures: a head, and rows of as many cells, of which the first is the row's name.  Columns
    that are `warned` of should hold 0."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    warned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A title, and text to be shown as it stands."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Point:
    """A program on the roofline: `seconds` are predicted, `stage` is the number of a kernel's, -1
    for the whole."""

    name: str
    stage: int
    flops: float
    nbytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """What a device can do at most by the model of it, bytes a second and operations a second of
    each of its units, and the program, its kernels, and the program without fusion."""

    device: str
    bandwidth: float
    peaks: tuple[tuple[str, float], ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class StageInfo:
    """A stage, whichever step made it: its name and, as it was last, its definition."""

    name: str
    definition: str


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor that iterations touch: the first place of what is drawn of it, row and column (all
    dimensions but the last are rows), how many squares that is, how many elements a square is, and
    for each iteration the squares, numbered along rows, as `start, length, start, length, ...`."""

    name: str
    written: bool
    first: tuple[int, int]
    squares: tuple[int, int]
    elements: tuple[int, int]
    touched: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """The first iterations of a stage: its loops, outermost first, with their extents and how they
    run, and the counters, at each iteration, of those that are not vectorized."""

    stage: int
    loops: tuple[tuple[str, int, str], ...]
    counters: tuple[tuple[int, ...], ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page.

    `refusal` says why there is no loop IR; `explanation` is what is told of the fusion, and is
    where further reports go; `roofline` is that of a kernel whose sizes are known; `walks` are of
    the last step.
    """

    title: str
    subject: str
    target: str
    version: str
    facts: tuple[tuple[str, str], ...]
    stages: tuple[StageInfo, ...]
    lines: tuple[Line, ...]
    graphs: tuple[Graph, ...]
    steps: tuple[Step, ...]
    passes: tuple[Pass, ...]
    refusal: str
    code: tuple[Code, ...]
    resources: Table | None
    explanation: tuple[Section, ...]
    roofline: Roofline | None
    walks: tuple[Walk, ...]
    format: int = FORMAT


def to_json(page: Page) -> str:
    """The page as JSON: dataclasses as objects, tuples as arrays; a line without marks as its text,
    one with marks as [text, start, length, stage, ...], a node and an edge as arrays."""
    return json.dumps(_plain(page), ensure_ascii=False, separators=(",", ":"))


def _plain(value: object) -> object:
    match value:
        case Line(text=text, marks=marks):
            flat = [part for mark in marks for part in (mark.start, mark.length, mark.stage)]
            return [text, *flat] if flat else text
        case Node():
            return [_plain(getattr(value, each.name)) for each in fields(value)]
        case tuple() | list():
            return [_plain(item) for item in cast("Sequence[object]", value)]
        case _ if is_dataclass(value):
            record: Any = value
            return {each.name: _plain(getattr(record, each.name)) for each in fields(record)}
        case _:
            return value
