"""How a function of elements becomes a value: promotion, broadcasting, one rounding at the end.

Imports `importer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.torch.elements.dtypes import Promotion, constant, is_number, promoted
from tedsl.torch.elements.value import Indices, Shape, Value, broadcast
from tedsl.torch.importer.context import Context
from tedsl.torch.refusals import NotTaken

Element = Callable[..., Expr]


def elementwise(
    context: Context,
    kind: Promotion,
    function: Element,
    operands: Sequence[Any],
    fakes: Sequence[Any],
) -> Value:
    """`function` of the elements of `operands`, values and numbers, as PyTorch promotes them.

    Args:
        context: of the node, which has the shape of the result.
        kind: PyTorch's rule for the types.
        function: from one element per operand, of the computed type, to an element.
        operands: values and numbers.
        fakes: the same as PyTorch's fakes.
    """
    types = promoted(kind, fakes)
    shape = context.shape()
    parts = [_operand(each, shape, types.computed) for each in operands]

    def element(i: Indices) -> Expr:
        made = function(*(part(i) for part in parts))
        return build.rounded(made, types.result)

    work = 1 + sum(each.work for each in operands if isinstance(each, Value))
    return Value(shape, types.result, element, None, work)


def _operand(operand: Any, shape: Shape, dtype: DType) -> Callable[[Indices], Expr]:
    """The elements of one operand, in the type that is computed in."""
    if isinstance(operand, Value):
        spread = broadcast(operand, shape)
        return lambda i: build.cast(spread.element(i), dtype)
    if is_number(operand):
        fixed = constant(operand, dtype)
        return lambda _: fixed
    if isinstance(operand, Expr):
        return lambda _: build.cast(operand, dtype)
    raise NotTaken(f"an operand is {type(operand).__name__}")
