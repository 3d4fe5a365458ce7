"""Scalar expression nodes: what one element of a tensor is made of.

First room of the pipeline; imports only `dtypes` and `errors`.  Nodes are frozen, compare by
identity (`==` builds a comparison, `bool()` raises) and keep what they are given: the raw
constructors never simplify, promote or check ranges.  Users reach them through operators and
`expr.build`; integer reasoning about them lives in `index/`.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from tedsl.dtypes import SAME_BITS, DType
from tedsl.errors import ExprError
from tedsl.slips import NoValues, also, suggests

if TYPE_CHECKING:
    from tedsl.expr.promote import DTypeLike, Number
    from tedsl.tensor.tensor import Tensor


class BinaryOp(StrEnum):
    """Operators of two operands of one dtype.  `DIV` is for floats, `FLOORDIV`/`FLOORMOD` round to
    minus infinity, `TRUNCDIV`/`TRUNCMOD` to zero (C).  `AND`, `OR`, `XOR` are bitwise, and logical
    on bool.  `MIN` and `MAX` return NaN when either operand is NaN (as numpy's minimum and
    maximum)."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    FLOORDIV = "//"
    FLOORMOD = "%"
    TRUNCDIV = "truncdiv"
    TRUNCMOD = "truncmod"
    MIN = "min"
    MAX = "max"
    POW = "pow"
    ATAN2 = "atan2"
    AND = "&"
    OR = "|"
    XOR = "^"
    SHL = "<<"
    SHR = ">>"


