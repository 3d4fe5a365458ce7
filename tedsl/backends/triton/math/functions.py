"""How each operator prints in Triton, per element type, and what it costs and guarantees.

The one table of intrinsics of this backend.  float16 and bfloat16 are computed in float32 and
rounded after every operator (the caller does both), so the forms here see float32 and float64 only.

Accuracy of the float32 forms, in units of the last place of the result, with the instructions per
element they cost on sm_90 beside the eleven of a plain pointwise kernel:

    + - * floor ceil round trunc abs neg     exact rounding       1
    /                                        2                    9   (div.full)
    sqrt rsqrt                               1, 2                 1   (approximate instructions)
    exp2                                     2                    1
    exp                                      2 + |x| / 2          5   (exp2 of x * log2(e))
    sigmoid                                  4 + |x| / 2         13
    log log2 log10 log1p expm1               1 to 2           11-28   (libdevice)
    erf tanh                                 2, 2            30, 22   (libdevice)
    sin cos tan                              2, 2, 4             80   (libdevice, any argument)
    asin acos atan sinh cosh ... atan2 pow   2 to 6           20-60   (libdevice)

Where a result of 16 bits hides more (`accuracy` says what a value may be wrong by), these are
cheaper.  An error is relative to the value, or to the largest term of the sum that the value is in,
or absolute; u is 2^-24:

    exp(s * c - m), in base 2 (`cheaper_forms`)     1.5 (|s c| + |m|) u  2   for terms up to 2^10
    sigmoid                                  2^-20, 0 < 2^-126    5   of the value or a sum
    tanh                                     2^-11 of the value   1   (tanh.approx; bfloat16)
    tanh                                     2^-20, absolute      5   in a sum, a bound, an exponent
    erf                                      2^-20, absolute     14   in a sum, as in 1 + erf(x)
    sin cos                                  2^-15 of the value  17   of bfloat16 numbers, rounded
                                             at once; 19 for both of one argument; 8 to 32 elements
                                             a thread, which branches to a slow path where one of
                                             eight arguments is beyond 12800; any number of float16
                                             arguments, which have no slow path

An absolute error of 2^-20 beside a 1 shows where both nearly cancel: x * (1 + erf(x)) has it |x|
times.
float64 forms are libdevice's, within 2 units.  Integer `//` and `%` truncate in Triton, so the
floor forms go through a helper unless both operands are known to be non-negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tedsl.backends.triton.math import sincos16
from tedsl.backends.triton.math.accuracy import Allowance
from tedsl.dtypes import SAME_BITS, DType, Kind
from tedsl.errors import BackendError
from tedsl.expr.nodes import BinaryOp, Cast, CompareOp, Expr, UnaryOp

COMPARE, OR, XOR, AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(9)
LOG2E = "1.4426950408889634"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of source and how tightly its outermost operator binds."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses when it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


_CALLS: dict[UnaryOp, str] = {
    UnaryOp.ABS: "tl.abs",
    UnaryOp.EXP: "tl.exp",
    UnaryOp.EXP2: "tl.exp2",
    UnaryOp.EXPM1: "libdevice.expm1",
    UnaryOp.LOG: "tl.log",
    UnaryOp.LOG2: "tl.log2",
    UnaryOp.LOG10: "libdevice.log10",
    UnaryOp.LOG1P: "libdevice.log1p",
    UnaryOp.SQRT: "tl.sqrt",
    UnaryOp.RSQRT: "tl.rsqrt",
    UnaryOp.TANH: "libdevice.tanh",
    UnaryOp.ERF: "tl.erf",
    UnaryOp.SIN: "tl.sin",
    UnaryOp.COS: "tl.cos",
    UnaryOp.TAN: "libdevice.tan",
    UnaryOp.ASIN: "libdevice.asin",
    UnaryOp.ACOS: "libdevice.acos",
    UnaryOp.ATAN: "libdevice.atan",
    UnaryOp.SINH: "libdevice.sinh",
    UnaryOp.COSH: "libdevice.cosh",
    UnaryOp.ASINH: "libdevice.asinh",
    UnaryOp.ACOSH: "libdevice.acosh",
    UnaryOp.ATANH: "libdevice.atanh",
    UnaryOp.FLOOR: "tl.floor",
    UnaryOp.CEIL: "tl.ceil",
    UnaryOp.ROUND: "libdevice.rint",
    UnaryOp.TRUNC: "libdevice.trunc",
}
_INTEGER_IDENTITIES = frozenset({UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})
TWICE = frozenset({UnaryOp.SIGN, UnaryOp.ISNAN})
# Functions that take a bare number for an int32, so that of a smaller integer they make one, too.
UNTYPED = frozenset({BinaryOp.MIN, BinaryOp.MAX})

_INFIX: dict[BinaryOp, tuple[str, int]] = {
    BinaryOp.ADD: ("+", SUM),
    BinaryOp.SUB: ("-", SUM),
    BinaryOp.MUL: ("*", PRODUCT),
    BinaryOp.DIV: ("/", PRODUCT),
    BinaryOp.TRUNCDIV: ("//", PRODUCT),
    BinaryOp.TRUNCMOD: ("%", PRODUCT),
    BinaryOp.AND: ("&", AND),
    BinaryOp.OR: ("|", OR),
    BinaryOp.XOR: ("^", XOR),
    BinaryOp.SHL: ("<<", SHIFT),
    BinaryOp.SHR: (">>", SHIFT),
}


HELPERS: dict[str, str] = {
    "floor_div": '''
@triton.jit
def floor_div(a, b):
    """Quotient of integers rounded to minus infinity; `//` truncates."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), a // b - 1, a // b)
