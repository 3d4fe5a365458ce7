"""How accurate each value of a kernel has to be, from the types of what the kernel stores.

A result that is rounded to 16 bits does not show the last bits of the float32 numbers it is made
of.  What error a value may have is found from the stores backwards, one rule for each operator, and
`values.Printer` asks it where a function has a cheaper form (the table in `math`):

    store or cast to bfloat16     a quarter of its rounding error, 2^-10 of the value
    x * c, x / y, max, select     the same share of x (and of an absolute error 1/c)
    x + y, sums                   the same share of the largest term; nothing relative to the sum
    exp(x)                        an absolute error of x: the share of the result that it becomes
    everything else               no error beyond that of float32

A value that is used twice has the smaller allowance of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Const, Expr, Select, Unary, UnaryOp
from tedsl.ir.nodes import Accumulate, Buffer, Dot, Func, Load, Scope, Stmt, Store
from tedsl.ir.visit import own_exprs, walk_stmts

# A quarter of the relative rounding error: 8 and 11 bits, implicit one included, and a sign.
_SHARES = {DType.bfloat16: 2.0**-10, DType.float16: 2.0**-13}
# A product of such a number with log2(e) does not overflow.
MODERATE = 1e38
# What sums of products of 16-bit numbers are taken to stay below.
SUMS = 1e36
# Sweeps over the statements.  Where allowances still change after twice as many (of a value that a
# loop scales, of which an exponential is taken), the whole kernel is exact.
SWEEPS = 8

_SUMS = (BinaryOp.ADD, BinaryOp.SUB)
_CHOICES = (BinaryOp.MIN, BinaryOp.MAX)
_SIGNED = (UnaryOp.NEG, UnaryOp.ABS)
_ROOTS = (UnaryOp.SQRT, UnaryOp.RSQRT)
_POWERS = (UnaryOp.EXP, UnaryOp.EXP2)
_AT_MOST_ONE = (UnaryOp.TANH, UnaryOp.SIGMOID, UnaryOp.ERF, UnaryOp.SIN, UnaryOp.COS)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What error a value may have; any one of three suffices.

    Attributes:
        direct: relative to the value, which becomes a result by products and choices alone.
        share: relative to the value, which may be a term of sums.
        absolute: an absolute error.
    """

    direct: float
    share: float
    absolute: float

    def meet(self, other: Allowance) -> Allowance:
        """The allowance of a value that is used in both ways."""
        return Allowance(
            min(self.direct, other.direct),
            min(self.share, other.share),
            min(self.absolute, other.absolute),
        )

    def covers(self, error: Allowance) -> bool:
        """True when a value may have one of the errors."""
        return (
            self.direct >= error.direct
            or self.share >= error.share
            or self.absolute >= error.absolute
        )

    def join(self, other: Allowance) -> Allowance:
        """The allowance of a value that is rounded anyhow."""
        return Allowance(
            max(self.direct, other.direct),
            max(self.share, other.share),
            max(self.absolute, other.absolute),
        )


EXACT = Allowance(0.0, 0.0, 0.0)
UNUSED = Allowance(math.inf, math.inf, math.inf)


def allowance_of(dtype: DType) -> Allowance:
    """What error does not show in a result of `dtype`."""
    share = _SHARES.get(dtype, 0.0)
    return Allowance(share, share, 0.0)


@dataclass(slots=True)
class Accuracy:
    """The allowances of a kernel's values, and how large its tiles may be."""

    allowances: dict[Expr, Allowance] = field(default_factory=dict[Expr, Allowance])
    limits: dict[Buffer, float] = field(default_factory=dict[Buffer, float])

    def of(self, expr: Expr) -> Allowance:
        """The allowance of an expression; of one that was not analysed, none."""
        return self.allowances.get(expr, EXACT)

    def is_moderate(self, expr: Expr) -> bool:
        """True when no element is beyond `MODERATE`, but for -inf: bounded functions, and sums of
        products of 16-bit numbers, which are taken to stay below `SUMS`."""
        return _limit(expr, self.limits) <= MODERATE


def analyse(func: Func) -> Accuracy:
    """The allowances of the values of one kernel at TILE level."""
    stmts = list(walk_stmts(func.body))
    locals_: dict[Buffer, Allowance] = {}
    for _ in range(2 * SWEEPS):
        walker = _Walker(dict(locals_), {})
        for stmt in reversed(stmts):
            walker.visit(stmt)
        if walker.locals == locals_:
            return Accuracy(walker.found, _limits(stmts))
        locals_ = walker.locals
    return Accuracy()


