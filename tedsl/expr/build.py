"""Smart constructors of scalar expressions: they promote (see `promote`), check, and fold trivia.

Folding is local and exact: constant operands (signed overflow is left as written), `x + 0` and
`x * 0` of integers, `x - 0`, `x * 1`, `x / 1`, logic with a constant.  Whatever needs ranges is
`index.simplify`'s.  Operators of `Expr` call these functions.  Imports `nodes`, `promote`, `fold`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from tedsl.dtypes import SAME_BITS, DType, Kind
from tedsl.errors import ExprError
from tedsl.expr import fold
from tedsl.expr.nodes import (
    PREDICATES,
    Axis,
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
from tedsl.expr.promote import (
    DTypeLike,
    Number,
    Operand,
    as_dtype,
    default_dtype,
    make_const,
    plain_number,
    promote_types,
    promote_weak,
)
from tedsl.expr.visit import structural_equal
from tedsl.slips import also

if TYPE_CHECKING:
    from collections.abc import Iterable

_ROUNDING = frozenset({UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})
_ANY_NUMBER = frozenset({UnaryOp.NEG, UnaryOp.ABS, UnaryOp.SIGN})
_BITS = frozenset({BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR})
_SHIFTS = frozenset({BinaryOp.SHL, BinaryOp.SHR})
_MAX_INTEGER_POWER = 64
_OTHER_BITS = "read the array as another dtype before the call: a.view(numpy.int16)"

TRUE = Const(True, DType.bool)
FALSE = Const(False, DType.bool)


def is_scalar(value: object) -> TypeGuard[Expr | Number]:
    """True for what the operators of an expression combine with: expressions and numbers."""
    return isinstance(value, (Expr, bool, int, float, np.generic))


def other_of(value: object) -> Any:
    """What an operator of an expression gives where the other operand is neither: NotImplemented
    where that knows what to do, as tensors and arrays do.

    Raises:
        ExprError: a text, a list, None, a function; it is a TypeError, too.
    """
    if hasattr(type(value), "__radd__"):
        return NotImplemented
    raise also(ExprError, TypeError)(
        f"{value!r} ({type(value).__name__}) is no operand of an expression",
        facts=[("allowed", "expressions, numbers, tensors")],
        hint="lists and arrays are te.placeholder, read at an index; optional ones need an `if`",
    )


def const(value: Number, dtype: DTypeLike | None = None) -> Const:
    """A literal.  Without `dtype`: bool, int32 (int64 when too large) or float32 by its kind.

    Raises:
        ExprError: the value does not fit the dtype, or the dtype is unknown.
    """
    number, strong = plain_number(value)
    if dtype is not None:
        return make_const(number, as_dtype(dtype))
    return make_const(number, strong or default_dtype(number))


def as_expr(value: Operand, dtype: DTypeLike | None = None) -> Expr:
    """`value` as an expression: a number becomes a constant, a tensor of rank 0 is read.

    Args:
        value: expression, number, or tensor of rank 0.
        dtype: what a Python number becomes; an expression is cast to it.

    Raises:
        ExprError: a tensor of higher rank, or something that is no number.
    """
    if isinstance(value, Expr):
        return value if dtype is None else cast(value, dtype)
    if isinstance(value, (bool, int, float, np.generic)):
        return const(value, dtype)
    read = getattr(value, "as_scalar", None)
    if read is None:
        raise ExprError(
            f"{value!r} is not a number or an expression",
            hint="index tensors (A[i, j]) and give numbers as int, float or bool",
        )
    scalar: Expr = read()
    return scalar if dtype is None else cast(scalar, dtype)


def promote(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """Both operands in the dtype they meet in; the rule is in the docstring of `expr.promote`."""
    weak_a, weak_b = _weak(a), _weak(b)
    if weak_a is not None and weak_b is None:
        right = as_expr(b)
        dtype = promote_weak(weak_a, right.dtype)
        return make_const(weak_a, dtype), cast(right, dtype)
    if weak_b is not None and weak_a is None:
        left = as_expr(a)
        dtype = promote_weak(weak_b, left.dtype)
        return cast(left, dtype), make_const(weak_b, dtype)
    left, right = as_expr(a), as_expr(b)
    dtype = promote_types(left.dtype, right.dtype)
    return cast(left, dtype), cast(right, dtype)


def _weak(value: Operand) -> bool | int | float | None:
    """The Python number that `value` is, or None when it has a dtype of its own."""
    if not isinstance(value, (bool, int, float, np.generic)):
        return None
    number, strong = plain_number(value)
    return number if strong is None else None


def binary(op: BinaryOp, a: Operand, b: Operand) -> Expr:
    """`a op b` after promotion.  Requires of the met dtype: bits take integers and bool, shifts
    integers, `DIV`, `POW` and `ATAN2` floats; arithmetic and division of floats and integers.

    Raises:
        ExprError: the operator does not take the dtype, or a constant divisor is 0.
    """
    x, y = promote(a, b)
    dtype = x.dtype
    require_computed(op, dtype)
    if op in _BITS and dtype.is_float:
        raise _refused(op, dtype, "cast to an integer or bool first")
    if op in _SHIFTS and not dtype.is_integer:
        raise _refused(op, dtype, "cast to an integer first")
    if op not in _BITS and dtype.is_bool:
        if op in (BinaryOp.MIN, BinaryOp.MAX):
            return binary(BinaryOp.AND if op is BinaryOp.MIN else BinaryOp.OR, x, y)
        raise _refused(op, dtype, "use & | ^ on bool, or cast it: x.astype('int32')")
    if op in (BinaryOp.POW, BinaryOp.ATAN2) and not dtype.is_float:
        raise _refused(op, dtype, "cast to a float first: x.astype('float32')")
    if op is BinaryOp.DIV and not dtype.is_float:
        raise ExprError(
            f"/ of {dtype} operands has no one meaning",
            hint="use // (round down), te.truncdiv (round to zero), or cast to a float",
        )
    if isinstance(y, Const) and dtype.is_integer:
        _check_constant(op, y)
    folded = fold.binary(op, x, y)
    return Binary(op, x, y) if folded is None else folded


def _check_constant(op: BinaryOp, right: Const) -> None:
    """Refuse a division by 0 and a shift by more bits than there are."""
    dividing = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
    if op in dividing and right.value == 0:
        raise ExprError(f"{op.value} of an integer by the constant 0", hint="give another divisor")
    if op in _SHIFTS and not 0 <= right.value < right.dtype.bits:
        raise ExprError(
            f"{op.value} by {right.value} bits of a {right.dtype}",
            facts=[("allowed", f"0 .. {right.dtype.bits - 1}")],
            hint="cast to a wider dtype first, or shift by less",
        )


def require_computed(op: BinaryOp | UnaryOp | CompareOp, dtype: DType) -> None:
    """Refuse an operator on a dtype that values are only stored in.

    Raises:
        ExprError: `dtype` is an 8-bit float.
    """
    if dtype.is_float8:
        raise _refused(op, dtype, "it is only stored; cast first: x.astype('float32')")


def _refused(op: BinaryOp | UnaryOp | CompareOp, dtype: DType, hint: str) -> ExprError:
    return ExprError(f"{op.value} does not take {dtype} operands", hint=hint)


def compare(op: CompareOp, a: Operand, b: Operand) -> Expr:
    """`a op b` as bool, after promotion."""
    x, y = promote(a, b)
    require_computed(op, x.dtype)
    folded = fold.compare(op, x, y)
    return Compare(op, x, y) if folded is None else folded


def _of(op: BinaryOp | CompareOp, doc: str) -> Callable[[Operand, Operand], Expr]:
    """The function of two operands that an operator is."""
    made = partial(binary, op) if isinstance(op, BinaryOp) else partial(compare, op)
    made.__doc__ = doc
    return made


add = _of(BinaryOp.ADD, "`a + b`.")
sub = _of(BinaryOp.SUB, "`a - b`.")
mul = _of(BinaryOp.MUL, "`a * b`.")
div = _of(
    BinaryOp.DIV,
    "`a / b` of floats.\n\nRaises:\n    ExprError: two integers, for which `/` has no one meaning.",
)
minimum = _of(BinaryOp.MIN, "The smaller; NaN when either is NaN.  On bool: and.")
maximum = _of(BinaryOp.MAX, "The larger; NaN when either is NaN.  On bool: or.")
bitwise_and = _of(BinaryOp.AND, "`a & b` of integers or bool.")
bitwise_or = _of(BinaryOp.OR, "`a | b` of integers or bool.")
bitwise_xor = _of(BinaryOp.XOR, "`a ^ b` of integers or bool.")
left_shift = _of(
    BinaryOp.SHL, "`a << b`; bits pushed out are lost.  Requires: 0 <= b < bits of the met dtype."
)
right_shift = _of(
    BinaryOp.SHR,
    "`a >> b`, arithmetic for signed dtypes.  Requires: 0 <= b < bits of the met dtype.",
)
eq = _of(CompareOp.EQ, "`a == b` as bool.")
ne = _of(CompareOp.NE, "`a != b` as bool.")
lt = _of(CompareOp.LT, "`a < b` as bool.")
le = _of(CompareOp.LE, "`a <= b` as bool.")
gt = _of(CompareOp.GT, "`a > b` as bool.")
ge = _of(CompareOp.GE, "`a >= b` as bool.")


def floordiv(a: Operand, b: Operand) -> Expr:
    """`a / b` rounded to minus infinity; on floats it is `floor(a / b)`."""
    x, y = promote(a, b)
    if x.dtype.is_float:
        return unary(UnaryOp.FLOOR, div(x, y))
    return binary(BinaryOp.FLOORDIV, x, y)


def floormod(a: Operand, b: Operand) -> Expr:
    """`a - b * floordiv(a, b)`: the remainder with the sign of `b`.  Floats: just that formula."""
    x, y = promote(a, b)
    if x.dtype.is_float:
        return sub(x, mul(y, floordiv(x, y)))
    return binary(BinaryOp.FLOORMOD, x, y)


def truncdiv(a: Operand, b: Operand) -> Expr:
    """`a / b` rounded to zero, as in C; on floats it is `trunc(a / b)`."""
    x, y = promote(a, b)
    if x.dtype.is_float:
        return unary(UnaryOp.TRUNC, div(x, y))
    return binary(BinaryOp.TRUNCDIV, x, y)


def truncmod(a: Operand, b: Operand) -> Expr:
    """`a - b * truncdiv(a, b)`: the remainder with the sign of `a`.  Floats: just that formula."""
    x, y = promote(a, b)
    if x.dtype.is_float:
        return sub(x, mul(y, truncdiv(x, y)))
    return fmod(x, y)


def fmod(a: Operand, b: Operand) -> Expr:
    """The remainder with the sign of `a`, exact as C's `fmod` is."""
    return binary(BinaryOp.TRUNCMOD, *promote(a, b))


