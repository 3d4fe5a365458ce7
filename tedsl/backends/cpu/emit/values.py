"""Expressions to LLVM values at one point of a tile: scalars, or vectors over the SIMD axis.

An expression that does not depend on the SIMD axis is computed once as a scalar and splat where it
meets a vector. Values are remembered by the positions of the tile axes they depend on, so unrolled
points share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tedsl.backends.cpu.emit import arith
from tedsl.backends.cpu.emit.affine import Dependence, Poly, add, is_data, multiply
from tedsl.backends.cpu.emit.casts import convert
from tedsl.backends.cpu.emit.frame import Frame, Memo
from tedsl.backends.cpu.emit.llvm_text import I64, Function, Type, Value, const, const_vector
from tedsl.backends.cpu.emit.llvm_values import Num, splat
from tedsl.backends.cpu.emit.types import is_signed, register_type, rounded
from tedsl.dtypes import DType
from tedsl.errors import InternalError
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
    Var,
)
from tedsl.ir.nodes import Load

_NSW = {BinaryOp.ADD: "add nsw", BinaryOp.SUB: "sub nsw", BinaryOp.MUL: "mul nsw"}
_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)


@dataclass(frozen=True, slots=True)
class Pos:
    """Where a tile axis stands: `base` (an i64, or nothing) plus a constant."""

    base: Value | None
    offset: int

    @property
    def key(self) -> tuple[str, int]:
        """What tells positions apart."""
        return (self.base.text if self.base is not None else "", self.offset)

    def value(self, fn: Function) -> Value:
        """As an i64."""
        if self.base is None:
            return const(self.offset, I64)
        if not self.offset:
            return self.base
        return fn.op(f"add nsw i64 {self.base.text}, {self.offset}", I64)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The chunk of the SIMD axis being computed: `width` lanes of which the first `live` count."""

    axis: Axis
    width: int
    live: int

    def tail_mask(self) -> Value | None:
        """Which lanes count, when not all do."""
        if self.live == self.width:
            return None
        return const_vector([lane < self.live for lane in range(self.width)], "i1")