''',
    "floor_mod": '''
@triton.jit
def floor_mod(a, b):
    """Remainder with the sign of the divisor; `%` takes that of the dividend."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
''',
    "float_floor_mod": '''
@triton.jit
def float_floor_mod(a, b):
    """Remainder of floats with the sign of the divisor."""
    r = libdevice.fmod(a, b)
    return tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), r + b, r)
''',
    "float_floor_div": '''
@triton.jit
def float_floor_div(a, b):
    """Quotient of floats rounded to minus infinity, exact where `a / b` would round up."""
    r = libdevice.fmod(a, b)
    r = tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), r + b, r)
    return tl.where(b == 0.0, a / b, libdevice.rint((a - r) / b))
''',
    "nan_wins_max": '''
@triton.jit
def nan_wins_max(x, INT: tl.constexpr):
    """`x`, of which a NaN is the largest integer: atomic maxima compare bits."""
    bits = tl.where(x != x, (1 << (INT.primitive_bitwidth - 1)) - 1, x.to(INT, bitcast=True))
    return bits.to(x.dtype, bitcast=True)
''',
    "nan_wins_min": '''
@triton.jit
def nan_wins_min(x, INT: tl.constexpr):
    """`x`, of which a NaN is the integer of all ones: atomic minima compare bits."""
    return tl.where(x != x, -1, x.to(INT, bitcast=True)).to(x.dtype, bitcast=True)
''',
    "int_pow": '''
@triton.jit
def int_pow(a, b, BITS: tl.constexpr):
    """`a ** b` of integers by squaring, modulo the width of the type."""
    r = a * 0 + 1 + b * 0
    for _ in tl.static_range(BITS):
        r = tl.where((b & 1) != 0, r * a, r)
        a = a * a
        b = b >> 1
    return r
''',
    "max_nan": '''
@triton.jit
def max_nan(a, b):
    """The larger; NaN when either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "min_nan": '''
@triton.jit
def min_nan(a, b):
    """The smaller; NaN when either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "fast_sigmoid": '''