def power(a: Operand, b: Operand) -> Expr:
    """`a ** b`.  A constant integer exponent from 0 to 64 becomes products, for integers too.

    Raises:
        ExprError: an integer base with an exponent that is not such a constant.
    """
    exponent = _whole_number(b)
    if exponent is not None and 0 <= exponent <= _MAX_INTEGER_POWER:
        x, _ = promote(a, b)
        if x.dtype.is_integer or exponent <= 4:
            return _repeated_product(x, exponent)
    x, y = promote(a, b)
    if not x.dtype.is_float:
        raise ExprError(
            f"a power of {x.dtype} with an exponent that is no constant from 0 to "
            f"{_MAX_INTEGER_POWER}",
            hint="cast the base to a float first: x.astype('float32')",
        )
    return binary(BinaryOp.POW, x, y)


def _whole_number(value: Operand) -> int | None:
    """The integer that a constant operand is, or None."""
    number = value.value if isinstance(value, Const) else _weak(value)
    whole = isinstance(number, int) or (number is not None and float(number).is_integer())
    return int(number) if number is not None and whole else None


def _repeated_product(x: Expr, exponent: int) -> Expr:
    """`x ** exponent` by squaring."""
    if exponent == 0:
        return make_const(1, x.dtype)
    half = _repeated_product(x, exponent // 2) if exponent > 1 else None
    if half is None:
        return x
    return mul(mul(half, half), x) if exponent % 2 else mul(half, half)


def atan2(a: Operand, b: Operand) -> Expr:
    """The angle of the point (x = b, y = a); integers are cast to float32."""
    x, y = promote(a, b)
    return binary(BinaryOp.ATAN2, as_float(x), as_float(y))


def unary(op: UnaryOp, a: Operand) -> Expr:
    """`op(a)`.

    Rounding an integer and `isnan` and its like of one are constants or the operand itself.  A
    transcendental function of an integer or bool casts it to float32 first.

    Raises:
        ExprError: bool to arithmetic, a float to `NOT` or `POPCOUNT`, an 8-bit float to any, to
            `BITS` what is not in `SAME_BITS`.
    """
    x = as_expr(a)
    dtype = x.dtype
    require_computed(op, dtype)
    if op is UnaryOp.NOT:
        if dtype.is_float:
            raise _refused(op, dtype, "cast to an integer or bool first")
    elif op is UnaryOp.POPCOUNT:
        if not dtype.is_integer:
            raise _refused(op, dtype, "cast to an integer first")
    elif op is UnaryOp.BITS:
        if dtype not in SAME_BITS:
            raise _refused(op, dtype, "it takes float32, float64, int32 and int64; cast first")
    elif op in _ANY_NUMBER:
        if dtype.is_bool:
            raise _refused(op, dtype, "use ~ on bool, or cast it: x.astype('int32')")
        if op is UnaryOp.ABS and dtype.kind is Kind.UINT:
            return x
    elif not dtype.is_float:
        if op in _ROUNDING:
            return x
        if op in PREDICATES:
            return TRUE if op is UnaryOp.ISFINITE else FALSE
        x = as_float(x)
    folded = fold.unary(op, x)
    return Unary(op, x) if folded is None else folded


def reinterpret(dtype: DTypeLike, a: Operand) -> Expr:
    """The bits of `a` as a value of another type of the same width.

    A bfloat16 is the upper half of a float32.  Which bits a NaN has is the target's choice.

    Raises:
        ExprError: types of two widths, bool, float16 or an 8-bit float.
    """
    x, to = as_expr(a), as_dtype(dtype)
    source = x.dtype
    if source.is_bool or to.is_bool or source.bits != to.bits:
        raise ExprError(
            f"reinterpret of {source} as {to}: they have not as many bits",
            hint="cast to a type of the same width first: x.astype(...) keeps the value",
        )
    if source is to:
        return x
    if source.is_integer and to.is_integer:
        return cast(x, to)
    if DType.bfloat16 in (source, to):
        if source.is_float and to.is_float:
            raise _refused(UnaryOp.BITS, source, _OTHER_BITS)
        if source.is_float:
            whole = unary(UnaryOp.BITS, cast(x, DType.float32))
            return cast(right_shift(whole, 16), to)
        whole = left_shift(cast(cast(x, DType.int16), DType.int32), 16)
        return cast(unary(UnaryOp.BITS, whole), to)
    if not {source, to} & SAME_BITS.keys() or (source.is_float and to.is_float):
        raise _refused(UnaryOp.BITS, source, _OTHER_BITS)
    if source.is_float:
        return cast(unary(UnaryOp.BITS, x), to)
    return unary(UnaryOp.BITS, cast(x, SAME_BITS[to]))


def as_float(a: Operand) -> Expr:
    """`a` itself when it is a float, else cast to float32."""
    x = as_expr(a)
    return x if x.dtype.is_float else cast(x, DType.float32)


def neg(a: Operand) -> Expr:
    """`-a`; wraps on integers."""
    return unary(UnaryOp.NEG, a)


def invert(a: Operand) -> Expr:
    """`~a`: bitwise on integers, logical on bool."""
    return unary(UnaryOp.NOT, a)


def condition(value: Operand, subject: str) -> Expr:
    """`value` as a bool expression.

    Raises:
        ExprError: another dtype; nothing is silently a truth value.
    """
    x = as_expr(value)
    if not x.dtype.is_bool:
        raise ExprError(
            f"the condition is {x.dtype}, not bool",
            subject=subject,
            hint="compare it, e.g. x != 0",
        )
    return x


def logical_and(a: Operand, b: Operand) -> Expr:
    """`a` and `b`, both bool."""
    return bitwise_and(condition(a, "logical_and"), condition(b, "logical_and"))


def logical_or(a: Operand, b: Operand) -> Expr:
    """`a` or `b`, both bool."""
    return bitwise_or(condition(a, "logical_or"), condition(b, "logical_or"))


def logical_not(a: Operand) -> Expr:
    """Not `a`, a bool."""
    return invert(condition(a, "logical_not"))


def conjunction(conditions: Iterable[Expr]) -> Expr:
    """All of `conditions`; true when there are none."""
    result: Expr = TRUE
    for each in conditions:
        result = logical_and(result, each)
    return result


def select(cond: Operand, a: Operand, b: Operand) -> Expr:
    """`a` where `cond` holds, else `b`, after promotion; both sides are evaluated.

    Raises:
        ExprError: `cond` is not bool.
    """
    test = condition(cond, "select")
    x, y = promote(a, b)
    if isinstance(test, Const):
        return x if test.value else y
    return Select(test, x, y)


def if_then_else(cond: Operand, a: Operand, b: Operand) -> Expr:
    """`a` where `cond` holds, else `b`, after promotion; only the chosen side is evaluated, so
    `cond` guards the reads in it.

    Raises:
        ExprError: `cond` is not bool.
    """
    test = condition(cond, "if_then_else")
    x, y = promote(a, b)
    if isinstance(test, Const):
        return x if test.value else y
    return IfThenElse(test, x, y)


def cast(a: Operand, dtype: DTypeLike) -> Expr:
    """`a` as `dtype`; the same object when it already is.

    Float to integer truncates toward zero (a value outside the integer's range gives no particular
    result); to bool is `a != 0`.  To a float it is the nearest, halves to even.  To an 8-bit float
    it goes through float32, as in PyTorch and ml_dtypes; beyond its range float8_e5m2 is infinite
    from 61440 on, and float8_e4m3fn, which has no infinity, is NaN above 464.
    """
    x = as_expr(a)
    to = as_dtype(dtype)
    if x.dtype is to:
        return x
    folded = fold.cast(x, to)
    return Cast(x, to) if folded is None else folded


def rounded(a: Operand, dtype: DTypeLike) -> Expr:
    """`a` as `dtype`, as a user casts it: of what is computed in that dtype already it is a node of
    its own, which says that the value is rounded there whatever it is folded in (`expr.wider`).

    A definition keeps none of them (`wider.unmarked`).  Indices are no such values.
    """
    x = as_expr(a)
    to = as_dtype(dtype)
    computed = isinstance(x, (Unary, Binary, Select, IfThenElse))
    if x.dtype is to and computed and (to.is_float or (to.is_integer and to.bits < 32)):
        return Cast(x, to)
    return cast(x, to)


def decided(expr: Expr) -> bool | None:
    """The truth of a comparison for equality that does not depend on anything: of an integer
    expression with itself, of constants, or of loops, which have no values in a definition; None
    for any other expression."""
    match expr:
        case Const(value=bool(value)):
            return value
        case Compare(op=CompareOp.EQ | CompareOp.NE as op, a=Axis() as a, b=Axis() as b) if (
            a.domain is None or b.domain is None
        ):
            return (a is b) is (op is CompareOp.EQ)
        case Compare(op=CompareOp.EQ | CompareOp.NE as op, a=a, b=b) if not a.dtype.is_float:
            return op is CompareOp.EQ if structural_equal(a, b) else None
        case _:
            return None
