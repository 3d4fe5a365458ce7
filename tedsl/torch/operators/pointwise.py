"""Functions of one element, comparisons, choices and bit operations.  Imports `elementwise`."""

from __future__ import annotations

import math
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr, UnaryOp
from tedsl.tensor import math as te
from tedsl.torch.elements.dtypes import Promotion
from tedsl.torch.elements.value import Indices, Value, broadcast
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.operators.elementwise import Element, elementwise
from tedsl.torch.refusals import NotTaken

DEFAULT, FLOAT, BOOL = Promotion.DEFAULT, Promotion.INT_TO_FLOAT, Promotion.ALWAYS_BOOL
_LN2, _LN10 = math.log(2.0), math.log(10.0)


def _of(op: UnaryOp) -> Element:
    def element(x: Expr) -> Expr:
        return build.unary(op, x)

    return element


def _rounding(op: UnaryOp) -> Element:
    """Rounding leaves integers and bools as they are."""

    def element(x: Expr) -> Expr:
        return build.unary(op, x) if x.dtype.is_float else x

    return element


def _sign(x: Expr) -> Expr:
    """PyTorch's sign of NaN is 0."""
    if x.dtype.is_bool:
        return x
    if not x.dtype.is_float:
        return te.sign(x)
    positive, negative = build.gt(x, 0.0), build.lt(x, 0.0)
    one, none = build.const(1.0, x.dtype), build.const(0.0, x.dtype)
    return build.select(positive, one, build.select(negative, build.neg(one), none))


def _relu(x: Expr) -> Expr:
    return build.maximum(x, build.const(0, x.dtype))


def _reciprocal(x: Expr) -> Expr:
    return build.div(build.const(1, x.dtype), x)


def _abs(x: Expr) -> Expr:
    return x if x.dtype.is_bool else te.abs(x)


def _square(x: Expr) -> Expr:
    return build.mul(x, x)


def _logical_not(x: Expr) -> Expr:
    return build.logical_not(build.cast(x, DType.bool))


UNARY: dict[str, tuple[Promotion, Element]] = {
    **{
        name: (FLOAT, _of(op))
        for name, op in {
            "acos": UnaryOp.ACOS,
            "acosh": UnaryOp.ACOSH,
            "asin": UnaryOp.ASIN,
            "asinh": UnaryOp.ASINH,
            "atan": UnaryOp.ATAN,
            "atanh": UnaryOp.ATANH,
            "cos": UnaryOp.COS,
            "cosh": UnaryOp.COSH,
            "erf": UnaryOp.ERF,
            "exp": UnaryOp.EXP,
            "exp2": UnaryOp.EXP2,
            "expm1": UnaryOp.EXPM1,
            "log": UnaryOp.LOG,
            "log10": UnaryOp.LOG10,
            "log1p": UnaryOp.LOG1P,
            "log2": UnaryOp.LOG2,
            "rsqrt": UnaryOp.RSQRT,
            "sigmoid": UnaryOp.SIGMOID,
            "sin": UnaryOp.SIN,
            "sinh": UnaryOp.SINH,
            "sqrt": UnaryOp.SQRT,
            "tan": UnaryOp.TAN,
            "tanh": UnaryOp.TANH,
        }.items()
    },
    **{
        name: (DEFAULT, _rounding(op))
        for name, op in {
            "ceil": UnaryOp.CEIL,
            "floor": UnaryOp.FLOOR,
            "round": UnaryOp.ROUND,
            "trunc": UnaryOp.TRUNC,
        }.items()
    },
    "abs": (DEFAULT, _abs),
    "neg": (DEFAULT, build.neg),
    "relu": (DEFAULT, _relu),
    "reciprocal": (FLOAT, _reciprocal),
    "sign": (DEFAULT, _sign),
    "square": (DEFAULT, _square),
    "isnan": (BOOL, te.isnan),
    "isinf": (BOOL, te.isinf),
    "logical_not": (BOOL, _logical_not),
    "bitwise_not": (DEFAULT, build.invert),
}


def _register_unary(name: str, kind: Promotion, function: Element) -> None:
    @takes(Family.POINTWISE, getattr(aten, name).default)
    def convert(context: Context, x: Value, *_: Any) -> Value:
        return elementwise(context, kind, function, [x], context.fakes[:1])

    del convert


for _name, (_kind, _function) in UNARY.items():
    _register_unary(_name, _kind, _function)


def _both(function: Element) -> Element:
    """A logical operator: anything is true that is not 0."""

    def element(a: Expr, b: Expr) -> Expr:
        return function(build.cast(a, DType.bool), build.cast(b, DType.bool))

    return element


COMPARISONS: dict[str, Element] = {
    "eq": build.eq,
    "ne": build.ne,
    "lt": build.lt,
    "le": build.le,
    "gt": build.gt,
    "ge": build.ge,
}
LOGICAL: dict[str, Element] = {
    "logical_and": _both(build.logical_and),
    "logical_or": _both(build.logical_or),
    "logical_xor": _both(build.bitwise_xor),
}
BITWISE: dict[str, Element] = {
    "bitwise_and": build.bitwise_and,
    "bitwise_or": build.bitwise_or,
    "bitwise_xor": build.bitwise_xor,
}


def _register_binary(targets: list[Any], kind: Promotion, function: Element) -> None:
    @takes(Family.POINTWISE, *targets)
    def convert(context: Context, a: Any, b: Any, *_: Any) -> Value:
        return elementwise(context, kind, function, [a, b], context.fakes[:2])

    del convert


for _name, _function in COMPARISONS.items():
    _packet = getattr(aten, _name)
    _register_binary([_packet.Tensor, _packet.Scalar], BOOL, _function)
