"""TVM's functions by name: `tvm.register_func`, and `call_packed` within `te.extern`.

There a statement is built that calls a function when the kernel runs; here `fcompute` is called
then, and `call_packed` calls the function.  Imports `nd`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tedsl.errors import ExprError
from tedsl.slips import advice
from tedsl.tvm.nd import NDArray

__all__ = ["call_packed", "get_global_func", "register_func"]


def _product(a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False) -> None:
    """A product of matrices into `out`, each transposed before if asked."""
    out[...] = np.matmul(
        np.swapaxes(a, -1, -2) if transa else a, np.swapaxes(b, -1, -2) if transb else b
    )


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"tvm.contrib.{library}.{name}": _product
    for library in ("cblas", "mkl")
    for name in ("matmul", "batch_matmul")
}


def register_func(
    func_name: str | Callable[..., Any], f: Callable[..., Any] | None = None, override: bool = False
) -> Any:
    """Enter a function under a name, or under its own: by a call, or as a decorator.

    Args:
        func_name: the name, or the function.
        f: the function, where it is no decorator.
        override: of no importance: the last function that was entered is the one.
    """
    if not isinstance(func_name, str):
        return register_func(func_name.__name__, func_name)
    if f is None:
        return lambda function: register_func(func_name, function)  # pyright: ignore
    _FUNCTIONS[func_name] = f
    return f


def get_global_func(name: str, allow_missing: bool = False) -> Callable[..., Any] | None:
    """The function that was entered under a name.

    Raises:
        ExprError: there is none; with `allow_missing` it is None.
    """
    if name in _FUNCTIONS or allow_missing:
        return _FUNCTIONS.get(name)
    raise ExprError(
        f"no function is registered as {name!r}",
        subject="get_global_func",
        facts=[("registered", ", ".join(sorted(_FUNCTIONS)) or "none")],
        hint=f"{advice(name, _FUNCTIONS)}; functions of tvm.contrib are not here: register a "
        "Python function by tvm.register_func",
    )


def call_packed(name: str, *args: Any) -> None:
    """Call a registered function now: `fcompute` of `te.extern` runs when the kernel does.

    Args:
        name: what it was registered as, at the time of the call.
        args: what it is passed; arrays have TVM's methods (`asnumpy`, `copyto`).

    Raises:
        ExprError: there is no such function.
    """
    function: Any = get_global_func(name)
    function(*(each.view(NDArray) if isinstance(each, np.ndarray) else each for each in args))
