"""The loops of PTX, by the ways that instructions can follow each other: the order of the text says
nothing, LLVM lays the end of a loop before its beginning and branches back to what is no loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_FLOW = re.compile(
    r"^[ \t]*(?:(?P<label>\$L__BB\w+):"
    r"|(?P<when>@!?%\w+\s+)?(?:bra(?:\.uni)?\s+(?P<to>\$L__BB\w+)|ret|exit|trap)(?:\.uni)?;"
    r"|(?P<function>(?:\.\w+\s+)*\.(?:entry|func)\b))",
    re.MULTILINE,
)
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop, by one way back.

    Attributes:
        back: where in the text its last block goes back: the start of the line of the branch, or
            the end of a block that the first one of the loop follows.
        last: the text of the last block.
        spans: the texts of all its blocks, in the order of the text.
    """

    back: int
    last: Span
    spans: tuple[Span, ...]


@dataclass(slots=True)
class _Block:
    """Instructions in a row: their text, and what may come next, with the place that goes there."""

    begin: int
    end: int = 0
    label: str = ""
    exits: list[tuple[str | int, int]] = field(default_factory=list[tuple[str | int, int]])


def loops(ptx: str) -> list[Loop]:
    """The natural loops of all functions of a text, one for each way back: a branch to a block
    that every way to the branch has come through.

    Source: A. V. Aho, M. S. Lam, R. Sethi, J. D. Ullman, Compilers, 2nd edition, 9.6.
    """
    blocks, firsts = _blocks(ptx)
    named = {block.label: number for number, block in enumerate(blocks) if block.label}
    nexts = [
        [(named[to] if isinstance(to, str) else to, at) for to, at in block.exits]
        for block in blocks
    ]
    before: list[list[int]] = [[] for _ in blocks]
    for number, exits in enumerate(nexts):
        for to, _ in exits:
            before[to].append(number)
    found: list[Loop] = []
    for first in firsts:
        for last, to, at in _ways_back(first, nexts):
            inside = {to}
            todo = [last]
            while todo:
                if (number := todo.pop()) not in inside:
                    inside.add(number)
                    todo += before[number]
            spans = tuple((blocks[n].begin, blocks[n].end) for n in sorted(inside))
            found.append(Loop(at, (blocks[last].begin, blocks[last].end), spans))
    return sorted(found, key=lambda loop: loop.back)


def _blocks(ptx: str) -> tuple[list[_Block], list[int]]:
    """The blocks in the order of the text, and the first of each function."""
    blocks, firsts = [_Block(0)], list[int]()
    follows = False

    def close(at: int, goes_on: bool) -> None:
        blocks[-1].end = at
        if goes_on:
            blocks[-1].exits.append((len(blocks), at))
        blocks.append(_Block(at))

    for flow in _FLOW.finditer(ptx):
        if flow["function"]:
            close(flow.start(), False)
            firsts.append(len(blocks) - 1)
            follows = True
        elif flow["label"]:
            close(flow.start(), follows)
            blocks[-1].label = flow["label"]
            follows = True
        else:
            if flow["to"]:
                blocks[-1].exits.append((flow["to"], flow.start()))
            follows = bool(flow["when"])
            close(flow.end(), follows)
    blocks[-1].end = len(ptx)
    return blocks, firsts


def _ways_back(first: int, nexts: list[list[tuple[int, int]]]) -> Iterator[tuple[int, int, int]]:
    """Block, block that is gone back to, and place of each edge to a block that a walk in depth
    is still inside of; in code made of loops and conditions, this block is the loop's only way
    in."""
    open_, done = {first}, set[int]()
    stack = [(first, iter(nexts[first]))]
    while stack:
        number, exits = stack[-1]
        for to, at in exits:
            if to in open_:
                yield number, to, at
            elif to not in done:
                open_.add(to)
                stack.append((to, iter(nexts[to])))
                break
        else:
            stack.pop()
            open_.discard(number)
            done.add(number)
