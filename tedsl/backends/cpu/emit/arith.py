"""Operators of expressions on LLVM values: integers, comparisons, casts and rounding.

Every function works on scalars and vectors alike.  Values of 16-bit floats arrive and leave as
float32 that is exactly representable in their type.
"""

from __future__ import annotations

from tedsl.backends.cpu.emit.casts import round_short
from tedsl.backends.cpu.emit.llvm_text import Function, Value
from tedsl.backends.cpu.emit.llvm_values import Num
from tedsl.backends.cpu.emit.types import is_short_float, is_signed
from tedsl.backends.cpu.math.functions import call_binary, call_unary, integer_power
from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.nodes import BinaryOp, CompareOp, UnaryOp
from tedsl.processor import machine

_ROUNDING = {
    UnaryOp.FLOOR: "floor",
    UnaryOp.CEIL: "ceil",
    UnaryOp.ROUND: "roundeven",
    UnaryOp.TRUNC: "trunc",
}
_PLAIN = {BinaryOp.AND: "and", BinaryOp.OR: "or", BinaryOp.XOR: "xor"}
_QUOTIENTS = frozenset(
    (
        BinaryOp.DIV,
        BinaryOp.TRUNCDIV,
        BinaryOp.TRUNCMOD,
        BinaryOp.FLOORDIV,
        BinaryOp.FLOORMOD,
    )
)
_BOOL = {BinaryOp.ADD: "or", BinaryOp.MUL: "and", BinaryOp.MIN: "and", BinaryOp.MAX: "or"}
_RELATION = {
    CompareOp.EQ: "eq",
    CompareOp.NE: "ne",
    CompareOp.LT: "lt",
    CompareOp.LE: "le",
    CompareOp.GT: "gt",
    CompareOp.GE: "ge",
}


def finish(number: Num, dtype: DType) -> Value:
    """Round the result of one operation where registers are wider than the type."""
    return round_short(number, dtype).value if is_short_float(dtype) else number.value


def unary(fn: Function, op: UnaryOp, dtype: DType, value: Value) -> Value:
    """`op(value)`, whose operand has `dtype`."""
    x = Num(fn, value)
    if not dtype.is_float:
        return _unary_integer(x, op, dtype).value
    match op:
        case UnaryOp.NEG:
            return (-x).value
        case UnaryOp.ABS:
            return x.abs().value
        case UnaryOp.SIGN:
            signed = (x > 0.0).where(x.const(1.0), (x < 0.0).where(x.const(-1.0), 0.0))
            return x.isnan().where(x, signed).value
        case UnaryOp.ISNAN:
            return x.isnan().value
        case UnaryOp.ISINF:
            return x.abs().eq(float("inf")).value
        case UnaryOp.ISFINITE:
            return (x.abs() < float("inf")).value
        case UnaryOp.FLOOR | UnaryOp.CEIL | UnaryOp.ROUND | UnaryOp.TRUNC:
            return x.call(_ROUNDING[op]).value
        case UnaryOp.BITS:
            return x.bits().value
        case UnaryOp.SQRT:
            return finish(x.sqrt(), dtype)
        case UnaryOp.RSQRT:
            return finish(1.0 / x.sqrt(), dtype)
        case _:
            return finish(call_unary(op, x), dtype)


def _unary_integer(x: Num, op: UnaryOp, dtype: DType) -> Num:
    """Operators of integers and bools."""
    match op:
        case UnaryOp.NEG:
            return -x
        case UnaryOp.NOT:
            return ~x
        case UnaryOp.ABS:
            if not is_signed(dtype):
                return x
            bits = f"llvm.abs.{x.type.suffix}"
            x.fn.module.declare(bits, x.type, [x.type, x.type.scalar.of("i1")])
            text = f"call {x.type} @{bits}({x.value}, i1 false)"
            return x.new(x.fn.op(text, x.type))
        case UnaryOp.SIGN:
            positive = x.ne(0) if not is_signed(dtype) else x > 0
            low = x.const(0) if not is_signed(dtype) else (x < 0).where(x.const(-1), 0)
            return positive.where(x.const(1), low)
        case UnaryOp.POPCOUNT:
            return x.call("ctpop")
        case UnaryOp.BITS:
            return x.floats()
        case UnaryOp.ISNAN | UnaryOp.ISINF:
            return Num(x.fn, x.value).compare("ne", x)
        case UnaryOp.ISFINITE:
            return x.compare("eq", x)
        case UnaryOp.FLOOR | UnaryOp.CEIL | UnaryOp.ROUND | UnaryOp.TRUNC:
            return x
        case _:
            raise InternalError(f"{op} of {dtype} has no meaning on the CPU")


