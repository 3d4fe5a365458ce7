"""TOPI's module `utils`: what its schedules ask of shapes, and how they walk over operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod as product
from typing import Any

from tedsl.errors import ExprError
from tedsl.expr.nodes import Const, Expr
from tedsl.tensor.tensor import ComputeOp, Operation
from tedsl.tvm.topi.tag import is_injective

__all__ = [
    "equal_const_int",
    "get_const_float",
    "get_const_int",
    "get_const_tuple",
    "get_pad_tuple",
    "prod",
    "simplify",
    "traverse_inline",
]

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
