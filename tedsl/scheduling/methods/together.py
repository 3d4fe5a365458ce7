"""Horizontal fusion: compute_with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.expr.tensor import Operation, Tensor
from tedsl.late import late
from tedsl.scheduling.call import Call, StageName, caller
from tedsl.scheduling.methods.handle import StageHandle, primitive

if TYPE_CHECKING:
    from tedsl.scheduling.primitives import together
    from tedsl.scheduling.stage import Stage
else:
    together = late("tedsl.scheduling.primitives.together")


class TogetherMethods(StageHandle):
    """Primitives that let independent stages run together."""

    __slots__ = ()

    @primitive
    def compute_with(
        self, stage: Stage | Tensor | Operation | str, axis: Axis | None = None
    ) -> None:
        """Compute this stage together with one that it does not depend on: horizontal fusion.

        Args:
            stage: the leader, whose loops run.
            axis: the innermost shared loop of the leader.  Without it no loop is shared: both are
                one kernel, whose grid has the programs of the one and then those of the other
                (a fused launch of many small kernels; on the CPU one parallel loop over both).

        Requires: both at root, or both attached at one loop; neither reads the other, directly or
            not.  With an axis, this stage's outermost loops have as many iterations as the
            leader's, one by one; they run as the leader's do, and stages attached at them move to
            the leader's.  Loops of a reduction may be shared: its start stands before them, its
            result after.  `compute_root` or `compute_at` of this stage takes it back.

        Rewrites:
            for i: { for j: B[i] += f(A[i, j]) }
            for i: { for j: C[i] max= g(A[i, j]) }
            --> s[C].compute_with(s[B], j)
            for i: { for j: { B[i] += f(A[i, j]); C[i] max= g(A[i, j]) } }
        """
        file, line = caller(1)
        target = self.schedule.resolve(stage, "compute_with", (file, line))
        args = (StageName(target),) if axis is None else (StageName(target), axis)
        shown = (("", StageName(self.name)), ("leader", StageName(target)))
        shown = shown if axis is None else (*shown, ("axis", axis))
        call = Call("compute_with", self.name, args, {}, file, line, shown)
        self._commit(call, together.compute_with(self.schedule.plan, call, target, axis))