def binary(
    fn: Function, op: BinaryOp, dtype: DType, a: Value, b: Value, flags: str = "contract"
) -> Value:
    """`a op b`, both of `dtype`.  `flags` go on float additions, subtractions and products."""
    if dtype.is_float:
        exact = is_short_float(dtype)
        x, y = Num(fn, a, "" if exact else flags), Num(fn, b, "" if exact else flags)
        return _binary_float(x, _kept_apart(y) if op in _QUOTIENTS else y, op, dtype)
    x, y = Num(fn, a), Num(fn, b)
    if dtype.is_bool and op in _BOOL:
        return x.op2("", _BOOL[op], y).value
    return _binary_integer(x, y, op, dtype).value


def _kept_apart(divisor: Num) -> Num:
    """The divisor of vectors, of which LLVM does not see the lanes.  It believes that 0 / 0 is 0
    (22, `SimplifyDemandedVectorElts`), and leaves out a choice between the two."""
    if not divisor.type.lanes or divisor.value.const is not None:
        return divisor
    return divisor.call("arithmetic.fence")


def _binary_float(x: Num, y: Num, op: BinaryOp, dtype: DType) -> Value:
    match op:
        case BinaryOp.ADD:
            return finish(x + y, dtype)
        case BinaryOp.SUB:
            return finish(x - y, dtype)
        case BinaryOp.MUL:
            return finish(x * y, dtype)
        case BinaryOp.DIV:
            return finish(Num(x.fn, x.value) / y, dtype)
        case BinaryOp.MIN | BinaryOp.MAX:
            return _extremum(x, y, op).value
        case BinaryOp.TRUNCMOD:
            return finish(x.op2("frem", "", y), dtype)
        case BinaryOp.TRUNCDIV:
            return finish((x / y).call("trunc"), dtype)
        case BinaryOp.FLOORDIV | BinaryOp.FLOORMOD:
            quotient, remainder = _float_divmod(Num(x.fn, x.value), Num(y.fn, y.value))
            return finish(quotient if op is BinaryOp.FLOORDIV else remainder, dtype)
        case BinaryOp.POW | BinaryOp.ATAN2:
            return finish(call_binary(op, Num(x.fn, x.value), Num(y.fn, y.value)), dtype)
        case _:
            raise InternalError(f"{op} of {dtype} has no meaning on the CPU")


def _extremum(x: Num, y: Num, op: BinaryOp) -> Num:
    """min or max that is NaN when either is; a constant needs no test of its own."""
    if not machine().is_x86:
        return x.call("minimum" if op is BinaryOp.MIN else "maximum", y)
    if y.value.const is not None:
        x, y = y, x
    better = x.compare("olt" if op is BinaryOp.MIN else "ogt", y).where(x, y)
    if x.value.const is not None and x.value.const == x.value.const:
        return better  # a NaN in y compares false and is chosen
    return x.isnan().where(x, better)


def _float_divmod(a: Num, b: Num) -> tuple[Num, Num]:
    """numpy's floor_divide and remainder."""
    remainder = a.op2("frem", "", b)
    quotient = (a - remainder) / b
    off = remainder.ne(0.0) & ((remainder < 0.0) ^ (b < 0.0))
    fixed = off.where(remainder + b, remainder)
    lowered = off.where(quotient - 1.0, quotient)
    floor = lowered.call("floor")
    floor = ((lowered - floor) > 0.5).where(floor + 1.0, floor)
    ratio = a / b
    floor = lowered.eq(0.0).where(floor.const(0.0).copysign(ratio), floor)
    floor = b.eq(0.0).where(ratio, floor)
    return floor, fixed.eq(0.0).where(fixed.const(0.0).copysign(b), fixed)


