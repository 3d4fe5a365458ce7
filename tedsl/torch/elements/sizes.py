"""Sizes of PyTorch, numbers or symbols, as extents of the language.

A symbol is a `te.size_var`, or the number it has in the call that is compiled for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr, Var
from tedsl.tensor.axis import size_var
from tedsl.torch.elements.value import Shape, Size
from tedsl.torch.lib import torch
from tedsl.torch.refusals import NotTaken


class Sizes:
    """What the symbols of one graph stand for.

    Args:
        given: numbers of symbols, by name; those without are variables of the kernel.
    """

    def __init__(self, given: Mapping[str, int] | None = None) -> None:
        self.given = dict(given or {})
        self.variables: dict[str, Var] = {}

    def size(self, value: Any) -> Size:
        """One extent.

        Raises:
            NotTaken: an expression of sizes that has no form in the language.
        """
        if isinstance(value, int):
            return value
        if isinstance(value, Expr):
            return value
        if isinstance(value, torch.SymInt):
            found = self._expression(value.node.expr)
            return int(found) if isinstance(found, int) else found
        raise NotTaken(f"{type(value).__name__} is no size")

    def shape(self, extents: Iterable[Any]) -> Shape:
        """Several extents."""
        return tuple(self.size(extent) for extent in extents)

    def _expression(self, expr: Any) -> Size:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            name = str(expr)
            if name in self.given:
                return self.given[name]
            if name not in self.variables:
                self.variables[name] = size_var(name, DType.int64)
            return self.variables[name]
        parts = [self._expression(part) for part in expr.args]
        kind = type(expr).__name__
        if kind in ("Add", "Mul"):
            total = parts[0]
            for part in parts[1:]:
                total = total + part if kind == "Add" else total * part
            return total
        if kind in ("FloorDiv", "Mod", "PythonMod", "CleanDiv") and len(parts) == 2:
            return _divided(kind, parts[0], parts[1])
        raise NotTaken(f"a size is a {kind}")


def _divided(kind: str, a: Size, b: Size) -> Size:
    remainder = kind in ("Mod", "PythonMod")
    if isinstance(a, int) and isinstance(b, int):
        return a % b if remainder else a // b
    return build.floormod(a, b) if remainder else build.floordiv(a, b)
