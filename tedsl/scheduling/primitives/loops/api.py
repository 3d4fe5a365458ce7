"""Loop structure: split, tile, fuse, reorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex, cast

from tedsl.expr.nodes import Axis, Expr
from tedsl.late import late
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.loops import rewrite as loops
else:
    loops = late("tedsl.scheduling.primitives.loops.rewrite")


_OF_TILE = ("x_parent", "y_parent", "x_factor", "y_factor")


class LoopMethods(StageHandle):
    """Primitives that change which loops a stage has, and their order."""

    __slots__ = ()

    @primitive
    def split(
        self,
        parent: Axis,
        factor: SupportsIndex | Expr | None = None,
        nparts: SupportsIndex | Expr | None = None,
    ) -> tuple[Axis, Axis]:
        """Split a loop into two, one inside the other.

        Args:
            parent: the loop.
            factor: extent of the inner loop; it need not divide the extent, nor be smaller.
            nparts: extent of the outer loop, instead of `factor`.

        Returns:
            (outer, inner), with parent = outer * extent(inner) + inner.

        Requires: `parent` is a loop of this stage that has no mark.  Stages attached at it move to
        inner.

        Rewrites:
            for i in 0..n: f(i)
            -->
            for i.outer in 0..ceil(n / factor):
              for i.inner in 0..factor:
                if i.outer * factor + i.inner < n: f(i.outer * factor + i.inner)
        """
        call = self._call("split", (parent,), factor=factor, nparts=nparts)
        plan, made = loops.split(self.schedule.plan, call, parent, factor, nparts)
        return self._commit(call, plan, made)

    @primitive
    def tile(
        self, *arguments: SupportsIndex | Expr, **named: SupportsIndex | Expr
    ) -> tuple[Axis, ...]:
        """Split n loops and put the inner loops inside all outer loops.

        Args:
            arguments: n loops, then n factors: `tile(x, y, x_factor, y_factor)`.
            named: of two loops: `x_parent`, `y_parent`, `x_factor`, `y_factor`.

        Returns:
            The n outer axes, then the n inner axes.

        Requires: as for `split` and `reorder`.

        Rewrites:
            for x: for y: f(x, y)
            -->
            for x.outer: for y.outer: for x.inner: for y.inner: f(...)
        """
        arguments = (*arguments, *(named.pop(n) for n in _OF_TILE[len(arguments) :] if n in named))
        call = self._call("tile", arguments, **named)
        if named:
            raise call.refuse(
                self.schedule.plan,
                f"tile has no argument {next(iter(named))}, or it is given twice",
                facts=[("allowed", ", ".join(_OF_TILE))],
                hint="write tile(x, y, x_factor, y_factor)",
            )
        plan, made = loops.tile(self.schedule.plan, call, arguments)
        return self._commit(call, plan, made)

    @primitive
    def skew(self, axis: Axis, along: Axis, step: SupportsIndex, modulus: SupportsIndex) -> Axis:
        """Let a loop start earlier, by another amount for each element along another axis.

        Rows of n elements that are no multiple of 8 start anywhere in memory; in pieces of a skewed
        loop over them all but the first start at multiples of 8 elements: `skew(j, i, n, 8)`.

        Args:
            axis: a loop of the definition, not split or fused yet; data or reduce.
            along: another data axis of the definition (`s[C].op.axis`).
            step: by how much the start moves from one element of `along` to the next.
            modulus: after how much it is where it was: the loop starts `along * step % modulus`
                early, at most `modulus - 1`.

        Returns:
            The skewed axis, which is `modulus - 1` longer; iterations that are no element compute
            nothing.

        Requires: no marks; a step that is no multiple of the modulus; `along` is not skewed itself,
            and no loop along `axis`.

        Rewrites:
            for i: for j in 0..n: f(i, j)
            -->
            for i: for j.skewed in 0..n+m-1:
                j = j.skewed - i * step % m
                if 0 <= j < n: f(i, j)
        """
        call = self._call("skew", (axis, along), step=step, modulus=modulus)
        plan, made = loops.skew(self.schedule.plan, call, axis, along, step, modulus)
        self._commit(call, plan, (made,))
        return made

    @primitive
    def scatter(self, axis: Axis) -> None:
        """Run a reduction the other way round: where each of its points goes is looked up, in place
        of a loop over all elements that it could go to.

        Sums by group, histograms, and the gradients of `te.nn` gathers are such reductions.  What
        the result starts from is stored by a nest before.  The loops over the reduce axes may run
        at the same time, or as lanes of a tile, if the stage is `atomic`.

        Args:
            axis: a data axis of the definition (`s[C].op.axis`), not split or fused; it is no loop
                from now on.

        Requires: a stage at root, by itself, that reduces single values, from an `init=` that reads
            no stage which is computed in loops; a condition of the reduction (its `where=`, or a
            choice between its term and the reducer's identity) that equates the axis with an
            integer which depends on no scattered axis.

        Rewrites:
            for g in 0..n: for j: for i: if X[i] == g: C[g, j] += A[i, j]
            -->
            for g in 0..n: for j: C[g, j] = 0
            for j: for i: if 0 <= X[i] < n: C[X[i], j] += A[i, j]
        """
        call = self._call("scatter", (axis,))
        self._commit(call, loops.scatter(self.schedule.plan, call, axis))

    @primitive
    def fuse(self, *axes: Axis | Sequence[Axis]) -> Axis:
        """Make one loop of loops that stand directly inside each other.

        Args:
            axes: the loops, outermost first, or one list of them.  Without any, a loop that runs
                once is put outside all others: what a stage of no dimension is bound by.

        Returns:
            The fused axis; of two, outer = fused // extent(inner) and inner = fused %
            extent(inner).

        Requires: adjacent loops in their order, all data or all reduce axes, without marks, and
            nothing attached between them.  (TVM also fuses data with reduce axes.)

        Rewrites:
            for i in 0..n: for j in 0..m: f(i, j)
            -->
            for i.j.fused in 0..n*m: f(i.j.fused // m, i.j.fused % m)
        """
        listed = len(axes) == 1 and isinstance(axes[0], (list, tuple))
        given = tuple(cast("Sequence[Axis]", axes[0])) if listed else axes
        call = self._call("fuse", given)
        plan, fused = loops.fuse(self.schedule.plan, call, given)
        self._commit(call, plan, (fused,))
        return fused

    @primitive
    def reorder(self, *axes: Axis) -> None:
        """Let loops take each other's places.

        Args:
            axes: loops in the order they are to have, outermost first; loops not named stay where
                they are.

        Requires: attached stages stay at legal places.  Loops bound to the grid stay outside all
        others.

        Rewrites:
            for i: for j: for k: f(i, j, k)
            --> reorder(k, i)
            for k: for j: for i: f(i, j, k)
        """
        call = self._call("reorder", axes)
        self._commit(call, loops.reorder(self.schedule.plan, call, axes))
