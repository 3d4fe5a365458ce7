"""How often the statements of a kernel run, when bounds and conditions depend on outer loops.

A loop on which nothing inside depends multiplies; one on which a bound or a condition depends is
gone through, all its iterations at once in arrays.  Imports `expr`, `ir` and numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tedsl.cost.sampled_indices import Points, Values
from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.expr.visit import walk
from tedsl.ir.nodes import Finish, For, Guard, Stmt
from tedsl.ir.visit import sub_stmts

MOST = 1 << 21
"""Iterations that are gone through; of more, so many that are spread evenly."""

Weights: TypeAlias = NDArray[np.float64]


@dataclass(slots=True)
class Count:
    """How often a statement is come to, and how often what is directly inside it runs."""

    entered: float = 0.0
    inside: float = 0.0

    @property
    def share(self) -> float:
        """The mean of runs inside for each time: the trips of a loop, the share of a guard."""
        return self.inside / self.entered if self.entered else 0.0


class Counts:
    """Counts of every statement of a body, by the statement's identity.

    Args:
        body: of a kernel.
        values: of the runtime sizes; one that is an array stands for as many launches, of which the
            counts are the sums.
        most: iterations that are gone through at once.
    """

    def __init__(self, body: Stmt, values: Mapping[Expr, Values], most: int = MOST) -> None:
        self.most = most
        self._found: dict[int, Count] = {}
        self._deciding: dict[int, frozenset[Expr]] = {}
        self._decide(body)
        arrays = {expr: value for expr, value in values.items() if isinstance(value, np.ndarray)}
        launches = max((len(value) for value in arrays.values()), default=1)
        self._visit(body, dict(values), np.ones(launches))

    def __getitem__(self, stmt: Stmt) -> Count:
        return self._found.get(id(stmt), Count())

    def _decide(self, stmt: Stmt) -> frozenset[Expr]:
        """Axes and variables that decide what runs inside a statement."""
        found: frozenset[Expr] = frozenset()
        for inner in sub_stmts(stmt):
            found |= self._decide(inner)
        match stmt:
            case For(start=start, end=end):
                self._deciding[id(stmt)] = found
                found |= _free(start, end)
            case Guard(condition=decides) | Finish(count=decides):
                found |= _free(decides)
            case _:
                pass
        return found

    def _visit(self, stmt: Stmt, values: Mapping[Expr, Values], weights: Weights) -> None:
        count = self._found.setdefault(id(stmt), Count())
        count.entered += float(weights.sum())
        match stmt:
            case For():
                values, weights = self._iterations(stmt, values, weights)
            case Guard(condition=condition):
                if _free(condition) <= values.keys():
                    weights = weights * np.asarray(Points(values).value(condition), np.float64)
            case Finish(count=programs):  # one of them does it: a share of it is each one's
                weights = weights / np.maximum(Points(values).value(programs), 1)
            case _:
                pass
        count.inside += float(weights.sum())
        for inner in sub_stmts(stmt):
            self._visit(inner, values, weights)

    def _iterations(
        self, loop: For, values: Mapping[Expr, Values], weights: Weights
    ) -> tuple[Mapping[Expr, Values], Weights]:
        """The points inside a loop: one for each iteration where that makes a difference."""
        points = Points(values)
        start = np.broadcast_to(np.asarray(points.value(loop.start), np.int64), weights.shape)
        end = np.broadcast_to(np.asarray(points.value(loop.end), np.int64), weights.shape)
        trips = np.maximum(end - start, 0)
        if loop.axis not in self._deciding[id(loop)]:
            return values, weights * trips
        ends = np.cumsum(trips)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(min(total, self.most), dtype=np.int64)
        if total > self.most:
            places = places * total // self.most
        outer = np.searchsorted(ends, places, side="right")
        inside = {
            expr: value[outer] if isinstance(value, np.ndarray) and value.ndim else value
            for expr, value in values.items()
        }
        inside[loop.axis] = start[outer] + places - (ends - trips)[outer]
        scale = total / len(places) if total else 0.0
        return inside, weights[outer] * scale


def _free(*roots: Expr) -> frozenset[Expr]:
    """Axes and variables that an expression depends on."""
    return frozenset(node for node in walk(*roots) if isinstance(node, (Axis, Var)))