class Evaluator:
    """Computes expressions of one tile statement.  `at` and `lanes` are moved by the loops over the
    tile."""

    def __init__(self, frame: Frame, axes: Sequence[Axis]) -> None:
        self.frame = frame
        self.fn = frame.fn
        self.depends = Dependence(axes)
        self.at: dict[Axis, Pos] = {}
        self.lanes: Lanes | None = None
        self.memo = Memo()
        self.bound: dict[Expr, Value] = {}
        self.sum_flags = "contract"

    # --- keys and shapes

    def key(self, deps: frozenset[Axis]) -> tuple[object, ...]:
        """What identifies the current point, as far as the axes `deps` are concerned."""
        width = self.lanes.width if self.lanes is not None and self.lanes.axis in deps else 0
        return (width, *((id(a), *self.at[a].key) for a in self.at if a in deps))

    @property
    def width(self) -> int:
        """Lanes of a vector here; 0 when the statement runs on scalars."""
        return self.lanes.width if self.lanes is not None else 0

    def wide(self, value: Value) -> Value:
        """`value` in every lane."""
        return splat(self.fn, value, self.width)

    def meet(self, *values: Value) -> list[Value]:
        """All of them vectors when one is."""
        lanes = max(v.type.lanes for v in values)
        return [splat(self.fn, v, lanes) for v in values]

    def both(self, a: Value | None, b: Value | None) -> Value | None:
        """Where two masks hold; None holds everywhere."""
        if a is None or b is None:
            return b if a is None else a
        x, y = self.meet(a, b)
        return self.fn.op(f"and {x}, {y.text}", x.type)

    # --- values

    def eval(self, expr: Expr) -> Value:
        """The value of `expr` in its register type."""
        bound = self.bound.get(expr)
        if bound is not None:
            return bound
        if isinstance(expr, Const):
            return const(rounded(expr.value, expr.dtype), register_type(expr.dtype))
        key = (expr, *self.key(self.depends(expr)))
        known = self.memo.get(key) if not self.bound else None
        if known is None:
            known = self._compute(expr)
            if not self.bound:
                self.memo.put(key, known)
        return known

    def with_bound(self, bound: Mapping[Expr, Value], expr: Expr, flags: str) -> Value:
        """`expr` with variables standing for values, e.g. a reducer's combination."""
        self.bound, self.sum_flags = dict(bound), flags
        result = self.eval(expr)
        self.bound, self.sum_flags = {}, "contract"
        return result

    def _compute(self, expr: Expr) -> Value:
        match expr:
            case Axis() | Var():
                return self._variable(expr)
            case Unary(op=op, a=a):
                return arith.unary(self.fn, op, a.dtype, self.eval(a))
            case Binary(op=op, a=a, b=b):
                x, y = self.meet(self.eval(a), self.eval(b))
                return arith.binary(self.fn, op, a.dtype, x, y, self.sum_flags)
            case Compare(op=op, a=a, b=b):
                x, y = self.meet(self.eval(a), self.eval(b))
                return arith.compare(self.fn, op, a.dtype, x, y)
            case Select(condition=c, a=a, b=b) | IfThenElse(condition=c, a=a, b=b):
                x, y = self.meet(self.eval(a), self.eval(b))
                condition = self.eval(c)
                if condition.type.lanes:
                    x, y = (splat(self.fn, v, condition.type.lanes) for v in (x, y))
                return arith.select(self.fn, condition, x, y)
            case Cast(a=a, dtype=dtype):
                return convert(self.fn, self.eval(a), a.dtype, dtype)
            case Load():
                return self.load(expr)
            case _:
                raise InternalError(f"{type(expr).__name__} reached the CPU backend")

    def load(self, expr: Load) -> Value:
        """One element, or one per lane."""
        raise NotImplementedError

    def _variable(self, expr: Axis | Var) -> Value:
        """An axis or runtime scalar; the SIMD axis counts up from lane to lane."""
        to = register_type(expr.dtype)
        if not isinstance(expr, Axis) or expr not in self.at:
            value = self.frame.env.get(expr)
            if value is None:
                raise InternalError(f"{expr.name} is not defined where the CPU code uses it")
            return self._narrow(value, to)
        pos = self.at[expr]
        if self.lanes is None or self.lanes.axis is not expr:
            return self._narrow(pos.value(self.fn), to)
        width = self.lanes.width
        counting = const_vector([pos.offset + i for i in range(width)], to.elem)
        if pos.base is None:
            return counting
        start = splat(self.fn, self._narrow(pos.base, to), width)
        return self.fn.op(f"add nsw {start}, {counting.text}", start.type)

    def _narrow(self, value: Value, to: Type) -> Value:
        if value.type == to or value.type.is_float:
            return value
        if value.const is not None:
            return const(value.const, to)
        return self.fn.op(f"trunc {value} to {to}", to)

    # --- indices

    def index(self, expr: Expr) -> Value:
        """An integer expression as a scalar i64; it does not overflow, but for arithmetic over
        values in memory, which wraps.  Requires: equal in all lanes."""
        if isinstance(expr, Const):
            return const(int(expr.value), I64)
        key = ("index", expr, *self.key(self.depends(expr)))
        known = self.memo.get(key)
        return known if known is not None else self.memo.put(key, self._index(expr))

    def _index(self, expr: Expr) -> Value:
        match expr:
            case Axis() if expr in self.at:
                return self.at[expr].value(self.fn)
            case Axis() | Var() if expr in self.frame.env and expr.dtype.is_integer:
                return self.frame.env[expr]
            case Binary() if is_data(expr):
                return self.to_index(self.eval(expr), expr.dtype)
            case Binary(op=op, a=a, b=b) if op in _NSW:
                x, y = self.index(a), self.index(b)
                return self.fn.op(f"{_NSW[op]} i64 {x.text}, {y.text}", I64)
            case Binary(op=op, a=a, b=b) if op in _DIVISIONS:
                x, y = Num(self.fn, self.index(a)), Num(self.fn, self.index(b))
                return arith.divide(x, y, op, True).value
            case Binary(op=BinaryOp.MIN | BinaryOp.MAX as op, a=a, b=b):
                x, y = self.index(a), self.index(b)
                return arith.binary(self.fn, op, DType.int64, x, y)
            case _:
                return self.to_index(self.eval(expr), expr.dtype)

    def to_index(self, value: Value, dtype: DType) -> Value:
        """An integer value as i64, lane by lane."""
        if value.type.bits == 64:
            return value
        to = value.type.of("i64")
        return self.fn.op(f"{'sext' if is_signed(dtype) else 'zext'} {value} to {to}", to)

    def place_poly(self, poly: Poly) -> Poly:
        """`poly` with every tile axis replaced by its base (the axis itself) plus its constant."""
        result: Poly = {}
        for atoms, coefficient in poly.items():
            term: Poly = {(): coefficient}
            for atom in atoms:
                pos = self.at.get(atom) if isinstance(atom, Axis) else None
                value = self.frame.env.get(atom) if pos is None else None
                if value is not None and isinstance(value.const, int):  # of an unrolled loop
                    term = multiply(term, {(): value.const} if value.const else {})
                elif pos is None:
                    term = multiply(term, {(atom,): 1})
                else:
                    here: Poly = {(): pos.offset} if pos.offset else {}
                    term = multiply(term, here if pos.base is None else {**here, (atom,): 1})
            result = add(result, term)
        return result

    def base_of(self, atom: Expr) -> Value:
        """The scalar i64 an atom of a placed polynomial stands for."""
        if isinstance(atom, Axis) and atom in self.at:
            base = self.at[atom].base
            return base if base is not None else const(0, I64)
        return self.index(atom)
