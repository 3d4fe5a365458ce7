"""A map of indices as the argument of a primitive: `lambda i, j: (i // 4, j, i % 4)` as data.

Imports `expr`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.expr.visit import substitute, variables
from tedsl.scheduling.plan.labels import identifier, unique_name


@dataclass(frozen=True, slots=True, eq=False)
class IndexMap:
    """`indices` over `axes` and runtime sizes."""

    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]

    def parameters(self) -> tuple[str, ...]:
        """A name for each axis, different from each other and from those of sizes."""
        taken = {v.name for v in variables(*self.indices) if isinstance(v, Var)}
        found: list[str] = []
        for axis in self.axes:
            found.append(unique_name(identifier(axis.name), taken))
            taken.add(found[-1])
        return tuple(found)

    def over_parameters(self) -> tuple[Expr, ...]:
        """The indices over variables of these names."""
        names = zip(self.axes, self.parameters(), strict=True)
        values: dict[Expr, Expr] = {axis: Var(name, axis.dtype) for axis, name in names}
        return tuple(substitute(index, values) for index in self.indices)

    def __str__(self) -> str:
        inside = ", ".join(str(index) for index in self.over_parameters())
        comma = "," if len(self.indices) == 1 else ""
        return f"lambda {', '.join(self.parameters())}: ({inside}{comma})"