@triton.jit
def fast_sigmoid(x):
    """1 / (1 + exp(-x)), 0 where that is below 2^-126."""
    return libdevice.fast_dividef(1.0, 1.0 + tl.exp2(x * -1.4426950408889634))
''',
    "fast_tanh": '''
@triton.jit
def fast_tanh(x):
    """tanh(x) with a relative error of 2^-11."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
''',
    "bounded_tanh": '''
@triton.jit
def bounded_tanh(x):
    """tanh(x) with an absolute error of 2^-20."""
    return 1.0 - libdevice.fast_dividef(2.0, 1.0 + tl.exp2(x * 2.8853900817779268))
''',
    "bounded_erf": '''
@triton.jit
def bounded_erf(x):
    """erf(x) with an absolute error of 2^-20 (Abramowitz and Stegun, 7.1.26)."""
    size = tl.abs(x)
    t = libdevice.fast_dividef(1.0, 1.0 + 0.3275911 * size)
    p = (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592
    far = 1.0 - p * t * tl.exp2(size * size * -1.4426950408889634)
    return tl.where(x < 0.0, -far, far)
''',
    **sincos16.HELPERS,
    "product": '''
@triton.jit
def product(a, b):
    """The product."""
    return a * b
''',
}


def triton_type(dtype: DType) -> str:
    """The `tl` name of an element type."""
    return f"tl.{dtype.info.triton}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant of `dtype` as Python source."""
    if dtype.is_bool:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if number != number:
        return 'float("nan")'
    if number in (float("inf"), float("-inf")):
        return f'float("{number}")'
    return repr(number)


def rounds_in_float32(value: bool | int | float, dtype: DType) -> bool:
    """True for a float64 constant that float32 cannot hold."""
    if dtype is not DType.float64 or not math.isfinite(value):
        return False
    return abs(value) > DType.float32.info.highest or float(np.float32(value)) != float(value)


def unary(op: UnaryOp, x: Text, dtype: DType) -> Text:
    """`op(x)` for `x` of `dtype` (float32, float64, an integer type or bool).

    Requires: `x` is a name when `op` is in `TWICE`.
    """
    if op is UnaryOp.BITS:
        return Text(f"{x.at(ATOM)}.to({triton_type(SAME_BITS[dtype])}, bitcast=True)")
    if not dtype.is_float:
        return _integer_unary(op, x, dtype)
    match op:
        case UnaryOp.NEG:
            return Text(f"-{x.at(UNARY)}", UNARY)
        case UnaryOp.SIGMOID if dtype is DType.float64:
            return Text(f"1.0 / (1.0 + tl.exp(-{x.at(UNARY)}))", PRODUCT)
        case UnaryOp.SIGMOID:
            return Text(f"1.0 / (1.0 + tl.exp2({x.at(PRODUCT)} * -{LOG2E}))", PRODUCT)
        case UnaryOp.SIGN:
            t = x.at(ATOM)
            return Text(f"tl.where({t} > 0.0, 1.0, tl.where({t} < 0.0, -1.0, {t} + 0.0))")
        case UnaryOp.ISNAN:
            return Text(f"{x.at(OR)} != {x.at(OR)}", COMPARE)
        case UnaryOp.ISINF:
            return Text(f'tl.abs({x.text}) == float("inf")', COMPARE)
        case UnaryOp.ISFINITE:
            return Text(f'tl.abs({x.text}) < float("inf")', COMPARE)
        case _ if op in _CALLS:
            return Text(f"{_CALLS[op]}({x.text})")
        case _:
            raise BackendError(f"{op.value} has no meaning for {dtype.value} in Triton")


