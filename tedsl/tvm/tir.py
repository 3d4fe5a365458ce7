"""TVM's module `tir`, as far as scripts over tensors take names from it: those of `te`."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from tedsl.expr.nodes import Axis, Expr, Reduce, Var

_SPELT = {
    "Select": "select",
    "Max": "max",
    "Min": "min",
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "truncdiv",
    "Mod": "truncmod",
    "FloorDiv": "floordiv",
    "FloorMod": "floormod",
    "And": "logical_and",
    "Or": "logical_or",
    "Not": "logical_not",
    "EQ": "equal",
    "NE": "not_equal",
    "LT": "less",
    "LE": "less_equal",
    "GT": "greater",
    "GE": "greater_equal",
    "SizeVar": "size_var",
}
IterVar = Axis
PrimExpr = Expr

__all__ = [
    "Cast",
    "FloatImm",
    "IntImm",
    "IterVar",
    "PrimExpr",
    "Reduce",
    "StringImm",
    "Var",
    "decl_buffer",
]


def Cast(dtype: Any, value: Any) -> Any:
    """`te.cast(value, dtype)`."""
    return _te().cast(value, dtype)


def IntImm(dtype: Any, value: int) -> Expr:
    """`te.const(value, dtype)`."""
    return _te().const(value, dtype)


FloatImm = IntImm


def decl_buffer(shape: Any, dtype: Any = None, name: str = "buffer", **options: Any) -> Any:
    """What TVM's scripts give to `binds=` of `te.decl_tensor_intrin`, where nothing is read of it:
    an implementation is always passed pointers and strides."""
    return SimpleNamespace(shape=shape, dtype=dtype, name=name, **options)


def StringImm(value: str) -> str:
    """The text itself."""
    return value


def _te() -> Any:
    return importlib.import_module("tedsl")


def __getattr__(name: str) -> Any:
    """The name in `te`, under its spelling there."""
    if name.startswith("__"):
        raise AttributeError(f"module 'tedsl.tvm.tir' has no attribute {name!r}")
    return getattr(_te(), _SPELT.get(name, name))