class CompareOp(StrEnum):
    """Comparisons; the result is bool, and false (true for `NE`) when an operand is NaN."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class UnaryOp(StrEnum):
    """Functions of one operand; the result has its dtype, or bool for `ISNAN`, `ISINF`, `ISFINITE`.

    Transcendental functions take floats only.  `ROUND` rounds halves to even.  `NOT` is bitwise,
    and logical on bool.  `BITS` reads a float's bits as an integer, and the other way round.
    """

    NEG = "neg"
    NOT = "not"
    ABS = "abs"
    SIGN = "sign"
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    SINH = "sinh"
    COSH = "cosh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"
    TRUNC = "trunc"
    ISNAN = "isnan"
    ISINF = "isinf"
    ISFINITE = "isfinite"
    POPCOUNT = "popcount"
    BITS = "bits"


PREDICATES = frozenset({UnaryOp.ISNAN, UnaryOp.ISINF, UnaryOp.ISFINITE})
_OF_TVM = {"producer": "tensor", "true_value": "a", "false_value": "b"}
_FOLDS_OF_TVM = {"axis": "axes", "source": "sources", "combiner": "reducer", "condition": "where"}


@suggests(ExprError, owner="an expression", alias=_OF_TVM)
class Expr(NoValues):
    """Base of scalar expressions.  Every node has a `dtype`; `children` and `rebuild` carry all
    traversals.

    Operators build nodes through `expr.build`, which promotes and checks.  `==` builds a
    comparison, so compare structure with `structural_equal` and identity with `is`.
    """

    __slots__ = ()
    __hash__: ClassVar = object.__hash__  # identity: shared subtrees memoise
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        """The sub-expressions, in a fixed order."""
        raise NotImplementedError

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        """The same node over other sub-expressions (as many, in the order of `children`)."""
        raise NotImplementedError

    def astype(self, dtype: DTypeLike) -> Expr:
        """This value, rounded to `dtype` also within a sum taken in a wider type; see `Cast`."""
        return build.rounded(self, dtype)

    def equal(self, other: Number | Expr) -> Expr:
        """`self == other`, under the name that TVM has for it."""
        return build.eq(self, other)

    def __index__(self) -> int:
        """The int that a constant is: `range(A.shape[0])`; an ExprError, a TypeError, elsewhere."""
        raise also(ExprError, TypeError)(
            f"{self!r} has no value while the computation is being defined",
            hint="only constants have one; write te.exp for math.exp, te.cast for float()",
        )

    def __bool__(self) -> bool:
        decided = build.decided(self)
        if decided is not None:
            return decided
        raise ExprError(
            "an expression has no truth value while it is being built",
            hint="use te.if_then_else or te.select; for `and` te.all, for `or` te.any, for max() "
            "te.maximum; compare structure with te.structural_equal, objects with `is`",
        )

    def __repr__(self) -> str:
        text: str = importlib.import_module("tedsl.expr.printer").print_expr(self)
        return text

    def __add__(self, other: Number | Expr) -> Expr:
        return build.add(self, other) if build.is_scalar(other) else build.other_of(other)

    def __radd__(self, other: Number | Expr) -> Expr:
        return build.add(other, self) if build.is_scalar(other) else build.other_of(other)

    def __sub__(self, other: Number | Expr) -> Expr:
        return build.sub(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rsub__(self, other: Number | Expr) -> Expr:
        return build.sub(other, self) if build.is_scalar(other) else build.other_of(other)

    def __mul__(self, other: Number | Expr) -> Expr:
        return build.mul(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rmul__(self, other: Number | Expr) -> Expr:
        return build.mul(other, self) if build.is_scalar(other) else build.other_of(other)

    def __truediv__(self, other: Number | Expr) -> Expr:
        return build.div(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rtruediv__(self, other: Number | Expr) -> Expr:
        return build.div(other, self) if build.is_scalar(other) else build.other_of(other)

    def __floordiv__(self, other: Number | Expr) -> Expr:
        return build.floordiv(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rfloordiv__(self, other: Number | Expr) -> Expr:
        return build.floordiv(other, self) if build.is_scalar(other) else build.other_of(other)

    def __mod__(self, other: Number | Expr) -> Expr:
        return build.floormod(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rmod__(self, other: Number | Expr) -> Expr:
        return build.floormod(other, self) if build.is_scalar(other) else build.other_of(other)

    def __pow__(self, other: Number | Expr, modulo: Number | Expr | None = None) -> Expr:
        if modulo is not None:
            return build.power(self, other) % modulo
        return build.power(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rpow__(self, other: Number | Expr) -> Expr:
        return build.power(other, self) if build.is_scalar(other) else build.other_of(other)

    def __and__(self, other: Number | Expr) -> Expr:
        return build.bitwise_and(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rand__(self, other: Number | Expr) -> Expr:
        return build.bitwise_and(other, self) if build.is_scalar(other) else build.other_of(other)

    def __or__(self, other: Number | Expr) -> Expr:
        return build.bitwise_or(self, other) if build.is_scalar(other) else build.other_of(other)

    def __ror__(self, other: Number | Expr) -> Expr:
        return build.bitwise_or(other, self) if build.is_scalar(other) else build.other_of(other)

    def __xor__(self, other: Number | Expr) -> Expr:
        return build.bitwise_xor(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rxor__(self, other: Number | Expr) -> Expr:
        return build.bitwise_xor(other, self) if build.is_scalar(other) else build.other_of(other)

    def __lshift__(self, other: Number | Expr) -> Expr:
        return build.left_shift(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rlshift__(self, other: Number | Expr) -> Expr:
        return build.left_shift(other, self) if build.is_scalar(other) else build.other_of(other)

    def __rshift__(self, other: Number | Expr) -> Expr:
        return build.right_shift(self, other) if build.is_scalar(other) else build.other_of(other)

    def __rrshift__(self, other: Number | Expr) -> Expr:
        return build.right_shift(other, self) if build.is_scalar(other) else build.other_of(other)

    def __lt__(self, other: Number | Expr) -> Expr:
        return build.lt(self, other) if build.is_scalar(other) else build.other_of(other)

    def __le__(self, other: Number | Expr) -> Expr:
        return build.le(self, other) if build.is_scalar(other) else build.other_of(other)

    def __gt__(self, other: Number | Expr) -> Expr:
        return build.gt(self, other) if build.is_scalar(other) else build.other_of(other)

    def __ge__(self, other: Number | Expr) -> Expr:
        return build.ge(self, other) if build.is_scalar(other) else build.other_of(other)

    def __eq__(self, other: object) -> Any:
        return build.eq(self, other) if build.is_scalar(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return build.ne(self, other) if build.is_scalar(other) else NotImplemented

    def __neg__(self) -> Expr:
        return build.neg(self)

    def __invert__(self) -> Expr:
        return build.invert(self)

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        return build.unary(UnaryOp.ABS, self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Const(Expr):
    """A literal.  Requires: `value` is a Python bool, int or float that fits `dtype`."""

    value: bool | int | float
    dtype: DType

    def __index__(self) -> int:
        if self.dtype.is_integer:
            return int(self.value)
        return Expr.__index__(self)

    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Var(Expr):
    """A runtime scalar: a size, or a number given at the call; at least `lower` (sizes: 0)."""

    name: str
    dtype: DType = DType.int32
    lower: int | None = None

    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return self


class AxisKind(StrEnum):
    """What an iteration variable may do: `DATA` in any order, `REDUCE` in any order but into one
    result, `ORDERED` (the steps of a scan) only one after the other."""

    DATA = "data"
    REDUCE = "reduce"
    ORDERED = "ordered"


@suggests(ExprError, {"stop": "it is .min + .extent", "start": "it is .min"}, "a range")
@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """The half-open integer range `min .. min + extent`.  Requires: integer expressions."""

    min: Expr
    extent: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Axis(Expr):
    """An iteration variable: an object, never a name.
    `domain` is set for axes of a definition (root axes) and None for axes that a schedule makes.
    Where the range depends on other axes it holds all of them; what counts is `begin .. end`.
    """

    name: str
    kind: AxisKind = AxisKind.DATA
    domain: Range | None = None
    dtype: DType = DType.int32
    begin: Expr | None = None
    end: Expr | None = None

    @property
    def var(self) -> Axis:
        """The axis itself; TVM code writes `k.var` where an axis is used as a value."""
        return self

    @property
    def dom(self) -> Range | None:
        """TVM's name for `domain`."""
        return self.domain

    @property
    def iter_type(self) -> AxisKind:
        """TVM's name for `kind`."""
        return self.kind

    @property
    def thread_tag(self) -> str:
        """Empty: which loop is bound to which thread, a schedule says."""
        return ""

    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Expr):
    """`op(a)`."""

    op: UnaryOp
    a: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        dtype = DType.bool if self.op in PREDICATES else self.a.dtype
        object.__setattr__(self, "dtype", SAME_BITS[dtype] if self.op is UnaryOp.BITS else dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Unary(self.op, *children)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Expr):
    """`a op b`.  Requires: equal dtypes."""

    op: BinaryOp
    a: Expr
    b: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Binary(self.op, *children)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compare(Expr):
    """`a op b`, a bool.  Requires: equal dtypes."""

    op: CompareOp
    a: Expr
    b: Expr
    dtype: DType = field(init=False, default=DType.bool)

    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Compare(self.op, *children)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Expr):
    """`a` where `condition` holds, else `b`; both are evaluated.  Requires: bool condition, equal
    dtypes."""

    condition: Expr
    a: Expr
    b: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.a, self.b)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Select(*children)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IfThenElse(Expr):
    """`a` where `condition` holds, else `b`; only the chosen one is evaluated, so the condition
    guards its reads."""

    condition: Expr
    a: Expr
    b: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.a, self.b)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return IfThenElse(*children)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Expr):
    """`a` as `dtype`.  Float to integer truncates toward zero; to bool is `a != 0`; narrowing
    floats rounds to even."""

    a: Expr
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Cast(children[0], self.dtype)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorRead(Expr):
    """One element of a tensor.  Requires: as many integer indices as the tensor has dimensions."""

    tensor: Tensor
    indices: tuple[Expr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.tensor.dtype)

    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return TensorRead(self.tensor, tuple(children))


