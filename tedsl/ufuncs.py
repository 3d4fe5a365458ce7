"""NumPy's functions on what is being defined: `np.exp(x)` is `te.exp(x)`, `np.float32(2) * x` is
`x.__rmul__(np.float32(2))`.  Imports `errors` and `slips`, and finds `te`'s names by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from tedsl.errors import ExprError
from tedsl.slips import TENSOR, advice, also

OPERATORS = {
    **{"add": "add", "subtract": "sub", "multiply": "mul", "power": "pow", "matmul": "matmul"},
    **{"divide": "truediv", "floor_divide": "floordiv", "remainder": "mod"},
    **{"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"},
    **{"left_shift": "lshift", "right_shift": "rshift"},
}
"""Python's operator for NumPy's function."""
TURNED = {"less": "gt", "less_equal": "ge", "greater": "lt", "greater_equal": "le"}
"""The operator with its operands exchanged."""
EQUALITIES = {"equal": "eq", "not_equal": "ne"}
NAMES = {
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    **{"absolute": "abs", "rint": "round", "invert": "bitwise_not", "bitwise_count": "popcount"},
}
"""What is called otherwise here."""
_OF_NUMPY = {
    **TENSOR,
    "dot": "write x @ y, or te.sum over a te.reduce_axis",
    "where": "write te.select(condition, a, b), or te.if_then_else, which computes only one",
}
"""What stands for a function of NumPy that is none of elements."""


def applied(ufunc: Any, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a function of NumPy means of expressions and tensors.

    Args:
        ufunc: the function.
        method: how it is called; only `__call__` has a meaning here.
        inputs: its operands, of which one at least is an expression or a tensor.
        options: `out=`, `where=` and so on, none of which has one.

    Raises:
        ExprError: there is no such function here, or an operand that is no number, expression or
            tensor; it is a TypeError, too.
    """
    name: str = ufunc.__name__
    inputs = [each[()] if _is_array(each) and not each.ndim else each for each in inputs]
    if method == "__call__" and not options:
        found = _operator(name, inputs)
        if found is not NotImplemented:
            return found
        function: Any = getattr(importlib.import_module("tedsl"), NAMES.get(name, name), None)
        if callable(function) and not any(map(_is_array, inputs)):
            return function(*inputs)
    raise also(ExprError, TypeError)(
        f"np.{name} is given {', '.join(type(each).__name__ for each in inputs)}",
        facts=[("allowed", "functions of NumPy that te has too, of tensors, expressions, numbers")],
        hint="pass arrays to the kernel; for an array in a definition, use te.placeholder",
    )


def called(name: str, value: object) -> Any:
    """`te`'s function of that name, of one operand."""
    return getattr(importlib.import_module("tedsl"), name)(value)


def refused(value: object, name: str) -> Exception:
    """Why NumPy's function `name` has no meaning of a tensor or an expression."""
    te: Any = importlib.import_module("tedsl")
    known = [*(f"te.{each}" for each in te.__all__), *(f"te.nn.{each}" for each in te.nn.__all__)]
    other = "write it as te.compute(shape, lambda i, j: ...)"
    hint = _OF_NUMPY.get(name) or advice(name, known, otherwise=other)
    return also(ExprError, TypeError)(
        f"{value!r} is given to np.{name}, and has no values yet", hint=hint
    )


def _class(value: object) -> Any:
    return type(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__") and hasattr(value, "resize")


def _operator(name: str, inputs: Sequence[Any]) -> Any:
    """The operator of that name, asked of the operand that knows it."""
    if len(inputs) != 2:
        return NotImplemented
    first, second = inputs
    ours = hasattr(_class(first), "__array_ufunc__") and not hasattr(first, "__array_interface__")
    if name in OPERATORS:
        call = f"__{OPERATORS[name]}__" if ours else f"__r{OPERATORS[name]}__"
    elif name in TURNED or name in EQUALITIES:
        call = f"__{TURNED.get(name) or EQUALITIES[name]}__"
        if ours:
            return NotImplemented
    else:
        return NotImplemented
    holder, other = (first, second) if ours else (second, first)
    method = getattr(_class(holder), call, None)
    return NotImplemented if method is None else method(holder, other)
