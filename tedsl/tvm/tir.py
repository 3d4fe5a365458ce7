"""TVM's module `tir`, as far as scripts over tensors take names from it: those of `te`, and classes
of expressions, which `isinstance` knows and a call builds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, MutableSequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import nodes, visit
from tedsl.expr.build import as_expr
from tedsl.expr.nodes import Axis, BinaryOp, CompareOp, Expr, Reduce, UnaryOp
from tedsl.ir.nodes import Module
from tedsl.slips import no_attribute
from tedsl.tensor import math
from tedsl.tvm.bits import clz, copysign, nextafter
from tedsl.tvm.modules import of_te
from tedsl.tvm.packed import call_packed

_Holds = Callable[[Any], bool]
_Builds = Callable[..., Any]


class Kind(type):
    """A class of TVM's expressions, of which no object here is an instance."""

    def __new__(mcs, name: str, builds: str | _Builds, holds: _Holds) -> Kind:
        return super().__new__(mcs, name, (), {"__doc__": f"TVM's `tir.{name}`."})

    def __init__(cls, name: str, builds: str | _Builds, holds: _Holds) -> None:
        super().__init__(name, (), {})
        cls.builds, cls.holds = builds, holds

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.holds(instance)

    def __call__(cls, *args: Any, **named: Any) -> Any:
        builds = cls.builds
        return (getattr(_te(), builds) if isinstance(builds, str) else builds)(*args, **named)


def _operator(value: Any) -> Any:
    return value.op if isinstance(value, (nodes.Binary, nodes.Compare, nodes.Unary)) else None


def _by_operator(op: BinaryOp | CompareOp | UnaryOp, logical: bool = False) -> _Holds:
    return lambda value: _operator(value) is op and (not logical or value.dtype is DType.bool)


def _is_float(value: Any) -> bool:
    return isinstance(value, nodes.Const) and value.dtype.is_float


def _const(dtype: Any, value: Any) -> Any:
    return _te().const(value, dtype)


def _cast(dtype: Any, value: Any) -> Any:
    return _te().cast(value, dtype)


def _load(producer: Any, indices: Any) -> Any:
    return producer(*indices)


_OPERATORS: dict[str, tuple[str, BinaryOp | CompareOp]] = {
    "Add": ("add", BinaryOp.ADD),
    "Sub": ("subtract", BinaryOp.SUB),
    "Mul": ("multiply", BinaryOp.MUL),
    "Mod": ("truncmod", BinaryOp.TRUNCMOD),
    "FloorDiv": ("floordiv", BinaryOp.FLOORDIV),
    "FloorMod": ("floormod", BinaryOp.FLOORMOD),
    "Max": ("max", BinaryOp.MAX),
    "Min": ("min", BinaryOp.MIN),
    "EQ": ("equal", CompareOp.EQ),
    "NE": ("not_equal", CompareOp.NE),
    "LT": ("less", CompareOp.LT),
    "LE": ("less_equal", CompareOp.LE),
    "GT": ("greater", CompareOp.GT),
    "GE": ("greater_equal", CompareOp.GE),
}
_FUNCTIONS = {*UnaryOp, BinaryOp.POW, BinaryOp.ATAN2} - {UnaryOp.NOT}
_KINDS: dict[str, tuple[str | _Builds, _Holds]] = {
    **{name: (build, _by_operator(op)) for name, (build, op) in _OPERATORS.items()},
    "And": ("logical_and", _by_operator(BinaryOp.AND, logical=True)),
    "Or": ("logical_or", _by_operator(BinaryOp.OR, logical=True)),
    "Not": ("logical_not", _by_operator(UnaryOp.NOT, logical=True)),
    "Div": ("truncdiv", lambda value: _operator(value) in (BinaryOp.TRUNCDIV, BinaryOp.DIV)),
    "Select": ("select", lambda value: isinstance(value, nodes.Select)),
    "Var": ("var", lambda value: isinstance(value, (nodes.Var, Axis))),
    "SizeVar": ("size_var", lambda value: isinstance(value, nodes.Var) and value.lower is not None),
    "ProducerLoad": (
        _load,
        lambda value: isinstance(value, nodes.TensorRead),
    ),
    "Cast": (_cast, lambda v: isinstance(v, nodes.Cast)),
    "IntImm": (
        _const,
        lambda value: isinstance(value, nodes.Const) and not _is_float(value),
    ),
    "FloatImm": (_const, _is_float),
    "StringImm": (str, lambda value: isinstance(value, str)),
    "Call": (
        "call_intrin",
        lambda value: isinstance(value, nodes.IfThenElse) or _operator(value) in _FUNCTIONS,
    ),
}
_OF_C = {"pow": "power", "fabs": "abs", "fmax": "maximum", "fmin": "minimum", "max": "maximum"}
_LOOPS = "the loops of te.lower are nodes of tedsl.ir.nodes; print(te.lower(s)) shows them"
_STATEMENTS = {
    **dict.fromkeys(("For", "Block", "Store", "BufferStore", "Evaluate", "AttrStmt"), _LOOPS),
    **dict.fromkeys(("Allocate", "SeqStmt", "Stmt"), _LOOPS),
    "IfThenElse": _LOOPS + "; te.if_then_else is the expression",
    "ir_builder": "loops of ir_builder are te.compute or te.scan; code of others te.extern",
    "transform": "te.build and te.lower choose the passes; te.lower(s, dump=print) shows them",
    "analysis": "te.lower verifies what it makes after each pass",
}
IterVar = Axis
PrimExpr = Expr