# The forms of a function that cost less, the cheapest first, each with what it needs to be allowed:
# an error relative to the value, to the terms of a sum, or an absolute one.
_FORMS: dict[UnaryOp, tuple[tuple[str, Allowance], ...]] = {
    UnaryOp.TANH: (
        ("fast_tanh", Allowance(2.0**-11, math.inf, math.inf)),
        ("bounded_tanh", Allowance(math.inf, math.inf, 2.0**-20)),
    ),
    UnaryOp.SIGMOID: (("fast_sigmoid", Allowance(math.inf, 2.0**-20, math.inf)),),
    UnaryOp.ERF: (("bounded_erf", Allowance(math.inf, math.inf, 2.0**-20)),),
    UnaryOp.SIN: (("short_sin", Allowance(2.0**-15, 2.0**-15, 2.0**-15)),),
    UnaryOp.COS: (("short_cos", Allowance(2.0**-15, 2.0**-15, 2.0**-15)),),
}
# What a form takes in place of the argument, made of it once for all functions that ask for it; of
# float32 numbers, of bfloat16 and of float16 ones.
_TURNS = ("quarter_turns", "quarter_turns_16", "quarter_turns_near")
SHARED: dict[str, tuple[str, str, str]] = {"short_sin": _TURNS, "short_cos": _TURNS}
# The forms of what is rounded at once: both functions of a SHARED one, and which of them it is.
ROUNDED = {
    (op, dtype): (f"turned_{dtype.value}", place)
    for place, op in enumerate((UnaryOp.SIN, UnaryOp.COS))
    for dtype in (DType.bfloat16, DType.float16)
}
# Forms that branch on eight elements of a thread at once, unless all arguments are near, with as
# much code for each eight as makes large tiles take long to compile: how many a thread has for
# which they are used.
_OF_TILES = frozenset(SHARED)
_EACH = range(8, 33)


def is_near(expr: Expr) -> bool:
    """True of float16 numbers, and of what they are cast to."""
    return DType.float16 in (expr.dtype, expr.a.dtype if isinstance(expr, Cast) else None)


def cheaper(
    op: UnaryOp, dtype: DType, allowed: Allowance, each: int, near: bool = False
) -> str | None:
    """The helper that computes a function of float32 as accurately as is needed, at less cost;
    a thread has `each` elements, of `near` arguments where all are float16 numbers."""
    if dtype is not DType.float32:
        return None
    for name, needs in _FORMS.get(op, ()):
        if allowed.covers(needs) and (near or each in _EACH or name not in _OF_TILES):
            return name
    return None


def _integer_unary(op: UnaryOp, x: Text, dtype: DType) -> Text:
    if op in _INTEGER_IDENTITIES:
        return x
    match op:
        case UnaryOp.NOT:
            return Text(f"~{x.at(UNARY)}", UNARY)
        case UnaryOp.NEG if dtype.kind is Kind.UINT:
            return Text(f"0 - {x.at(PRODUCT)}", SUM)
        case UnaryOp.NEG:
            return Text(f"-{x.at(UNARY)}", UNARY)
        case UnaryOp.ABS if dtype.kind is Kind.INT:
            return Text(f"tl.abs({x.text})")
        case UnaryOp.ABS:
            return x
        case UnaryOp.SIGN:
            t, kind = x.at(ATOM), triton_type(dtype)
            return Text(f"(({t} > 0).to(tl.int8) - ({t} < 0).to(tl.int8)).to({kind})")
        case UnaryOp.ISNAN | UnaryOp.ISINF:
            return Text(f"{x.at(OR)} != {x.at(OR)}", COMPARE)
        case UnaryOp.ISFINITE:
            return Text(f"{x.at(OR)} == {x.at(OR)}", COMPARE)
        case UnaryOp.POPCOUNT:
            return _popcount(x, dtype)
        case _:
            raise BackendError(
                f"{op.value} takes floats, not {dtype.value}",
                hint='cast the operand first, e.g. x.astype("float32")',
            )