for _name, _function in LOGICAL.items():
    _register_binary([getattr(aten, _name).default], BOOL, _function)
for _name, _function in BITWISE.items():
    _packet = getattr(aten, _name)
    _register_binary([_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor], DEFAULT, _function)


def _first(a: Expr, b: Expr) -> Expr:
    return a


@takes(Family.POINTWISE, aten.where.self)
def where(context: Context, condition: Value, a: Value, b: Value) -> Value:
    """Chosen element by element; a condition that is no bool is one where it is not 0."""
    if not condition.dtype.is_bool:
        raise NotTaken("the condition is no bool")
    spread = broadcast(condition, context.shape())
    chosen = elementwise(context, Promotion.NO_OPMATH, _first, [a, b], context.fakes[1:3])
    sides = [broadcast(each, chosen.shape) for each in (a, b)]

    def element(i: Indices) -> Expr:
        x, y = (build.cast(side[i], chosen.dtype) for side in sides)
        return build.select(spread[i], x, y)

    work = 1 + condition.work + a.work + b.work
    return Value(chosen.shape, chosen.dtype, element, None, work)


def _clamped(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """NaN of any of the three is NaN; a low end above the high one gives the high one."""
    if low is not None:
        x = build.maximum(x, low)
    return x if high is None else build.minimum(x, high)


@takes(Family.POINTWISE, aten.clamp.default, aten.clamp.Tensor)
def clamp(context: Context, x: Value, low: Any, high: Any) -> Value:
    """Between two ends, numbers or tensors, of which one may be absent."""
    given = [(each, fake) for each, fake in zip((low, high), context.fakes[1:3], strict=True)]
    present = [(each, fake) for each, fake in given if each is not None]

    def between(value: Expr, *ends: Expr) -> Expr:
        rest = list(ends)
        first = rest.pop(0) if low is not None else None
        return _clamped(value, first, rest.pop(0) if high is not None else None)

    return elementwise(
        context,
        DEFAULT,
        between,
        [x, *(each for each, _ in present)],
        [context.fakes[0], *(fake for _, fake in present)],
    )


@takes(Family.POINTWISE, aten.hardtanh.default)
def hardtanh(context: Context, x: Value, low: Any, high: Any) -> Value:
    """Between two numbers, which do not change the type."""
    ends = [int(end) if x.dtype.is_integer else end for end in (low, high)]
    return elementwise(context, DEFAULT, _clamped, [x, *ends], [context.fakes[0], *ends])


@takes(Family.POINTWISE, aten.round.decimals, limits="floats")
def round_decimals(context: Context, x: Value, decimals: int) -> Value:
    """To a number of digits, as PyTorch scales them."""
    if not x.dtype.is_float:
        raise NotTaken("digits of integers")

    def element(a: Expr) -> Expr:
        scale = build.const(10.0 ** abs(decimals), a.dtype)
        if decimals < 0:
            return te.round(build.div(a, scale)) * scale
        return build.div(te.round(a * scale), scale)

    return elementwise(context, DEFAULT, element, [x], context.fakes[:1])


@takes(Family.POINTWISE, aten.angle.default)
def angle(context: Context, x: Value) -> Value:
    """Of real numbers: pi below 0, else 0."""

    def element(a: Expr) -> Expr:
        pi, none = build.const(math.pi, a.dtype), build.const(0.0, a.dtype)
        found = build.select(build.lt(a, 0.0), pi, none)
        return build.select(te.isnan(a), a, found)

    return elementwise(context, FLOAT, element, [x], context.fakes[:1])


@takes(Family.POINTWISE, aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(context: Context, x: Value, low: Any) -> Value:
    """Not below an end."""
    return elementwise(context, DEFAULT, build.maximum, [x, low], context.fakes[:2])


@takes(Family.POINTWISE, aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(context: Context, x: Value, high: Any) -> Value:
    """Not above an end."""
    return elementwise(context, DEFAULT, build.minimum, [x, high], context.fakes[:2])


@takes(Family.POINTWISE, aten.gelu.default)
def gelu(context: Context, x: Value, approximate: str) -> Value:
    """Both forms, in the order of operations of PyTorch's own kernels."""

    def exact(a: Expr) -> Expr:
        return a * 0.5 * (1.0 + te.erf(a * math.sqrt(0.5)))

    def tanh(a: Expr) -> Expr:
        inner = math.sqrt(2.0 / math.pi) * (a + 0.044715 * (a * a * a))
        return 0.5 * a * (1.0 + te.tanh(inner))

    function = tanh if approximate == "tanh" else exact
    return elementwise(context, DEFAULT, function, [x], context.fakes[:1])


@takes(Family.POINTWISE, aten.leaky_relu.default)
def leaky_relu(context: Context, x: Value, slope: float) -> Value:
    """`x` above 0, else a part of it."""

    def element(a: Expr, part: Expr) -> Expr:
        return build.select(build.gt(a, build.const(0, a.dtype)), a, a * part)

    return elementwise(context, DEFAULT, element, [x, slope], [context.fakes[0], slope])


@takes(Family.POINTWISE, aten.elu.default)
def elu(context: Context, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    """Exponential below 0."""

    def element(a: Expr) -> Expr:
        below = te.expm1(a * float(input_scale)) * (float(alpha) * float(scale))
        return build.select(build.gt(a, 0.0), a * float(scale), below)

    return elementwise(context, DEFAULT, element, [x], context.fakes[:1])


@takes(Family.POINTWISE, aten.silu.default)
def silu(context: Context, x: Value) -> Value:
    """`x * sigmoid(x)`, as PyTorch divides it."""

    def element(a: Expr) -> Expr:
        return build.div(a, 1.0 + te.exp(build.neg(a)))

    return elementwise(context, DEFAULT, element, [x], context.fakes[:1])
