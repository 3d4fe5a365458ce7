"""Values of index expressions at many points at once, and what follows for memory: strides, runs
and how much of a buffer a tile covers.  Imports `expr`, `ir` and numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
)
from tedsl.ir.nodes import Buffer, Load

Values: TypeAlias = "int | NDArray[np.int64]"
_SCATTER = 7919
"""What is read through an index from memory is taken to lie anywhere: this far apart."""


class Points:
    """Evaluates integer expressions where each variable has one value or one per point.

    An element that is read from memory stands for an arbitrary number that is another one wherever
    it is another element; a variable without a value is 0.
    """

    def __init__(self, env: Mapping[Expr, Values]) -> None:
        self.memo: dict[Expr, Values] = dict(env)

    def value(self, expr: Expr) -> Values:
        """The value of `expr` at each point."""
        known = self.memo.get(expr)
        if known is None:
            known = self.memo[expr] = self._compute(expr)
        return known

    def address(self, buffer_strides: Sequence[int], indices: Sequence[Expr]) -> Values:
        """The element of row-major memory that `indices` name."""
        total: Values = 0
        for stride, index in zip(buffer_strides, indices, strict=True):
            total = total + self.value(index) * stride
        return total

    def _compute(self, expr: Expr) -> Values:
        match expr:
            case Const(value=value):
                return int(value) if math.isfinite(value) else 0
            case Binary(op=op, a=a, b=b):
                return _binary(op, self.value(a), self.value(b))
            case Compare(op=op, a=a, b=b):
                return _compare(op, self.value(a), self.value(b))
            case Select(condition=c, a=a, b=b) | IfThenElse(condition=c, a=a, b=b):
                return np.where(self.value(c), self.value(a), self.value(b)).astype(np.int64)
            case Cast(a=a):
                return self.value(a)
            case Unary(op=op, a=a):
                return _unary(op, self.value(a))
            case Load(indices=indices):
                return sum((self.value(i) for i in indices), 0) * _SCATTER
            case _:
                return 0


def _binary(op: BinaryOp, a: Values, b: Values) -> Values:
    match op:
        case BinaryOp.ADD:
            return a + b
        case BinaryOp.SUB:
            return a - b
        case BinaryOp.MUL:
            return a * b
        case BinaryOp.FLOORDIV | BinaryOp.TRUNCDIV | BinaryOp.DIV:
            return a // (b if np.all(b) else 1)
        case BinaryOp.FLOORMOD | BinaryOp.TRUNCMOD:
            return a % (b if np.all(b) else 1)
        case BinaryOp.MIN:
            return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)
        case BinaryOp.MAX:
            return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)
        case BinaryOp.AND:
            return a & b
        case BinaryOp.OR:
            return a | b
        case BinaryOp.XOR:
            return a ^ b
        case BinaryOp.SHL:
            return a << b
        case BinaryOp.SHR:
            return a >> b
        case _:
            return a


_COMPARE = {
    CompareOp.EQ: np.equal,
    CompareOp.NE: np.not_equal,
    CompareOp.LT: np.less,
    CompareOp.LE: np.less_equal,
    CompareOp.GT: np.greater,
    CompareOp.GE: np.greater_equal,
}


def _compare(op: CompareOp, a: Values, b: Values) -> Values:
    found: Values = np.asarray(_COMPARE[op](a, b)).astype(np.int64)
    return found


def _unary(op: UnaryOp, a: Values) -> Values:
    if op is UnaryOp.NEG:
        return -a
    if op is UnaryOp.NOT:
        return 1 - a
    return abs(a)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements that a tile touches lie in memory.

    Attributes:
        elements: how many different ones there are.
        run: how many lie side by side, from the first on.
        align: the largest power of two of elements that all runs start at a multiple of.
        count, step: so many runs are `step` elements apart, along the next axis.
    """

    elements: int
    run: int
    align: int
    count: int = 1
    step: int = 0

    def sectors(self, itemsize: int, size: int = 32) -> int:
        """Sectors of `size` bytes that are moved."""
        runs = max(1, self.elements // max(self.run * self.count, 1))
        row = (self.count - 1) * self.step + self.run  # with what lies between its runs
        return runs * min(-(-row * itemsize // size), self.count * -(-self.run * itemsize // size))

    def vector(self, itemsize: int, most: int = 16) -> int:
        """Bytes that one thread may move at once."""
        return max(itemsize, math.gcd(self.align * itemsize, self.run * itemsize, most))


def layout(steps: Iterable[tuple[int, int]], base: int) -> Layout:
    """The layout of a tile that steps so far through memory, in elements, so often; from `base`."""
    steps = sorted((abs(step), extent) for step, extent in steps if step and extent > 1)
    run = span = elements = 1
    for stride, extent in steps:
        if stride == run and run == span:
            run *= extent
        wider = stride * (extent - 1) + span
        elements = elements * extent if stride >= span else min(elements * extent, wider)
        span = wider
    outer = [(stride, extent) for stride, extent in steps if stride >= run]
    align = math.gcd(base, *(stride for stride, _ in outer)) or 1 << 10
    step, count = outer[0] if outer else (0, 1)
    return Layout(elements, run, align & -align, count, step)


def row_major(buffer: Buffer, shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next, per dimension of `buffer`."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