def _popcount(x: Text, dtype: DType) -> Text:
    """Through the unsigned type of the same width, so that a sign bit is counted once."""
    if dtype.is_bool:
        return x
    wide = "tl.int64" if dtype.bits == 64 else "tl.int32"
    bits = x.at(ATOM)
    if dtype.bits >= 32:
        bits = f"{bits}.to({wide}, bitcast=True)"
    else:
        bits = f"{bits}.to(tl.uint{dtype.bits}, bitcast=True).to(tl.int32)"
    return Text(f"libdevice.popc({bits}).to({triton_type(dtype)})")


def binary(
    op: BinaryOp, a: Text, b: Text, dtype: DType, nonnegative: bool
) -> tuple[Text, str | None]:
    """`a op b` for operands of `dtype`, and the name of the helper it calls, if any.

    Args:
        nonnegative: both operands are integers known to be at least 0.
    """
    match op:
        case BinaryOp.MIN | BinaryOp.MAX:
            return _extremum(op, a, b, dtype), None
        case BinaryOp.POW if dtype.is_float:
            return Text(f"libdevice.pow({a.text}, {b.text})"), None
        case BinaryOp.POW:
            return Text(f"int_pow({a.text}, {b.text}, {dtype.bits})"), "int_pow"
        case BinaryOp.ATAN2:
            return Text(f"libdevice.atan2({a.text}, {b.text})"), None
        case BinaryOp.FLOORDIV | BinaryOp.FLOORMOD:
            return _floor(op, a, b, dtype, nonnegative)
        case BinaryOp.TRUNCMOD if dtype.is_float:
            return Text(f"libdevice.fmod({a.text}, {b.text})"), None
        case BinaryOp.TRUNCDIV if dtype.is_float:
            return Text(f"libdevice.trunc({a.at(PRODUCT)} / {b.at(UNARY)})"), None
        case BinaryOp.ADD | BinaryOp.MUL if dtype.is_bool:
            sign, level = ("|", OR) if op is BinaryOp.ADD else ("&", AND)
            return Text(f"{a.at(level)} {sign} {b.at(level + 1)}", level), None
        case _:
            sign, level = _INFIX[op]
            return Text(f"{a.at(level)} {sign} {b.at(level + 1)}", level), None


def _floor(
    op: BinaryOp, a: Text, b: Text, dtype: DType, nonnegative: bool
) -> tuple[Text, str | None]:
    sign, name = ("//", "div") if op is BinaryOp.FLOORDIV else ("%", "mod")
    if dtype.is_float:
        return Text(f"float_floor_{name}({a.text}, {b.text})"), f"float_floor_{name}"
    if nonnegative or dtype.kind is Kind.UINT:
        return Text(f"{a.at(PRODUCT)} {sign} {b.at(UNARY)}", PRODUCT), None
    return Text(f"floor_{name}({a.text}, {b.text})"), f"floor_{name}"


def _extremum(op: BinaryOp, a: Text, b: Text, dtype: DType) -> Text:
    if dtype.is_bool:
        sign, level = ("&", AND) if op is BinaryOp.MIN else ("|", OR)
        return Text(f"{a.at(level)} {sign} {b.at(level + 1)}", level)
    name = "tl.minimum" if op is BinaryOp.MIN else "tl.maximum"
    nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_float else ""
    return Text(f"{name}({a.text}, {b.text}{nan})")


def compare(op: CompareOp, a: Text, b: Text) -> Text:
    """`a op b`."""
    return Text(f"{a.at(OR)} {op.value} {b.at(OR)}", COMPARE)


def cast(x: Text, source: DType, target: DType) -> Text:
    """`x` of `source` as `target`; float to integer truncates, to bool is `x != 0`."""
    if source is target:
        return x
    if target.is_bool:
        return Text(f"{x.at(OR)} != {'0.0' if source.is_float else '0'}", COMPARE)
    kind = triton_type(target)
    if target in (DType.float16, DType.bfloat16) and source is not DType.float32:
        return Text(f"{x.at(ATOM)}.to(tl.float32).to({kind})")
    return Text(f"{x.at(ATOM)}.to({kind})")
