"""Calls of mathematical functions: which implementation serves which type, as functions of the
module.

A helper is defined once per module and vector shape and inlined by LLVM.  `float32` and `float64`
hold the polynomials; what they lack is called lane by lane from the C library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tedsl.backends.cpu.emit.llvm_text import Function, Type, Value, const
from tedsl.backends.cpu.emit.llvm_values import Num
from tedsl.backends.cpu.math import float32, float64
from tedsl.expr.nodes import BinaryOp, UnaryOp

_LIBM = {
    UnaryOp.ASIN: "asin",
    UnaryOp.ACOS: "acos",
    UnaryOp.ATAN: "atan",
    UnaryOp.ERF: "erf",
    BinaryOp.POW: "pow",
    BinaryOp.ATAN2: "atan2",
}


def helper(
    fn: Function,
    name: str,
    result: Type,
    args: Sequence[Num],
    body: Callable[..., Num],
    inline: bool = True,
) -> Num:
    """Call `body` as an internal function of the module, defined on first use for these types."""
    types = [a.type for a in args]
    full = f"tedsl.{name}.{types[0].suffix}"
    mode = "alwaysinline" if inline else "noinline"

    def make() -> Function:
        params = [Value(f"%a{i}", t) for i, t in enumerate(types)]
        inner = ", ".join(map(str, params))
        made = Function(fn.module, f"define internal {result} @{full}({inner}) {mode} #0", params)
        made.do(f"ret {body(*(Num(made, p) for p in params)).value}")
        return made

    fn.module.define(full, make)
    return Num(fn, fn.call(full, result, [a.value for a in args]))


def libm(name: str, *args: Num) -> Num:
    """Call a C library function for every lane."""
    first = args[0]
    full = name if first.type.elem == "double" else f"{name}f"
    scalar, fn = first.type.scalar, first.fn
    fn.module.declare(full, scalar, [scalar] * len(args), "nounwind willreturn memory(none)")
    if not first.type.lanes:
        return first.new(fn.call(full, scalar, [a.value for a in args]))
    result = "poison"
    for lane in range(first.type.lanes):
        parts = [fn.op(f"extractelement {a.value}, i64 {lane}", scalar) for a in args]
        one = fn.call(full, scalar, parts)
        result = fn.op(f"insertelement {first.type} {result}, {one}, i64 {lane}", first.type).text
    return first.new(Value(result, first.type))


def call_unary(op: UnaryOp, x: Num) -> Num:
    """`op(x)` for a transcendental function of float32 or float64."""
    table = float32.TABLE if x.type.elem == "float" else float64.TABLE
    body = table.get(op)
    if body is None:
        return libm(_LIBM.get(op, op.value), x)
    return helper(x.fn, op.value, x.type, [x], body)


def call_binary(op: BinaryOp, x: Num, y: Num) -> Num:
    """`op(x, y)`; powers by small constants are products."""
    if op is BinaryOp.POW and y.value.const in (1, 2, 3, 4):
        square = x * x
        return {1: x, 2: square, 3: square * x, 4: square * square}[int(y.value.const or 0)]
    table = float32.TABLE2 if x.type.elem == "float" else float64.TABLE2
    body = table.get(op)
    if body is None:
        return libm(_LIBM[op], x, y)
    return helper(x.fn, op.value, x.type, [x, y], body)


def integer_power(x: Num, y: Num, signed: bool) -> Num:
    """Integer power by repeated squaring, wrapping around.

    A negative exponent gives 1 / x**-y truncated to zero: nothing but for x = 1 and x = -1.
    """
    known = y.value.const
    if isinstance(known, int) and 1 <= known <= 4:
        square = x * x if known > 1 else x
        return {1: x, 2: square, 3: square * x, 4: square * square}[known]
    count = (y < 0).where(y.const(0), y) if signed else y
    power = helper(x.fn, "ipow", x.type, [x, count], _power_loop, inline=False)
    if not signed or (isinstance(known, int) and known >= 0):
        return power
    alternating = (y & 1).ne(0).where(x.const(-1), 1)
    inverse = x.eq(1).where(x.const(1), x.eq(-1).where(alternating, 0))
    return (y < 0).where(inverse, power)


def _power_loop(x: Num, y: Num) -> Num:
    fn, kind = x.fn, x.type
    loop, done = fn.label("loop"), fn.label("done")
    fn.jump(loop)
    fn.start(loop)
    names = [fn.name(), fn.name(), fn.name()]
    base, left, power = (Num(fn, Value(n, kind)) for n in names)
    start = len(fn.lines)
    odd = (left & 1).ne(0)
    product = odd.where(power * base, power)
    squared, rest = base * base, left >> 1
    phis = zip(names, (x, y, x.const(1)), (squared, rest, product), strict=True)
    fn.lines[start:start] = [
        f"  {n} = phi {kind} [ {first.value.text}, %entry ], [ {later.value.text}, %{loop} ]"
        for n, first, later in phis
    ]
    fn.branch(rest.ne(0).any().value, loop, done)
    fn.start(done)
    return product


def zero(type: Type) -> Value:
    """The zero of a type."""
    return const(False if type.elem == "i1" else 0, type)