@dataclass(slots=True)
class _Walker:
    """One sweep over the statements: allowances of local buffers and of expressions."""

    locals: dict[Buffer, Allowance]
    found: dict[Expr, Allowance]

    def visit(self, stmt: Stmt) -> None:
        """Carry what the targets of a statement allow to its operands."""
        match stmt:
            case Store(buffer=buffer, indices=indices, value=value, mask=mask, call=None):
                self._exactly((*indices, *_given(mask)))
                self.carry(value, self._target(buffer))
            case Accumulate(buffers=(buffer,), values=(value,), reducer=reducer, call=None):
                self._exactly((*stmt.indices, *_given(stmt.mask)))
                allowed = self._target(buffer)
                if reducer.operator is BinaryOp.ADD:
                    allowed = Allowance(0.0, allowed.share, allowed.absolute)
                elif reducer.operator not in _CHOICES:
                    allowed = EXACT
                self.carry(value, allowed)
            case Dot(buffer=buffer, indices=indices, lhs=lhs, rhs=rhs):
                self._exactly(indices)
                allowed = Allowance(0.0, self._target(buffer).share, 0.0)
                self.carry(lhs, allowed)
                self.carry(rhs, allowed)
            case _:
                self._exactly(own_exprs(stmt))

    def _target(self, buffer: Buffer) -> Allowance:
        if buffer.scope is Scope.GLOBAL:
            return allowance_of(buffer.dtype)
        return self.locals.get(buffer, UNUSED).join(allowance_of(buffer.dtype))

    def _exactly(self, exprs: Iterable[Expr]) -> None:
        for expr in exprs:
            self.carry(expr, EXACT)

    def carry(self, expr: Expr, allowed: Allowance) -> None:
        """Note what `expr` is allowed, and its operands for that."""
        before = self.found.get(expr)
        now = allowed if before is None else before.meet(allowed)
        if before == now:
            return
        self.found[expr] = now
        if isinstance(expr, Load) and expr.buffer.scope is not Scope.GLOBAL:
            known = self.locals.get(expr.buffer, UNUSED)
            self.locals[expr.buffer] = known.meet(now)
        if not expr.dtype.is_float:
            now = EXACT
        for child, its in _operands(expr, now.join(allowance_of(expr.dtype))):
            self.carry(child, its)


def _operands(expr: Expr, now: Allowance) -> list[tuple[Expr, Allowance]]:
    """What the operands of an expression may be wrong by, when it is allowed `now`."""
    match expr:
        case Cast(a=a) if a.dtype.is_float and expr.dtype.is_float:
            return [(a, now)]
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            return [(a, _times(now, b)), (b, _times(now, a))]
        case Binary(op=BinaryOp.DIV, a=a, b=b):
            relative = Allowance(now.direct, now.share, 0.0)
            return [(a, relative), (b, relative)]
        case Binary(op=op, a=a, b=b) if op in _SUMS:
            return [(a, _plus(now, b)), (b, _plus(now, a))]
        case Binary(op=op, a=a, b=b) if op in _CHOICES:
            return [(a, now), (b, now)]
        case Select(condition=condition, a=a, b=b):
            return [(condition, EXACT), (a, now), (b, now)]
        case Unary(op=op, a=a) if op in _SIGNED:
            return [(a, now)]
        case Unary(op=op, a=a) if op in _ROOTS:
            return [(a, Allowance(now.direct, now.share, 0.0))]
        case Unary(op=op, a=a) if op in _POWERS:
            return [(a, Allowance(0.0, 0.0, now.share))]
        case _:
            return [(child, EXACT) for child in expr.children()]


def _times(now: Allowance, factor: Expr) -> Allowance:
    size = abs(float(factor.value)) if isinstance(factor, Const) else 0.0
    absolute = now.absolute / size if size else 0.0
    return Allowance(now.direct, now.share, absolute)


def _plus(now: Allowance, other: Expr) -> Allowance:
    size = abs(float(other.value)) if isinstance(other, Const) else 0.0
    known = now.share * size if math.isfinite(size) else 0.0
    return Allowance(0.0, now.share, max(now.absolute, known))


def _given(mask: Expr | None) -> tuple[Expr, ...]:
    return () if mask is None else (mask,)


def _limits(stmts: Sequence[Stmt]) -> dict[Buffer, float]:
    """How large the elements of tiles may be, -inf aside, where it is known."""
    written: dict[Buffer, list[Expr | None]] = {}
    for stmt in stmts:
        match stmt:
            case Store(buffer=buffer, value=value):
                written.setdefault(buffer, []).append(value)
            case Dot(buffer=buffer, lhs=lhs) if lhs.dtype.nbytes < 4:
                written.setdefault(buffer, []).append(Const(SUMS, buffer.dtype))
            case Dot(buffer=buffer):
                written.setdefault(buffer, []).append(None)
            case Accumulate(buffers=buffers):
                for buffer in buffers:
                    written.setdefault(buffer, []).append(None)
            case _:
                pass
    known: dict[Buffer, float] = {}
    for _ in range(SWEEPS):  # a tile that depends on itself stays unknown
        for buffer, values in written.items():
            sizes = [math.inf if v is None else _limit(v, known) for v in values]
            if buffer.scope is not Scope.GLOBAL:
                known[buffer] = max(sizes)
    return known


def _limit(expr: Expr, known: Mapping[Buffer, float]) -> float:
    """The largest magnitude of an expression's elements that are not -inf."""
    match expr:
        case Load(buffer=buffer):
            return known.get(buffer, math.inf)
        case Const(value=value):
            return 0.0 if value == -math.inf else abs(float(value))
        case Binary(op=BinaryOp.MUL, a=a, b=Const(value=scale)) if scale > 0:
            return _limit(a, known) * float(scale)
        case Binary(op=BinaryOp.MUL, a=Const(value=scale), b=b) if scale > 0:
            return _limit(b, known) * float(scale)
        case Select(a=a, b=b):
            return max(_limit(a, known), _limit(b, known))
        case Unary(op=op):
            return 1.0 if op in _AT_MOST_ONE else math.inf
        case _:
            return math.inf
