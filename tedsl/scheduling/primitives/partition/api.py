"""Parts of the iterations of a loop, and blocks of loops: cut, partition, blockize."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from tedsl.expr.nodes import Axis, Expr
from tedsl.late import late
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive

if TYPE_CHECKING:
    from tedsl.scheduling.primitives.partition import rewrite as parts
else:
    parts = late("tedsl.scheduling.primitives.partition.rewrite")


class PartMethods(StageHandle):
    """Primitives that run the iterations of a loop in parts, or all of them at once."""

    __slots__ = ()

    @primitive
    def cut(self, axis: Axis, *points: SupportsIndex | Expr) -> None:
        """Run a loop as several, one after the other, each of which knows its own range.

        Conditions on the loop (of `te.if_then_else`, `where=`, a halo or a tail) that a part
        decides are gone from it.  A loop that runs in parallel or is bound to the grid stays one
        loop, whose body stands once for each part behind a condition.

        Args:
            axis: the loop.
            points: where it is cut, in ascending order: integers, or expressions over runtime
                sizes.  A point beyond the end leaves the parts after it empty.

        Requires: a data or reduce loop that is neither vectorized nor the loop that `online` stages
            go along with.  (Exo: `cut_loop`.)

        Rewrites:
            for i in 0..n: f(i)
            --> cut(i, 4, n - 4)
            for i in 0..4: f(i)
            for i in 4..n - 4: f(i)
            for i in n - 4..n: f(i)
        """
        call = self._call("cut", (axis, *points))
        self._commit(call, parts.cut(self.schedule.plan, call, axis, points))

    @primitive
    def partition(self, axis: Axis, policy: str = "always") -> None:
        """Say whether a loop is split in a part without guards and the rest.

        Args:
            axis: the loop.
            policy: `"always"` where guards allow it, also on the GPU and for parts whose length
                is known at the call only; `"never"`; `"auto"`: on the CPU, and on the GPU where the
                length of the part is a constant; `"ends"`: so, and what needs guards at the start
                of a serial loop has a part of its own, too, where its length is a constant.

        Requires: a loop that is not vectorized.  (Halide's `partition`.)

        Rewrites:
            for i in 0..ceil(n / 4): for j in 0..4: if i * 4 + j < n: f(i * 4 + j)
            -->
            for i in 0..n / 4: for j in 0..4: f(i * 4 + j)
            for i in n / 4..ceil(n / 4): for j in 0..4: if i * 4 + j < n: f(i * 4 + j)
        """
        call = self._call("partition", (axis,), policy=policy)
        self._commit(call, parts.partition(self.schedule.plan, call, axis, policy))

    @primitive
    def blockize(self, axis: Axis) -> None:
        """Make one block of a loop and all loops inside it: `vectorize` of each.

        Args:
            axis: the outermost loop of the block.

        Requires: as for `vectorize`, of each of them; loops that are vectorized already stay so.

        Rewrites:
            for i in 0..16: for j in 0..32: C[i, j] = f(i, j)
            -->
            C[0..16, 0..32] = f(0..16, 0..32)
        """
        call = self._call("blockize", (axis,))
        self._commit(call, parts.blockize(self.schedule.plan, call, axis))
