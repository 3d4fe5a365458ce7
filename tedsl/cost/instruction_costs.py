"""How many instructions a statement takes: what each node costs, over the tile axes it depends on.

The costs are instructions an element as the backends generate them: on NVIDIA GPUs (the table
stands in `tedsl.backends.triton.math.functions`; what a rarely taken branch holds does not count),
and vector instructions on a CPU, where functions are polynomials.  Imports `expr` and `ir`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
)
from tedsl.expr.visit import axes_of, walk
from tedsl.ir.nodes import Accumulate, Dot, Load, Scope, Store, TileAxis
from tedsl.ir.visit import tile_axes

_SPECIAL: Mapping[UnaryOp, tuple[float, float]] = {
    UnaryOp.EXP: (4, 1),
    UnaryOp.EXP2: (1, 1),
    UnaryOp.SQRT: (1, 1),
    UnaryOp.RSQRT: (1, 1),
    UnaryOp.SIGMOID: (11, 2),
    UnaryOp.LOG: (26, 0),
    UnaryOp.LOG2: (26, 0),
    UnaryOp.LOG10: (28, 0),
    UnaryOp.LOG1P: (28, 0),
    UnaryOp.EXPM1: (12, 1),
    UnaryOp.TANH: (21, 1),
    UnaryOp.ERF: (30, 0),
    UnaryOp.SIN: (28, 0),
    UnaryOp.COS: (28, 0),
    UnaryOp.TAN: (80, 0),
}
"""Instructions, and how many of them the special function units carry out."""
_FUNCTIONS = (40.0, 1.0)
_ON_CPU: Mapping[UnaryOp, float] = {
    UnaryOp.EXP: 20,
    UnaryOp.EXP2: 18,
    UnaryOp.SQRT: 20,
    UnaryOp.RSQRT: 30,
    UnaryOp.SIGMOID: 45,
    UnaryOp.TANH: 45,
    UnaryOp.LOG: 26,
    UnaryOp.LOG2: 26,
}
_DIVIDED = 20.0
"""Slots of a CPU that a vector division takes."""
_DIVIDED_INDEX = 2.0
"""Of a GPU for the division of an index by a constant: the upper half of a product, and a shift."""
_CHEAP = frozenset(
    (
        UnaryOp.NEG,
        UnaryOp.NOT,
        UnaryOp.ABS,
        UnaryOp.SIGN,
        UnaryOp.FLOOR,
        UnaryOp.CEIL,
        UnaryOp.ROUND,
        UnaryOp.TRUNC,
        UnaryOp.ISNAN,
        UnaryOp.ISINF,
        UnaryOp.ISFINITE,
        UnaryOp.POPCOUNT,
        UnaryOp.BITS,
    )
)
_DIVISIONS = frozenset((BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD))


@dataclass(slots=True)
class Combining:
    """Instructions that combining each element of a tile once takes (see `Operations`)."""

    plain: float = 0.0
    special: float = 0.0
    wide: float = 0.0


@dataclass(slots=True)
class Operations:
    """What one run of a statement takes, in elements: each node counts the points it depends on.

    `plain` are instructions of the ordinary units, `special` of the special function units, `wide`
    those on 64-bit floats; `flops` are operations on floats; `values` the elements of each value
    that is computed or loaded, for registers; `combining` is what combining each element once takes
    of all that.
    """

    plain: float = 0.0
    special: float = 0.0
    wide: float = 0.0
    flops: float = 0.0
    loads: list[tuple[Load, int]] = field(default_factory=list[tuple[Load, int]])
    values: list[tuple[int, DType]] = field(default_factory=list[tuple[int, DType]])
    folded: int = 0
    results: int = 1
    combining: Combining = field(default_factory=Combining)


def operations(
    stmt: Store | Accumulate | Dot, exprs: Sequence[Expr], least: int = 1, *, cpu: bool = False
) -> Operations:
    """Count the nodes below `exprs`, which stand in `stmt`.

    Args:
        stmt: whose tile the nodes are over.
        exprs: values and masks, not indices.
        least: points that a value counts at least, such as one for each thread.
        cpu: count vector instructions of a CPU.
    """
    found = Operations()
    axes = tile_axes(stmt)
    counter = _Counter(axes, found, least, cpu)
    for expr in exprs:
        counter.visit(expr)
    if isinstance(stmt, Accumulate):
        points = math.prod(t.extent for t in axes)
        combine = [node for node in walk(*stmt.reducer.combine) if not _is_leaf(node)]
        once = found.combining
        for node in combine:
            plain, special = (_cpu_cost(node), 0.0) if cpu else _cost(node)
            _add(once, node.dtype, plain * max(points, least), special * max(points, least))
        found.plain += once.plain
        found.special += once.special
        found.wide += once.wide
        flops = stmt.reducer.combine[0].dtype.is_float
        found.flops += len(combine) * points if flops else 0
        kept = 0
        for index in stmt.indices:
            kept |= counter.mask(index)
        found.results = counter.size(kept)
        found.folded = points // max(found.results, 1)
    return found


def is_division(node: Expr) -> bool:
    """True of an integer division, and of what it leaves."""
    return isinstance(node, Binary) and node.op in _DIVISIONS


def divisions(
    indices: Sequence[Expr],
    axes: Sequence[TileAxis],
    along: int,
    turns: Sequence[Axis],
    seen: set[Expr],
    lanes: int,
) -> float:
    """Instructions of one run of an access for the divisions in its indices; those that stay the
    same in each turn of the loops `turns` are computed before them.

    Args:
        indices: of the access.
        axes: of its tile.
        along: the axis along which so many `lanes` of a warp have neighbours, as a number of axes
            from outside: each of them computes what depends on other axes alone.
        turns: the axes of the loops that run it.
        seen: divisions of the statement that were counted before; those of this access are added.
        lanes: how many those are.
    """
    count = 0.0
    for node in walk(*indices):
        if not is_division(node) or node in seen:
            continue
        seen.add(node)
        used = axes_of(node)
        own = [n for n, t in enumerate(axes) if t.axis in used]
        if own and (not turns or not used.isdisjoint(turns)):
            points = math.prod(axes[n].extent for n in own)
            again = lanes if along >= 0 and along not in own else 1
            count += _DIVIDED_INDEX * points * again
    return count


def flops_of(stmt: Store | Accumulate | Dot) -> float:
    """Operations on floats of one run of a statement; a product and its sum are two."""
    match stmt:
        case Dot():
            points = math.prod(t.extent for t in tile_axes(stmt))
            return operations(stmt, (stmt.lhs, stmt.rhs)).flops + 2.0 * points
        case Store():
            masks = () if stmt.mask is None else (stmt.mask,)
            return operations(stmt, (stmt.value, *masks)).flops
        case Accumulate():
            masks = () if stmt.mask is None else (stmt.mask,)
            return operations(stmt, (*stmt.values, *masks)).flops


class _Counter:
    """Visits each node once; a set of tile axes is the bits of a number."""

    def __init__(self, axes: Sequence[TileAxis], found: Operations, least: int, cpu: bool) -> None:
        self.bits: dict[Expr, int] = {t.axis: 1 << n for n, t in enumerate(axes)}
        self.extents = [t.extent for t in axes]
        self.found = found
        self.least = least
        self.cpu = cpu
        self.known: dict[Expr, int] = {}
        self.sizes: dict[int, int] = {}
        self.seen: set[Expr] = set()

    def size(self, bits: int) -> int:
        """Points of the axes."""
        known = self.sizes.get(bits)
        if known is None:
            known = math.prod(e for n, e in enumerate(self.extents) if bits >> n & 1)
            self.sizes[bits] = known
        return known

    def mask(self, expr: Expr) -> int:
        """The tile axes that `expr` depends on."""
        known = self.known.get(expr)
        if known is None:
            known = self.bits.get(expr, 0)
            for child in expr.children():
                known |= self.mask(child)
            self.known[expr] = known
        return known

    def visit(self, root: Expr) -> None:
        """Count the nodes of a value that no value before had: a mask of a load is that of its
        statement."""
        stack = [root]
        while stack:
            node = stack.pop()
            if node in self.seen or _is_leaf(node):
                continue
            self.seen.add(node)
            size = self.size(self.mask(node))
            if isinstance(node, Load):
                self.found.loads.append((node, size))
                if node.buffer.scope is Scope.GLOBAL:
                    self.found.values.append((size, node.dtype))
                if node.mask is not None:
                    stack.append(node.mask)
                continue
            self._count(node, size)
            stack.extend(node.children())

    def _count(self, node: Expr, size: int) -> None:
        plain, special = (_cpu_cost(node), 0.0) if self.cpu else _cost(node)
        points = max(size, self.least)
        _add(self.found, node.dtype, plain * points, special * points)
        if node.dtype.is_float and not isinstance(node, Cast):
            self.found.flops += size


def _add(found: Operations | Combining, dtype: DType, plain: float, special: float) -> None:
    if dtype is DType.float64:
        found.wide += plain + 8 * special
    else:
        found.plain += plain
        found.special += special


def _is_leaf(node: Expr) -> bool:
    return isinstance(node, Const) or not (isinstance(node, Load) or node.children())


def _cpu_cost(node: Expr) -> float:
    """Slots that one vector takes."""
    match node:
        case Unary(op=op) if op not in _CHEAP:
            return _ON_CPU.get(op, 50.0)
        case Binary(op=BinaryOp.DIV):
            return _DIVIDED
        case Binary(op=op) if op in _DIVISIONS:
            return 4.0
        case Cast(a=a) if node.dtype.bits == a.dtype.bits:
            return 0.0
        case _:
            return 1.0


def _cost(node: Expr) -> tuple[float, float]:
    """(ordinary, special) instructions of one element."""
    match node:
        case Unary(op=op, a=a):
            if op in _CHEAP:
                return 1.0, 0.0
            plain, special = _SPECIAL.get(op, _FUNCTIONS)
            return plain + (1.0 if a.dtype.nbytes < 4 else 0.0), special
        case Binary(op=op, b=b):
            return _binary(op, b, node.dtype)
        case Compare() | Select() | IfThenElse():
            return 1.0, 0.0
        case Cast(a=a):
            return (0.5 if node.dtype.nbytes < a.dtype.nbytes else 1.0), 0.0
        case _:
            return 1.0, 0.0


def _binary(op: BinaryOp, b: Expr, dtype: DType) -> tuple[float, float]:
    if op is BinaryOp.DIV:
        return 8.0, 1.0
    if op in _DIVISIONS:
        power = isinstance(b, Const) and int(b.value) > 0 and not int(b.value) & int(b.value) - 1
        return (2.0 if power else 12.0), 0.0
    if op in (BinaryOp.POW, BinaryOp.ATAN2):
        return 50.0, 2.0
    narrow = dtype.is_float and dtype.nbytes < 4
    return (1.5 if narrow else 1.0), 0.0