PrimFunc = Module
Buffer = np.ndarray
"""What functions of `te.extern` are passed."""

__all__ = [
    "Buffer",
    "IterVar",
    "PrimExpr",
    "PrimFunc",
    "Reduce",
    "call_packed",
    "clz",
    "copysign",
    "decl_buffer",
    "nextafter",
]
__path__: MutableSequence[str] = []
_FILES = ("buffer", "expr", "function", "op", "stmt")
"""TVM's files, which are one here: `tir.expr` has the names of `tir`."""


def decl_buffer(shape: Any, dtype: Any = None, name: str = "buffer", **options: Any) -> Any:
    """What TVM's scripts give to `binds=` of `te.decl_tensor_intrin`, where nothing is read of it:
    an implementation is always passed pointers and strides."""
    return SimpleNamespace(shape=shape, dtype=dtype, name=name, **options)


def call_pure_extern(dtype: Any, func_name: str, *args: Any) -> Any:
    """A function of C or CUDA, `"__expf"` or `"powf"`, as the one of `te` that it is.

    Raises:
        ExprError: `te` has none.
    """
    short = func_name.rpartition(".")[2].removeprefix("__")
    names = [_OF_C.get(each, each) for each in (short, short.removesuffix("f"))]
    found = next((each for each in names if hasattr(math, each)), None)
    if found is None:
        raise ExprError(
            f"te has no function {func_name!r}",
            subject="call_pure_extern",
            hint="write it of those of te; code of others comes by te.decl_tensor_intrin with "
            "te.llvm_function and te.triton_snippet, or by te.extern",
        )
    return _cast(dtype, getattr(math, found)(*args))


call_intrin = call_pure_extern


def likely(cond: Any) -> Any:
    """The condition: what is likely, LLVM and Triton find out."""
    return cond


def hypot(x1: Any, x2: Any) -> Any:
    """The square root of the sum of two squares."""
    return _te().sqrt(x1 * x1 + x2 * x2)


def ldexp(x1: Any, x2: Any) -> Any:
    """A number times a power of 2."""
    return x1 * _te().exp2(_cast(x1.dtype, x2))


def post_order_visit(node: Any, fvisit: Callable[[Any], object]) -> None:
    """Call a function for every node of an expression, children first."""
    _whole(node)
    for each in reversed(list(visit.walk(node))):
        fvisit(each)


def substitute(node: Any, vmap: Any) -> Any:
    """An expression with variables replaced."""
    _whole(node)
    return visit.substitute(node, {key: as_expr(value) for key, value in vmap.items()})


def _whole(node: object) -> None:
    if not isinstance(node, Expr):
        raise ExprError(
            f"{type(node).__name__} is no expression", subject="tir.stmt_functor", hint=_LOOPS
        )


stmt_functor = SimpleNamespace(post_order_visit=post_order_visit, substitute=substitute)


def _te() -> Any:
    return importlib.import_module("tedsl")


def __getattr__(name: str) -> Any:
    """A class of expressions, or the name in `te`."""
    if name in _KINDS:
        return globals().setdefault(name, Kind(name, *_KINDS[name]))
    if name in _FILES:
        return sys.modules[__name__]
    if name in _STATEMENTS:
        raise no_attribute("tvm.tir", name, tuple, _STATEMENTS)
    return of_te(name)
