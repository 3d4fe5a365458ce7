"""Functions of elements and, element by element, of whole tensors, under numpy's names.

Given scalars (expressions, numbers) a function returns an `Expr`; given at least one `Tensor` it
returns a `Tensor` by broadcasting.  Dtypes follow `expr.promote`.  Transcendental functions of
integers and bool compute in float32; accuracy is the target's and documented there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, overload

from tedsl.expr import build
from tedsl.expr.nodes import Expr, UnaryOp
from tedsl.expr.promote import DTypeLike, Number, Operand
from tedsl.tensor import broadcast
from tedsl.tensor.tensor import Tensor


class UnaryFunction(Protocol):
    """A function of one element or tensor."""

    __name__: str

    @overload
    def __call__(self, x: Expr | Number) -> Expr: ...
    @overload
    def __call__(self, x: Tensor) -> Tensor: ...


class BinaryFunction(Protocol):
    """A function of two elements or tensors."""

    __name__: str

    @overload
    def __call__(self, a: Expr | Number, b: Expr | Number) -> Expr: ...
    @overload
    def __call__(self, a: Tensor, b: Tensor | Expr | Number) -> Tensor: ...
    @overload
    def __call__(self, a: Expr | Number, b: Tensor) -> Tensor: ...


def _apply(function: Callable[..., Expr], operands: tuple[Operand, ...], name: str) -> Any:
    if any(isinstance(each, Tensor) for each in operands):
        return broadcast.elementwise(function, operands, name)
    return function(*operands)


def _unary(op: UnaryOp, doc: str) -> UnaryFunction:
    def element(a: Operand) -> Expr:
        return build.unary(op, a)

    def function(x: Any) -> Any:
        return _apply(element, (x,), op.value)

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = doc
    return function


def _binary(name: str, function: Callable[[Operand, Operand], Expr]) -> BinaryFunction:
    def pair(a: Any, b: Any) -> Any:
        return _apply(function, (a, b), name)

    pair.__name__ = pair.__qualname__ = name
    pair.__doc__ = function.__doc__
    return pair


exp = _unary(UnaryOp.EXP, "e to the power x.")
exp2 = _unary(UnaryOp.EXP2, "2 to the power x.")
expm1 = _unary(UnaryOp.EXPM1, "exp(x) - 1, accurate near 0.")
log = _unary(UnaryOp.LOG, "Natural logarithm; NaN below 0, -inf at 0.")
log2 = _unary(UnaryOp.LOG2, "Logarithm to base 2.")
log10 = _unary(UnaryOp.LOG10, "Logarithm to base 10.")
log1p = _unary(UnaryOp.LOG1P, "log(1 + x), accurate near 0.")
sqrt = _unary(UnaryOp.SQRT, "Square root; NaN below 0.")
rsqrt = _unary(UnaryOp.RSQRT, "1 / sqrt(x).")
tanh = _unary(UnaryOp.TANH, "Hyperbolic tangent.")
sigmoid = _unary(UnaryOp.SIGMOID, "1 / (1 + exp(-x)).")
erf = _unary(UnaryOp.ERF, "The error function.")
sin = _unary(UnaryOp.SIN, "Sine of an angle in radians.")
cos = _unary(UnaryOp.COS, "Cosine of an angle in radians.")
tan = _unary(UnaryOp.TAN, "Tangent of an angle in radians.")
asin = _unary(UnaryOp.ASIN, "Inverse sine; NaN outside -1 .. 1.")
acos = _unary(UnaryOp.ACOS, "Inverse cosine; NaN outside -1 .. 1.")
atan = _unary(UnaryOp.ATAN, "Inverse tangent.")
sinh = _unary(UnaryOp.SINH, "Hyperbolic sine.")
cosh = _unary(UnaryOp.COSH, "Hyperbolic cosine.")
asinh = _unary(UnaryOp.ASINH, "Inverse hyperbolic sine.")
acosh = _unary(UnaryOp.ACOSH, "Inverse hyperbolic cosine; NaN below 1.")
atanh = _unary(UnaryOp.ATANH, "Inverse hyperbolic tangent; NaN outside -1 .. 1.")
floor = _unary(UnaryOp.FLOOR, "Rounded to minus infinity, in x's dtype; an integer is returned.")
ceil = _unary(UnaryOp.CEIL, "Rounded to plus infinity, in x's dtype; an integer is returned.")
round = _unary(UnaryOp.ROUND, "Rounded to nearest, halves to even, in x's dtype.")
trunc = _unary(UnaryOp.TRUNC, "Rounded to zero, in x's dtype; an integer is returned.")
abs = _unary(UnaryOp.ABS, "Absolute value; the lowest signed integer stays as it is.")
sign = _unary(UnaryOp.SIGN, "-1, 0 or 1 in x's dtype; NaN of NaN.")
negative = _unary(UnaryOp.NEG, "-x; wraps on integers.")
isnan = _unary(UnaryOp.ISNAN, "Whether x is NaN, a bool.")
isinf = _unary(UnaryOp.ISINF, "Whether x is inf or -inf, a bool.")
isfinite = _unary(UnaryOp.ISFINITE, "Whether x is neither infinite nor NaN, a bool.")
popcount = _unary(UnaryOp.POPCOUNT, "How many bits of an integer are set, in its dtype.")
bits = _unary(
    UnaryOp.BITS, "The bits of a float32 or float64 as an int32 or int64, and the other way round."
)
bitwise_not = _unary(UnaryOp.NOT, "~x: bitwise on integers, logical on bool.")

add = _binary("add", build.add)
subtract = _binary("subtract", build.sub)
multiply = _binary("multiply", build.mul)
divide = _binary("divide", build.div)
floordiv = _binary("floordiv", build.floordiv)
floormod = _binary("floormod", build.floormod)
truncdiv = _binary("truncdiv", build.truncdiv)
truncmod = _binary("truncmod", build.truncmod)
fmod = _binary("fmod", build.fmod)
power = _binary("power", build.power)
pow = power
atan2 = _binary("atan2", build.atan2)
minimum = _binary("minimum", build.minimum)
maximum = _binary("maximum", build.maximum)
bitwise_and = _binary("bitwise_and", build.bitwise_and)
bitwise_or = _binary("bitwise_or", build.bitwise_or)
bitwise_xor = _binary("bitwise_xor", build.bitwise_xor)
left_shift = _binary("left_shift", build.left_shift)
right_shift = _binary("right_shift", build.right_shift)
equal = _binary("equal", build.eq)
not_equal = _binary("not_equal", build.ne)
less = _binary("less", build.lt)
less_equal = _binary("less_equal", build.le)
greater = _binary("greater", build.gt)
greater_equal = _binary("greater_equal", build.ge)
logical_and = _binary("logical_and", build.logical_and)
logical_or = _binary("logical_or", build.logical_or)


def logical_not(x: Operand) -> Any:
    """Not `x`, a bool or a tensor of them."""
    return _apply(build.logical_not, (x,), "logical_not")


def cast(x: Operand, dtype: DTypeLike) -> Any:
    """`x`, an element or a tensor, as `dtype`; see `Expr.astype`."""
    if isinstance(x, Tensor):
        return broadcast.cast_tensor(x, dtype)
    return build.rounded(x, dtype)


def reinterpret(dtype: DTypeLike, x: Operand) -> Any:
    """The bits of `x`, an element or a tensor, as a value of another type of the same width.

    Args:
        dtype: an integer of the width of a float32, float64 or bfloat16, or such a float of an
            integer; integers of one width are cast.
        x: the value.

    Raises:
        ExprError: types of two widths, bool, float16 or an 8-bit float.
    """

    def element(a: Operand) -> Expr:
        return build.reinterpret(dtype, a)

    return _apply(element, (x,), "reinterpret")


def select(condition: Operand, a: Operand, b: Operand) -> Any:
    """`a` where `condition` holds, else `b`; both are evaluated.  Elements or tensors.

    Raises:
        ExprError: `condition` is not bool.
    """
    return _apply(build.select, (condition, a, b), "select")


def if_then_else(condition: Operand, a: Operand, b: Operand) -> Any:
    """`a` where `condition` holds, else `b`; only the chosen one is evaluated, so that
    `condition` guards its reads.  Elements or tensors.

    Raises:
        ExprError: `condition` is not bool.
    """
    return _apply(build.if_then_else, (condition, a, b), "if_then_else")


def relu(x: Operand) -> Any:
    """max(x, 0) of an element or a tensor; NaN stays NaN."""

    def element(a: Operand) -> Expr:
        return build.maximum(a, 0)

    return _apply(element, (x,), "relu")


def silu(x: Operand) -> Any:
    """x * sigmoid(x), also called swish, of an element or a tensor; in its dtype, float32 for
    integers."""

    def element(a: Operand) -> Expr:
        return build.mul(a, build.unary(UnaryOp.SIGMOID, a))

    return _apply(element, (x,), "silu")


def clip(x: Operand, low: Operand, high: Operand) -> Any:
    """min(max(x, low), high) of elements or tensors."""

    def element(a: Operand, b: Operand, c: Operand) -> Expr:
        return build.minimum(build.maximum(a, b), c)

    return _apply(element, (x, low, high), "clip")


def exp10(x: Operand) -> Any:
    """10 to the power x, an element or a tensor."""

    def element(a: Operand) -> Expr:
        return build.power(10.0, a)

    return _apply(element, (x,), "exp10")


where = select
div = divide
indexdiv = floordiv
indexmod = floormod
nearbyint = round