def _binary_integer(x: Num, y: Num, op: BinaryOp, dtype: DType) -> Num:
    signed = is_signed(dtype)
    match op:
        case BinaryOp.ADD:
            return x + y
        case BinaryOp.SUB:
            return x - y
        case BinaryOp.MUL:
            return x * y
        case BinaryOp.MIN | BinaryOp.MAX:
            return x.call(f"{'s' if signed else 'u'}{op.value}", y)
        case BinaryOp.AND | BinaryOp.OR | BinaryOp.XOR:
            return x.op2("", _PLAIN[op], y)
        case BinaryOp.SHL | BinaryOp.SHR:
            return _shift(x, y, op, signed)
        case BinaryOp.FLOORDIV | BinaryOp.FLOORMOD | BinaryOp.TRUNCDIV | BinaryOp.TRUNCMOD:
            return divide(x, y, op, signed)
        case BinaryOp.POW:
            return integer_power(x, y, signed)
        case _:
            raise InternalError(f"{op} of {dtype} has no meaning on the CPU")


def _shift(x: Num, y: Num, op: BinaryOp, signed: bool) -> Num:
    """Shifts, where counts of the width and more give what an endless shift would."""
    bits = x.type.bits
    if isinstance(y.value.const, int) and 0 <= y.value.const < bits:
        return x << y if op is BinaryOp.SHL else x.ashr(y) if signed else x >> y
    fits = y.compare("ult", bits)
    if op is BinaryOp.SHR and signed:
        return x.ashr(fits.where(y, bits - 1))
    count = fits.where(y, 0)
    return fits.where(x << count if op is BinaryOp.SHL else x >> count, 0)


def divide(x: Num, y: Num, op: BinaryOp, signed: bool) -> Num:
    """Integer division; by zero it gives 0, as numpy does."""
    floor = op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)
    modulo = op in (BinaryOp.FLOORMOD, BinaryOp.TRUNCMOD)
    known = y.value.const
    if isinstance(known, int) and known > 0:
        if floor and known & (known - 1) == 0:
            shift = known.bit_length() - 1
            return x & (known - 1) if modulo else x.ashr(shift) if signed else x >> shift
        return _quotient(x, y, floor and signed, modulo, signed)
    zero = y.eq(0)
    bad = zero
    if signed:
        bad = zero | (x.eq(-(1 << (x.type.bits - 1))) & y.eq(-1))
    result = _quotient(x, bad.where(y.const(1), y), floor and signed, modulo, signed)
    return zero.where(x.const(0), result)


def _quotient(x: Num, y: Num, floor: bool, modulo: bool, signed: bool) -> Num:
    """Quotient or remainder where neither zero nor overflow can occur."""
    q = _raw_quotient(x, y, signed)
    if not floor and not modulo:
        return q
    r = x - q * y
    if not floor:
        return r
    positive = isinstance(y.value.const, int)
    below = r < 0 if positive else r.ne(0) & ((r ^ y) < 0)
    return below.where(r + y, r) if modulo else below.where(q - 1, q)


def _raw_quotient(x: Num, y: Num, signed: bool) -> Num:
    """Truncated quotient; vectors of up to 32 bits go through exact float division."""
    name = "sdiv" if signed else "udiv"
    if not x.type.lanes or x.type.bits > 32 or isinstance(y.value.const, int):
        if not isinstance(y.value.const, int):
            x.fn.divided()
        return x.op2("", name, y)
    elem = "double" if x.type.bits == 32 else "float"
    to, back = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    return (x.cast(to, elem) / y.cast(to, elem)).cast(back, x.type.elem)


def compare(fn: Function, op: CompareOp, dtype: DType, a: Value, b: Value) -> Value:
    """`a op b` as a condition."""
    relation = _RELATION[op]
    if dtype.is_float:
        name = "une" if op is CompareOp.NE else "o" + relation
    elif op in (CompareOp.EQ, CompareOp.NE):
        name = relation
    else:
        name = ("s" if is_signed(dtype) else "u") + relation
    return Num(fn, a).compare(name, Num(fn, b)).value


def select(fn: Function, condition: Value, a: Value, b: Value) -> Value:
    """`a` where `condition` holds, else `b`."""
    return Num(fn, condition).where(Num(fn, a), Num(fn, b)).value
