"""From a producer to its reader: reverse_compute_at, reverse_compute_inline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.primitives.call import Call, StageName, caller
from tedsl.scheduling.primitives.stage_handle import StageHandle, primitive
from tedsl.tensor.tensor import Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.handles.stage import Stage
    from tedsl.scheduling.primitives.reverse_placement import rewrite as moves
else:
    moves = late("tedsl.scheduling.primitives.reverse_placement.rewrite")


class MoveMethods(StageHandle):
    """Primitives that bring a reader into the loops of what it reads."""

    __slots__ = ()

    @primitive
    def reverse_compute_at(self, stage: Stage | Tensor | Operation | str, axis: Axis) -> None:
        """Compute this stage in the loops of a stage that it reads: an epilogue.

        Args:
            stage: the producer.
            axis: a data loop of the producer; this stage runs once for each of its iterations.

        Requires: both at root; every read of the producer has, in each dimension of the loops down
            to `axis`, one and the same data axis of this stage, which is not split or marked yet;
            no reduce loop among those loops; no reader outside.  This stage takes over the loops
            down to `axis` with their marks and the launch options, and the producer is attached in
            it; the producer's loops keep their handles, and those taken over have one iteration
            left.

        Rewrites:
            for i: for j: { for k: B[i, j] += f(i, j, k) }
            for i: for j: C[i, j] = g(B[i, j])
            --> s[C].reverse_compute_at(s[B], i)
            for i:
              for j: { for k: B[j] += f(i, j, k) }
              for j: C[i, j] = g(B[j])
        """
        file, line = caller(1)
        target = self.schedule.resolve(stage, "reverse_compute_at", (file, line))
        shown = (("", StageName(self.name)), ("at", axis))
        args = (StageName(target), axis)
        call = Call("reverse_compute_at", self.name, args, {}, file, line, shown)
        self._commit(call, moves.reverse_compute_at(self.schedule.plan, call, target, axis))

    @primitive
    def reverse_compute_inline(self) -> None:
        """Substitute the stage that this one reads into it, and keep the loops of that stage.

        Requires: this stage is no reduction and reads one computed stage, each element of it once,
            by a permutation of its axes; its own loops are those of the definition.  The producer
            has one output, is no reduction and no output of the schedule.  Handles of the
            producer's loops are then handles of this stage's.

        Rewrites:
            for i.outer: for i.inner: B[i] = f(i);  for i: C[i] = g(B[i])
            -->
            for i.outer: for i.inner: C[i] = g(f(i))
        """
        call = self._call("reverse_compute_inline", ())
        self._commit(call, moves.reverse_compute_inline(self.schedule.plan, call))