@dataclass(frozen=True, slots=True, eq=False)
class Reducer:
    """A combination of tuples of scalars, commutative and associative (unless it folds over no
    axes).

    `combine[i]` is written over the variables `lhs` (the earlier tuple) and `rhs`; `identity[i]` is
    a constant.  With `believed` no proof is asked for that it combines in any order.
    Requires: all four have one length; dtypes agree position by position.
    """

    name: str
    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    combine: tuple[Expr, ...]
    identity: tuple[Expr, ...]
    believed: bool = False

    @property
    def operator(self) -> BinaryOp | None:
        """The operator when the reducer is exactly `lhs op rhs` on scalars (sum, product, min,
        max), else None."""
        match self.combine:
            case (Binary(op=op, a=a, b=b),) if a is self.lhs[0] and b is self.rhs[0]:
                return op
            case _:
                return None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Folded(Expr):
    """Value `index` of what is folded so far; only inside `Reduce.repair` and `Reduce.finish`."""

    index: int
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Before(Expr):
    """The value that the read `a` had in the iteration before; only inside `Reduce.repair`."""

    a: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Before(children[0])


@suggests(ExprError, owner="a reduction", alias=_FOLDS_OF_TVM)
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce(Expr):
    """Value `index` of folding `sources` with `reducer` over `axes`, at the points where `where`
    holds.

    `init` (over data axes only) is folded in first when given; otherwise the reducer's identity
    starts.  `repair` (one per source) is what becomes of the folded values when tensors that
    `sources` read move on while they are folded themselves (`scheduling.algebra.rescaling`).
    `finish` is applied at the end, over `Folded` values and data axes.  `finite` says that no
    factor of the sources is infinite or NaN at the points that `where` leaves out, so that a
    product there may be computed as 0 times something; `tf32` that float32 factors may be rounded.
    Over no axes it folds one point; where that goes along with a loop, as it is in each iteration.
    Requires: as many sources (and inits) as the reducer's tuple; axes of kind REDUCE.
    """

    reducer: Reducer
    sources: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    where: Expr | None = None
    init: tuple[Expr, ...] | None = None
    index: int = 0
    repair: tuple[Expr, ...] | None = None
    finish: Expr | None = None
    finite: bool = False
    tf32: bool = False
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        value = self.sources[self.index] if self.finish is None else self.finish
        object.__setattr__(self, "dtype", value.dtype)

    def children(self) -> tuple[Expr, ...]:
        where = () if self.where is None else (self.where,)
        finish = () if self.finish is None else (self.finish,)
        return (*self.sources, *where, *(self.init or ()), *(self.repair or ()), *finish)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        n = len(self.sources)
        rest = iter(children[n:])
        where = next(rest) if self.where is not None else None
        init = None if self.init is None else tuple(itertools.islice(rest, n))
        repair = None if self.repair is None else tuple(itertools.islice(rest, n))
        finish = None if self.finish is None else next(rest)
        sources = tuple(children[:n])
        others = (self.index, repair, finish, self.finite, self.tf32)
        return Reduce(self.reducer, sources, self.axes, where, init, *others)


# At the end, because `build` needs the nodes and the operators of `Expr` need `build`.
from tedsl.expr import build  # noqa: E402
