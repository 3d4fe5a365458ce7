"""TOPI's module `utils`: what its schedules ask of shapes, and how they walk over operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod as product
from typing import Any

import numpy as np

from tedsl.errors import ExprError
from tedsl.expr.nodes import Const, Expr
from tedsl.tensor import math as functions
from tedsl.tensor import reduce
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor
from tedsl.tvm.topi.tag import is_injective

__all__ = [
    "const_matrix",
    "const_vector",
    "equal_const_int",
    "get_const_float",
    "get_const_int",
    "get_const_tuple",
    "get_max_power2_factor",
    "get_pad_tuple",
    "get_pad_tuple1d",
    "get_pad_tuple3d",
    "is_empty_shape",
    "prod",
    "ravel_index",
    "simplify",
    "traverse_inline",
    "unravel_index",
]

math: Any = functions
Ints = int | Sequence[int]
Pads = Ints | str


def get_const_int(expr: Any) -> int:
    """The number that a size is.

    Raises:
        ExprError: it is known at the call only; a ValueError too.
    """
    return int(expr)


def listed(given: Ints, count: int) -> list[int]:
    """One number for each dimension."""
    return [given] * count if isinstance(given, int) else [get_const_int(n) for n in given]


def get_pad_tuple(padding: Pads, kernel: Sequence[Any]) -> tuple[int, ...]:
    """How much is put before each dimension, then after: of a number for all, one for each, one for
    each side, `"VALID"` or `"SAME"`."""
    rank = len(kernel)
    if isinstance(padding, str):
        words = {"VALID": [0] * rank, "SAME": [get_const_int(n) - 1 for n in kernel]}
        if padding not in words:
            raise ExprError(
                f"{padding!r} is no padding",
                subject="topi.nn",
                facts=[("allowed", "numbers, 'VALID', 'SAME'")],
                hint="write one of those",
            )
        total = words[padding]
        return (*((n + 1) // 2 for n in total), *(n - (n + 1) // 2 for n in total))
    given = listed(padding, rank)
    return (*given, *given) if len(given) == rank else tuple(given)


get_pad_tuple1d = get_pad_tuple3d = get_pad_tuple


def ravel_index(indices: Sequence[Any], shape: Sequence[Any]) -> Any:
    """The place of an element in row-major order."""
    place: Any = 0
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    return place


def unravel_index(idx: Any, shape: Sequence[Any]) -> list[Any]:
    """The indices of the element at a place in row-major order."""
    found: list[Any] = []
    for extent in reversed(shape):
        found.insert(0, idx % extent)
        idx = idx // extent
    return found


def const_matrix(matrix: Any, name: str = "const_matrix") -> Tensor:
    """A matrix of known numbers, as a stage that is inlined where it is read at constants."""
    values = np.asarray(matrix)
    dtype, places = str(values.dtype), list(np.ndindex(*values.shape))

    def element(*i: Any) -> Any:
        value: Any = math.cast(values[places[0]].item(), dtype)
        for place in places[1:]:
            here = reduce.all(*(a == n for a, n in zip(i, place, strict=True)))
            value = math.select(here, math.cast(values[place].item(), dtype), value)
        return value

    return compute(values.shape, element, name=name, tag="const_matrix")


def const_vector(vector: Any, name: str = "const_vector") -> Tensor:
    """The same of a vector."""
    return const_matrix(vector, name)


def get_max_power2_factor(n: Any, max_value: int | None = None) -> int:
    """The greatest power of 2 that divides a number, at most `max_value`."""
    number = get_const_int(n)
    most = number & -number
    while max_value is not None and most > max_value:
        most //= 2
    return most


def is_empty_shape(shape: Iterable[Any]) -> bool:
    """Whether a tensor has no elements."""
    return any(equal_const_int(n, 0) for n in shape)


def get_const_tuple(in_tuple: Iterable[Any]) -> tuple[Any, ...]:
    """The numbers that sizes are; those that are known at the call only, as they are."""
    return tuple(int(n) if isinstance(n, (int, Const)) else n for n in in_tuple)


def get_const_float(expr: Any) -> float:
    """The number that a constant is."""
    return float(expr.value if isinstance(expr, Const) else expr)


def simplify(expr: Any) -> Any:
    """The number that a constant is, or the expression, which `te.lower` simplifies."""
    return int(expr) if isinstance(expr, Const) and expr.dtype.is_integer else expr


def equal_const_int(expr: Any, value: int) -> bool:
    """Whether a size is known to be a number."""
    return isinstance(expr, (int, Const)) and int(expr) == value


def prod(x: Iterable[Any]) -> Expr | int:
    """The product of sizes."""
    return product(x)


def traverse_inline(s: Any, final_op: Operation, callback: Callable[[Operation], object]) -> None:
    """Call something for every operation from the inputs to `final_op`, and inline before it those
    whose tag is that of an injective one."""
    seen: dict[Operation, None] = {}

    def visit(op: Operation) -> None:
        if op in seen:
            return
        seen[op] = None
        if isinstance(op, ComputeOp) and is_injective(op.tag) and op not in s.outputs:
            s[op].compute_inline()
        for tensor in op.input_tensors:
            visit(tensor.op)
        callback(op)

    visit(final_op)
